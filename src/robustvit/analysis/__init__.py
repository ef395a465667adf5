"""What a model does inside, and why an attack on it is weak or strong. One import line registers a module."""

from robustvit.analysis.analyze import Analysis as Analysis, analyze as analyze
from robustvit.analysis.attention_attacks import AttentionAttacks as AttentionAttacks
from robustvit.analysis.attention_scores import AttentionScores as AttentionScores
from robustvit.analysis.gates import Gates as Gates
from robustvit.analysis.input_gradients import InputGradients as InputGradients
from robustvit.core.figures import (
    Chart as Chart,
    Heatmap as Heatmap,
    Line as Line,
    Pictures as Pictures,
    Table as Table,
)
from robustvit.core.finding import Finding as Finding, read_finding as read_finding
