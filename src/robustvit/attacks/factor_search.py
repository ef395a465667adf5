"""Which factors on attention change what a model sees: the search of adaptive attention scaling.

Algorithm 1 of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (Jain and Dutta 2024).
What the paper leaves open is a setting here: it prints neither a step size nor the number of batches, its equation 3
can be read in three ways, and it uses the clamped factors before it sets them.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.attacks.base import Classifier
from robustvit.core.component import settings
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count
from robustvit.core.streams import sample_streams, seeded_subset
from robustvit.losses import ATTACK_LOSSES
from robustvit.models.attention_probe import Scaling, probing, recording, scalable_blocks, transformer_blocks

Batches = Iterable[tuple[Tensor, Tensor]]
LOWEST, HIGHEST = 1e-7, 1.0

DISTANCES = ("squared", "literal", "unit")
"""Readings of equation 3: |a-b|^2 / |a||b|; |a-b| / |a||b| as printed; |a/|a| - b/|b||^2, as LPIPS has it."""


@settings
class FactorSearch:
    """Search for attention factors: for each batch a random start near the current ones, then ascent; the best stay."""

    criterion: Literal["squared", "literal", "unit", "ce", "cw", "gama"] = "squared"
    """What is maximized: how far the features after every block move, or a loss of the logits (the paper's Table 2)."""
    batches: Count = 10
    batch_size: Count = 128
    steps: Annotated[int, Field(ge=0)] = 10
    """0: the random starts alone, the control of the search."""
    step: Annotated[float, Field(gt=0)] = 1.0
    normalized: bool = False
    """Steps of this length, instead of so many gradients."""
    reference: Literal["carried", "original"] = "carried"
    """Features are compared with those under the factors of the batch before, or with the model's own."""

    def choose(self, indices: Tensor, seed: int) -> tuple[Tensor, ...]:
        """Images drawn for the batches; fewer images make smaller batches, as each is a new random start."""
        count = min(len(indices), self.batches * self.batch_size)
        chosen = indices[seeded_subset(len(indices), count, seed, "attention factors")]
        return torch.split(chosen, -(-count // self.batches))

    def __call__(
        self, model: Classifier, module: nn.Module, batches: Batches, seed: int, start: Sequence[float] | None = None
    ) -> tuple[float, ...]:
        """A factor for each attention block of `module`, which `model` calls; at first `start`, or 1."""
        factors: Tensor | None = None
        for number, (x, y) in enumerate(batches):
            if factors is None:
                first = [1.0] * len(scalable_blocks(module)) if start is None else start
                # on the CPU, because not every device has float64
                factors = torch.tensor(first, dtype=torch.float64)
            if number >= self.batches:
                break
            random = sample_streams(seed, [0]).child("attention factors", number)
            delta = random.normal((len(factors),), at="start")[0].to(factors)
            factors = self._ascend(model, module, x, y, factors, delta)
        if factors is None:
            raise UserError("factors are searched on images: there are none")
        return tuple(factors.tolist())

    def _ascend(
        self, model: Classifier, module: nn.Module, x: Tensor, y: Tensor, factors: Tensor, delta: Tensor
    ) -> Tensor:
        point = (factors + delta).clamp(LOWEST, HIGHEST)
        if self.steps == 0:
            return point
        blocks = transformer_blocks(module) if self.criterion in DISTANCES else []
        with recording(module, blocks) as seen:
            base = factors if self.reference == "carried" else torch.ones_like(factors)
            with torch.no_grad(), probing(module, Scaling(base)):
                logits = model(x)
            reference = (logits, {name: seen[name] for name in blocks})
            best, highest = point, -torch.inf
            for number in range(self.steps + 1):
                last = number == self.steps
                # at the clamped point: the clamp's own slope is 0 above 1, where half of the starts lie
                trial = point.detach().requires_grad_(not last)
                with torch.set_grad_enabled(not last), probing(module, Scaling(trial)):
                    value = self._value(model(x), y, seen, reference)
                    gradient = torch.zeros_like(point) if last else torch.autograd.grad(value, trial)[0]
                if value.item() > highest:
                    best, highest = point, value.item()
                gradient = torch.nan_to_num(gradient)
                if self.normalized:
                    gradient = gradient / gradient.norm().clamp_min(1e-12)
                point = (point + self.step * gradient).clamp(LOWEST, HIGHEST)
        return best

    def _value(
        self, logits: Tensor, y: Tensor, seen: dict[str, Tensor], reference: tuple[Tensor, dict[str, Tensor]]
    ) -> Tensor:
        if self.criterion == "gama":
            away = (logits.softmax(1) - reference[0].softmax(1)).square().sum(1)
            return (ATTACK_LOSSES["pm"](logits, y) + 50 * away).mean()
        if self.criterion in ("ce", "cw"):
            return ATTACK_LOSSES[self.criterion](logits, y).mean()
        return torch.stack([self._distance(seen[name], before).mean() for name, before in reference[1].items()]).sum()

    def _distance(self, now: Tensor, before: Tensor) -> Tensor:
        a, b = now.flatten(1).float(), before.flatten(1).float()
        lengths: tuple[Tensor, Tensor] = a.norm(dim=1), b.norm(dim=1)
        if self.criterion == "unit":
            a, b = a / lengths[0][:, None], b / lengths[1][:, None]
        apart: Tensor = (a - b).square().sum(1)
        if self.criterion == "literal":
            apart = (apart + 1e-12).sqrt()  # whose slope at 0 is undefined
        return apart if self.criterion == "unit" else apart / (lengths[0] * lengths[1])


def module_of(model: Classifier) -> nn.Module:
    """The module behind a classifier."""
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        advice = "scale its logits instead: where=logits"
        raise UserError(f"attention is scaled inside an nn.Module, which a bare callable hides; {advice}")
    return module
