"""Attacks around other attacks."""

import torch
from torch import Tensor

from robustvit.attacks.ascent import Count
from robustvit.attacks.base import AnyAttack, Classifier, Done, Observe
from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.losses import margin
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
        best = x.detach().clone()
        best_margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        rows = torch.arange(len(x), device=x.device)
        for time in range(self.times):
            streams = random[rows] if time == 0 else random[rows].child("restart", time)
            x_adv = self.inner(
                model,
                x[rows],
                y[rows],
                threat,
                random=streams,
                target=None if target is None else target[rows],
                done=_for_rows(done, rows),
                observe=_observe_rows(observe, rows),
            )
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


def _for_rows(done: Done | None, outer: Tensor) -> Done | None:
    if done is None:
        return None
    return lambda x_adv, logits, rows: done(x_adv, logits, outer[rows])


def _observe_rows(observe: Observe | None, outer: Tensor) -> Observe | None:
    if observe is None:
        return None
    return lambda step, rows, x_adv, loss, logits: observe(step, outer[rows], x_adv, loss, logits)
