"""Run folders in, one self-contained HTML page out; it reads only files and loads no model."""

from robustvit.reporting.card import Card, open_card
from robustvit.reporting.page import report

__all__ = ["Card", "open_card", "report"]
