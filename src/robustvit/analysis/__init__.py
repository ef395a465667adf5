"""What a model does inside, and why an attack on it is weak or strong. One import line registers a module."""

from robustvit.analysis.analyze import analyze as analyze
from robustvit.analysis.attack_strength import AttackStrength as AttackStrength
from robustvit.analysis.attention_attacks import AttentionAttacks as AttentionAttacks
from robustvit.analysis.attention_maps import AttentionMaps as AttentionMaps
from robustvit.analysis.attention_scores import AttentionScores as AttentionScores
from robustvit.analysis.base import Analysis as Analysis
from robustvit.analysis.boundary import Boundary as Boundary
from robustvit.analysis.confusion import Confusion as Confusion
from robustvit.analysis.eigen_cam import EigenCam as EigenCam
from robustvit.analysis.feature_visualization import FeatureVisualization as FeatureVisualization
from robustvit.analysis.gates import Gates as Gates
from robustvit.analysis.gradient_paths import GradientPaths as GradientPaths
from robustvit.analysis.input_gradients import InputGradients as InputGradients
from robustvit.analysis.layer_similarity import LayerSimilarity as LayerSimilarity
from robustvit.analysis.learning_curves import LearningCurves as LearningCurves
from robustvit.analysis.lesion import LesionStudy as LesionStudy
from robustvit.analysis.loss_along import LossAlong as LossAlong
from robustvit.analysis.loss_by_steps import LossBySteps as LossBySteps
from robustvit.analysis.loss_surface import LossSurface as LossSurface
from robustvit.analysis.perturbations import Perturbations as Perturbations
from robustvit.analysis.restricted_attention import RestrictedAttention as RestrictedAttention
from robustvit.analysis.semantic_perturbations import SemanticPerturbations as SemanticPerturbations
from robustvit.core.figures import (
    Chart as Chart,
    Heatmap as Heatmap,
    Line as Line,
    Pictures as Pictures,
    Table as Table,
)
from robustvit.core.finding import Finding as Finding, read_finding as read_finding
