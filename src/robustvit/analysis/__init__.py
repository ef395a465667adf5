"""What a model does inside, and why an attack on it is weak or strong. One import line registers a module."""

from robustvit.analysis.analyze import analyze, read_finding
from robustvit.analysis.attention_attacks import AttentionAttacks
from robustvit.analysis.attention_scores import AttentionScores
from robustvit.analysis.base import Analysis, Chart, Finding, Pictures, Table
from robustvit.analysis.input_gradients import InputGradients

__all__ = [
    "Analysis",
    "AttentionAttacks",
    "AttentionScores",
    "Chart",
    "Finding",
    "InputGradients",
    "Pictures",
    "Table",
    "analyze",
    "read_finding",
]
