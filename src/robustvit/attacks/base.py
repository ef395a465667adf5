"""The attack protocol, and the functions that compute gradients for attacks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Protocol

import torch
from torch import Tensor

from robustvit.core.component import OneOf
from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import SampleStreams, sample_streams
from robustvit.losses import ATTACK_LOSSES, LossName, targeted_dlr
from robustvit.threats import LpBall

Classifier = Callable[[Tensor], Tensor]
"""(B, 3, H, W) in [0, 1] -> (B, K) logits."""

Done = Callable[[Tensor, Tensor, Tensor], Tensor]
"""done(x_adv, logits, rows) -> (n,) bool: these samples need no further search."""

Observe = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""observe(step, rows, x_adv, loss, logits), after each forward pass."""


@dataclass(frozen=True)
class Search:
    """What one call of an attack gets besides images and threat; `search[rows]` is that of some of the images."""

    random: SampleStreams | None = None
    """None: seed 0, images numbered from 0."""
    target: Tensor | None = None
    """(B,) the class to search for."""
    done: Done | None = None
    observe: Observe | None = None

    def streams(self, x: Tensor) -> SampleStreams:
        return sample_streams(0, range(len(x))).to(x.device) if self.random is None else self.random

    def __getitem__(self, rows: Tensor) -> "Search":
        """`done` and `observe` still get the rows of the whole batch."""
        done, observe = self.done, self.observe
        return Search(
            sample_streams(0, rows) if self.random is None else self.random[rows],
            None if self.target is None else self.target[rows],
            None if done is None else (lambda x_adv, logits, inner: done(x_adv, logits, rows[inner])),
            None if observe is None else (lambda step, inner, *rest: observe(step, rows[inner], *rest)),
        )


class Attack(Protocol):
    """Searches `threat` around x for images that fool `model`; touches neither its mode nor its gradients.

    With `search.target` it searches for images of that class. With `search.done`, a sample leaves the batch when it
    says so and is returned as it is then; without (training), every sample takes all steps.

    An attack may declare `norms` (those that it searches; default all), `follows_gradients` (whether it ascends the
    gradient of the very model that is judged; default True, of wrappers: if an inner attack does),
    `suspect` (what it means if it fools images that gradient attacks left robust), `passes` (of one image at most) and
    `label`, and it may have the methods that `attacks/hooks.py` calls.
    """

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        """The images that it ends with."""


class AttackSubject(Protocol):
    """A model on images, as an attack sees it that prepares itself; called, it gives the logits."""

    @property
    def indices(self) -> Tensor: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def quiet(self) -> bool: ...
    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]: ...
    def fingerprint(self) -> str: ...
    def __call__(self, x: Tensor, /) -> Tensor: ...


AnyAttack = Annotated[Attack, OneOf("attack")]
"""A field that holds an attack: an instance, its name, or `{name: ..., settings}`."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits of the rows, rows) -> (n,), which the attack ascends."""


def attack_loss(name: LossName, y: Tensor, target: Tensor | None) -> RowLoss:
    """Away from y, or towards the target."""
    function = ATTACK_LOSSES[name]
    if target is None:
        return lambda logits, rows: function(logits, y[rows])
    if name == "dlr":
        return lambda logits, rows: targeted_dlr(logits, y[rows], target[rows])
    return lambda logits, rows: -function(logits, target[rows])


def input_gradient(
    model: Classifier, x_adv: Tensor, rows: Tensor, loss: RowLoss, eot: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, loss and logits at x_adv; a random model's gradient is averaged over `eot` passes.

    `autograd.grad` leaves `.grad` alone and, under DDP, starts no reduction.
    """
    gradients = []
    for _ in range(eot):
        point = x_adv.detach().requires_grad_()
        with torch.enable_grad():
            logits = logits_with_gradient(model, point)
            per_sample = loss(logits, rows)
            gradients.append(gradient_to(point, per_sample.sum()))
    return reduce(torch.add, gradients) / eot, per_sample.detach(), logits.detach()


class NoGradientError(UserError):
    """Nothing to ascend; `why` is for callers with another remedy than the one for evaluations."""

    def __init__(self, why: str) -> None:
        self.why = f"the model gives no gradient to its input ({why})"
        super().__init__(f"{self.why}: use suite 'square'")


def logits_with_gradient(model: Classifier, point: Tensor) -> Tensor:
    """The model's logits at a point that requires a gradient; a UserError if they have none."""
    try:
        logits = model(point)
    except RuntimeError as error:
        if "requires grad" not in str(error):
            raise
        raise NoGradientError(first_line(error)) from None
    if not logits.requires_grad:
        raise NoGradientError("detached, or under no_grad")
    return logits


def gradient_to(point: Tensor, total: Tensor, retain_graph: bool = False) -> Tensor:
    """Of a sum over samples; pixels with a non-finite gradient get 0, so that they don't spoil the others."""
    (gradient,) = torch.autograd.grad(total, point, retain_graph=retain_graph, allow_unused=True)
    if gradient is None:
        raise NoGradientError("its logits don't depend on it differentiably")
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)


def check_call(x: Tensor, y: Tensor, threat: LpBall) -> None:
    """What an attack is called with: images, a label for each, a ball."""
    if not isinstance(x, Tensor) or x.ndim != 4 or not len(x) or not isinstance(y, Tensor) or len(y) != len(x):
        shapes = (tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in (x, y))
        raise UserError("x, y: tensors of images (N, 3, H, W) and labels (N,), not {} and {}".format(*shapes))
    if not isinstance(threat, LpBall):
        raise UserError(f"threat: a ball such as rv.LpBall('inf', 8 / 255), not {threat!r}")


def check_pixels(x: Tensor) -> None:
    """Attacks work on pixels: an image outside [0, 1] was normalized outside the model."""
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        advice = "put the normalization into the model: rv.normalized(model, mean, std)"
        raise UserError(f"images must lie in [0, 1], these range from {low:g} to {high:g}; {advice}")


def start_noise(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Uniform in [-1, 1] for Linf, else normal: the start of APGD, and of FAB's restarts."""
    if threat.norm == "inf":
        return 2 * random.uniform(x.shape[1:], at="start", dtype=x.dtype) - 1
    return random.normal(x.shape[1:], at="start", dtype=x.dtype)
