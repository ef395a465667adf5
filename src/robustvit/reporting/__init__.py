"""Run folders in, one self-contained HTML page out; it reads only files and loads no model."""

from robustvit.reporting.card import Card, open_card
from robustvit.reporting.leaderboard import Leaderboard, leaderboard
from robustvit.reporting.page import report

__all__ = ["Card", "Leaderboard", "leaderboard", "open_card", "report"]
