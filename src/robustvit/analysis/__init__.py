"""What a model does inside, and why an attack on it is weak or strong. One import line registers a module."""

from robustvit.analysis.analyze import analyze
from robustvit.analysis.attention_attacks import AttentionAttacks
from robustvit.analysis.attention_scores import AttentionScores
from robustvit.analysis.base import Analysis
from robustvit.analysis.input_gradients import InputGradients
from robustvit.core.finding import Chart, Finding, Line, Pictures, Table, read_finding

__all__ = [
    "Analysis",
    "AttentionAttacks",
    "AttentionScores",
    "Chart",
    "Finding",
    "InputGradients",
    "Line",
    "Pictures",
    "Table",
    "analyze",
    "read_finding",
]
