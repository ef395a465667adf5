"""Training on the images as they are: the baseline that attacks break."""

from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.losses import cross_entropy
from robustvit.objectives.base import Losses, Perturbed, Smoothing
from robustvit.threats import LpBall


@component("objective", "standard")
class Standard:
    """Cross-entropy on clean images."""

    label_smoothing: Smoothing = 0.0

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        return Perturbed(x, attacked=False)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits = model(x)
        return Losses(cross_entropy(logits, y, self.label_smoothing), logits)
