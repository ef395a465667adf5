"""Attacks around other attacks."""

import torch
from torch import Tensor

from robustvit.attacks.base import AnyAttack, Classifier, Count, Done, Observe
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
            left = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
            x_adv = self.inner(
                model,
                x[rows],
                y[rows],
                threat,
                random=random[rows] if time == 0 else random[rows].child("restart", time),
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
