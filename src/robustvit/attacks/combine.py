"""Attacks around other attacks."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import AnyAttack, Attack, Classifier, Count, Done, Observe, attack_loss
from robustvit.core.component import component
from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import SampleStreams
from robustvit.losses import margin
from robustvit.models import evaluating
from robustvit.models.reference import AnyModelRef
from robustvit.threats import LpBall


@component("attack", "restarts")
class Restarts:
    """The strongest of several runs: a fooled sample stops, else the largest margin counts; run 0 is the bare one."""

    inner: AnyAttack
    times: Count = 5

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        threat: LpBall,
        *,
        random: SampleStreams,
        target: Tensor | None = None,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        runs = ((self.inner, random.child("restart", time) if time else random) for time in range(self.times))
        return _strongest(runs, model, x, y, threat, target, done, observe)


@component("attack", "ensemble")
class Ensemble:
    """The worst case over several attacks: a sample that one fools is spared the next, else the largest margin."""

    attacks: Annotated[tuple[AnyAttack, ...], Field(min_length=1)]

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        threat: LpBall,
        *,
        random: SampleStreams,
        target: Tensor | None = None,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        runs = ((attack, random.child("member", i) if i else random) for i, attack in enumerate(self.attacks))
        return _strongest(runs, model, x, y, threat, target, done, observe)


@component("attack", "from_surrogate")
class FromSurrogate:
    """Transfer (Papernot et al. 2017): another model is attacked to the end, this one sees only the outcome.

    `observe`, and with it the count of passes, tells what this model is asked, not the surrogate.
    """

    surrogate: AnyModelRef
    """A run, a checkpoint, a timm name, module:function, or a module of pixels in [0, 1]."""
    inner: AnyAttack

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        threat: LpBall,
        *,
        random: SampleStreams,
        target: Tensor | None = None,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        other = self.surrogate.module_for(x)
        with evaluating(other):
            self._check(other, x, y)
            x_adv = self.inner(other, x, y, threat, random=random, target=target)
        if done is not None or observe is not None:
            with torch.no_grad():
                logits = model(x_adv)
            rows = torch.arange(len(x), device=x.device)
            if observe is not None:
                observe(0, rows, x_adv, attack_loss("cw", y, target)(logits, rows), logits)
            if done is not None:
                done(x_adv, logits, rows)
        return x_adv

    def _check(self, other: Classifier, x: Tensor, y: Tensor) -> None:
        try:
            with torch.no_grad():
                classes = other(x[:1]).shape[1]
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            raise UserError(
                f"surrogate {self.surrogate.source}: fails on images of shape {tuple(x.shape[1:])}: {first_line(error)}"
            ) from error
        if int(y.max()) >= classes:
            raise UserError(f"surrogate {self.surrogate.source}: has {classes} classes, a label is {int(y.max())}")


def innermost(attack: Attack) -> Attack:
    """The attack inside all wrappers of one attack."""
    inner: Attack | None = getattr(attack, "inner", None)
    return attack if inner is None else innermost(inner)


def mapped(attack: Attack, change: Callable[[Attack], Attack]) -> Attack:
    """The same attack with `change` applied to it and to every attack inside it."""
    inner: Attack | None = getattr(attack, "inner", None)
    if inner is not None:
        attack = replace(attack, inner=mapped(inner, change))  # type: ignore[type-var]
    members: tuple[Attack, ...] = getattr(attack, "attacks", ())
    if members:
        attack = replace(attack, attacks=tuple(mapped(member, change) for member in members))  # type: ignore[type-var]
    return change(attack)


def _strongest(
    runs: Iterable[tuple[Attack, SampleStreams]],
    model: Classifier,
    x: Tensor,
    y: Tensor,
    threat: LpBall,
    target: Tensor | None,
    done: Done | None,
    observe: Observe | None,
) -> Tensor:
    best = x.detach().clone()
    best_margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    for attack, random in runs:
        left = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
        x_adv = attack(
            model,
            x[rows],
            y[rows],
            threat,
            random=random[rows],
            target=None if target is None else target[rows],
            done=None if done is None else _noting(done, rows, left),
            observe=None if observe is None else _for_rows(observe, rows),
        )
        best[rows[left]] = x_adv[left]
        rows, x_adv = rows[~left], x_adv[~left]
        if len(rows) == 0:
            break
        with torch.no_grad():
            logits = model(x_adv)
        value = margin(logits, y[rows]) if target is None else -margin(logits, target[rows])
        better = value > best_margin[rows]
        best[rows[better]], best_margin[rows[better]] = x_adv[better], value[better].to(x.dtype)
        if done is not None:
            finished = done(x_adv, logits, rows)
            best[rows[finished]] = x_adv[finished]
            rows = rows[~finished]
            if len(rows) == 0:
                break
    return best


def _noting(done: Done, outer: Tensor, left: Tensor) -> Done:
    """The same judge for rows of an inner batch; who leaves there is noted."""

    def judge(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        finished = done(x_adv, logits, outer[rows])
        left[rows[finished]] = True
        return finished

    return judge


def _for_rows(observe: Observe, outer: Tensor) -> Observe:
    return lambda step, rows, x_adv, loss, logits: observe(step, outer[rows], x_adv, loss, logits)
