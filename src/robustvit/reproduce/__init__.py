"""The papers' tables and figures: what each claims, how to run it at full or at small scale, and what was seen."""

from robustvit.reproduce.entries import Entry, Paper, find_entries, load_paper, paper_names

__all__ = ["Entry", "Paper", "find_entries", "load_paper", "paper_names"]
