"""Attacks around other attacks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.attacks.base import AnyAttack, Attack, AttackSubject, Classifier, Done, Search, attack_loss, check_call
from robustvit.attacks.hooks import label, passes_of
from robustvit.core.component import component
from robustvit.core.errors import UserError, first_line
from robustvit.core.numbers import Count
from robustvit.models import eval_mode, through
from robustvit.models.heads import check_head, whole
from robustvit.models.reference import AnyModelRef
from robustvit.threats import LpBall


@component("attack", "restarts")
class Restarts:
    """The strongest of several runs: a fooled sample stops, else the largest margin counts; run 0 is the bare one."""

    inner: AnyAttack
    """The attack that is wrapped."""
    times: Count = 5
    """Searches from different starts."""

    @property
    def label(self) -> str:
        return f"{label(self.inner)} x{self.times}"

    @property
    def passes(self) -> int | None:
        inner = passes_of(self.inner)
        return None if inner is None else self.times * (inner + 1)

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        return _strongest([self.inner] * self.times, "restart", model, x, y, threat, search)


@component("attack", "ensemble")
class Ensemble:
    """The worst case over several attacks: samples that one fools skip the next; else the largest margin counts."""

    attacks: Annotated[tuple[AnyAttack, ...], Field(min_length=1)]
    """Tried one after the other."""

    @property
    def label(self) -> str:
        return " or ".join(map(label, self.attacks))

    @property
    def passes(self) -> int | None:
        inner = [passes_of(attack) for attack in self.attacks]
        return None if None in inner else sum(filter(None, inner)) + len(inner)

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        return _strongest(self.attacks, "member", model, x, y, threat, search)


@component("attack", "from_surrogate")
class FromSurrogate:
    """Transfer (Papernot et al. 2017): another model is attacked, this one sees only the final images.

    `observe`, and with it the count of passes, covers this model alone, not the surrogate.
    """

    follows_gradients: ClassVar[bool] = False

    surrogate: AnyModelRef
    """A run, a checkpoint, a timm name, module:function, or a module of pixels in [0, 1]."""
    inner: AnyAttack
    """The attack that is wrapped."""

    @property
    def label(self) -> str:
        return f"{label(self.inner)} from {self.surrogate}"

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        other = self.surrogate.module_for(x)
        with eval_mode(other):
            self._check(other, x, y)
            return _transferred(self.inner, other, model, x, y, threat, search)

    def _check(self, other: Classifier, x: Tensor, y: Tensor) -> None:
        name = f"surrogate {self.surrogate.source}"
        try:
            with torch.no_grad():
                classes = other(x[:1]).shape[1]
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            shape = tuple(x.shape[1:])
            raise UserError(f"{name}: fails on images of shape {shape}: {first_line(error)}") from error
        if int(y.max()) >= classes:
            raise UserError(f"{name}: has {classes} classes, a label is {int(y.max())}")


@component("attack", "through_head")
class ThroughHead:
    """Attacks one head of a model; what is judged, another head or the output, sees only the final images.

    The count of passes covers what is judged alone.
    """

    follows_gradients: ClassVar[bool] = False

    inner: AnyAttack
    """The attack that is wrapped."""
    head: str | None = None
    """The head that is attacked, such as acc; null: the output of the model."""

    @property
    def label(self) -> str:
        return f"{label(self.inner)} through {self.head or 'the output'}"

    def check(self, subject: AttackSubject) -> None:
        self._models(subject)

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        judged, attacked = self._models(model)
        if attacked is judged:
            return self.inner(model, x, y, threat, search)
        return _transferred(self.inner, attacked, model, x, y, threat, search)

    def _models(self, model: Classifier) -> tuple[Classifier, Classifier]:
        """The module that is judged, and the one that is attacked; a bare callable is both."""
        module = model if isinstance(model, nn.Module) else getattr(model, "module", model)
        if self.head is not None:
            check_head(module, self.head)
        return module, through(whole(module), self.head) if isinstance(module, nn.Module) else module


def _transferred(
    attack: Attack, other: Classifier, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search
) -> Tensor:
    """Found by attacking the other model; this one sees only the final images."""
    x_adv = attack(other, x, y, threat, Search(search.random, search.target))
    if search.done is not None or search.observe is not None:
        with torch.no_grad():
            logits = model(x_adv)
        rows = torch.arange(len(x), device=x.device)
        if search.observe is not None:
            search.observe(0, rows, x_adv, attack_loss("cw", y, search.target)(logits, rows), logits)
        if search.done is not None:
            search.done(x_adv, logits, rows)
    return x_adv


def _strongest(
    attacks: Sequence[Attack], kind: str, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search
) -> Tensor:
    """Of runs whose random numbers are named by kind and number; those of the first are the bare attack's."""
    check_call(x, y, threat)
    lead, random = attack_loss("cw", y, search.target), search.streams(x)
    best = x.detach().clone()
    best_margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    for number, attack in enumerate(attacks):
        left = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        inner = replace(search, random=random.child(kind, number) if number else random)[rows]
        if inner.done is not None:
            inner = replace(inner, done=_noting(inner.done, left))
        x_adv = attack(model, x[rows], y[rows], threat, inner)
        best[rows[left]] = x_adv[left]
        rows, x_adv = rows[~left], x_adv[~left]
        if len(rows) == 0:
            break
        with torch.no_grad():
            logits = model(x_adv)
        value = lead(logits, rows)
        better = value > best_margin[rows]
        best[rows[better]], best_margin[rows[better]] = x_adv[better], value[better].to(x.dtype)
        if search.done is not None:
            finished = search.done(x_adv, logits, rows)
            best[rows[finished]] = x_adv[finished]
            rows = rows[~finished]
            if len(rows) == 0:
                break
    return best


def _noting(done: Done, left: Tensor) -> Done:
    """The same function; samples that it ends are marked in `left`."""

    def judge(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        finished = done(x_adv, logits, rows)
        left[rows[finished]] = True
        return finished

    return judge
