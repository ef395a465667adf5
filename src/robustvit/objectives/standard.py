"""Training on the images as they are: the baseline that attacks break."""

from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.losses import cross_entropy
from robustvit.objectives.base import Losses, Smoothing
from robustvit.threats import LpBall


@component("objective", "standard")
class Standard:
    """Cross-entropy on clean images."""

    label_smoothing: Smoothing = 0.0

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Tensor:
        return x

    def loss(self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        logits = model(x)
        return Losses(cross_entropy(logits, y, self.label_smoothing), logits)
