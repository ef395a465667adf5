"""What an analysis needs of a model, found out before any work: by a pass of a few images."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from robustvit.analysis.base import network
from robustvit.attacks.base import Attack, NoGradientError, gradient_to, logits_with_gradient
from robustvit.attacks.hooks import check_attack, check_norms, follows_gradients
from robustvit.core.errors import UserError
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import Edit, NoAttentionError, probing
from robustvit.models.layout import NoBlocksError
from robustvit.threats import LpBall

PROBED = 2
"""Images of such a pass."""


@contextmanager
def needing(what: str, instead: str) -> Iterator[None]:
    """Within, a network that lacks attention or blocks gets a sentence about the analysis that needs them."""
    try:
        yield
    except (NoAttentionError, NoBlocksError) as error:
        raise UserError(f"{what}, but {error}; {instead}") from None


def few_images(subject: Subject) -> Tensor:
    return subject.batch(subject.indices[:PROBED])[0]


def check_probe(subject: Subject, *edits: Edit) -> None:
    """A UserError if these edits can't reach the network's attention, by a pass of few images."""
    with torch.no_grad(), probing(network(subject), *edits):
        subject.model(few_images(subject))


def check_gradient(subject: Subject) -> None:
    """A UserError if the model gives no gradient to its input, by a pass of few images."""
    try:
        point = few_images(subject).requires_grad_()
        with torch.enable_grad():
            gradient_to(point, logits_with_gradient(subject, point).sum())
    except NoGradientError as error:
        raise UserError(f"follows gradients, but {error.why}; confusion takes any model") from None


def required(threat: LpBall | None, name: str, may_be_zero: bool = False) -> LpBall:
    """A UserError where a caller other than `analyze` left it out, or where nothing may be added."""
    if threat is None:
        raise UserError(f"{name}.threat: needed, such as {{norm: inf, eps: 8/255}}")
    if not threat.eps and not may_be_zero:
        raise UserError(f"{name}: needs a threat with an eps above 0, since an attack with eps 0 adds nothing")
    return threat


def check_attacking(subject: Subject, attack: Attack, threat: LpBall) -> None:
    """A UserError if the attack doesn't search this norm, or can't search this model."""
    check_norms(attack, threat)
    check_attack(attack, subject)
    if follows_gradients(attack):
        check_gradient(subject)
