"""Training at the worst weights near the present ones."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Protocol

import torch
from torch import nn

from robustvit.core.component import OneOf, component
from robustvit.core.numbers import NonNegative, UnitInterval
from robustvit.models.modes import keeping_statistics


class StepWrapper(Protocol):
    """Changes the model while a step's gradient is taken, and restores it before the optimizer steps."""

    def around(self, model: nn.Module, gradient: Callable[[], object], progress: float) -> AbstractContextManager[None]:
        """`gradient()` sets the parameters' gradients to those of the whole batch, of all its parts and processes."""


AnyStepWrapper = Annotated[StepWrapper, OneOf("step_wrapper")]


@component("step_wrapper", "awp")
class WeightPerturbation:
    """Adversarial weight perturbation (Wu et al. 2020): the gradient is taken where the weights hurt most nearby.

    Each weight matrix and convolution moves by `gamma` of its own norm along its gradient. In a transformer these are
    the projections of attention, MLP, patches and head; biases, norms, position embeddings and tokens stay, as
    everything does in the authors' code that has one dimension or isn't named 'weight'. The optimizer then steps from
    the original weights, which are restored exactly; theirs steps from the perturbed ones and subtracts.
    """

    gamma: NonNegative = 5e-3
    """0.01 for PGD-AT, 0.005 for TRADES in the authors' code."""
    warmup: UnitInterval = 0.0
    """Fraction of the training before it begins."""

    @contextmanager
    def around(self, model: nn.Module, gradient: Callable[[], object], progress: float) -> Iterator[None]:
        if self.gamma == 0 or progress < self.warmup:
            yield
            return
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        weights = [p for name, p in trained if p.ndim > 1 and name.split(".")[-1] == "weight"]
        with keeping_statistics(model):
            gradient()
        before = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                if weight.grad is not None:
                    weight.add_(weight.grad * (self.gamma * weight.norm() / (weight.grad.norm() + 1e-20)))
        model.zero_grad(set_to_none=True)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, value in zip(weights, before, strict=True):
                    weight.copy_(value)
