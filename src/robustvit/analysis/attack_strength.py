"""How close attacks of few steps come to one of many, over the epochs of a training.

Figures 7, 12 and 13 of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023).
"""

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robustvit.analysis.attack_losses import Mode, attacked_loss
from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.ascent import PGD, AnyStepSize, Start, StepSize
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Table
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, mean_interval
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.heads import Head, through
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.models.weights import load_facts
from robustvit.threats import LpBall


class Epoch(NamedTuple):
    """Weights whose attacks are measured; without a reference, the model as it is."""

    name: str
    at: float
    ref: ModelRef | None = None


EPOCHS = "*-epoch-*"


@component("analysis", "attack_strength")
class AttackStrength:
    """How much lower the loss of a k-step attack is than that of a long one, for the weights of each saved epoch."""

    steps: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 2, 5, 10)
    """Of the attacks that are compared with the long one."""
    reference: Count = 200
    """Steps of the long one."""
    seeds: Count = 3
    """Random starts, over which the interval is."""
    step: AnyStepSize = StepSize(1.5, of_eps=True, per_step=True)
    """Size of a step."""
    start: Start = "uniform"
    """Where a search begins."""
    attack_mode: Mode = "eval"
    """Mode of the model while it is attacked; train is how the authors ran it. The loss is measured in eval mode."""
    checkpoints: str = EPOCHS
    """Names in the checkpoints folder of the run; if none is there, the model as it is is looked at."""
    threat: LpBall | None = None
    """Of the attacks; null: that of the call."""

    def check(self, subject: Subject) -> None:
        self._epochs(subject)
        check_attacking(subject, PGD(self.reference, self.step, self.start), required(self.threat, "attack_strength"))

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"epochs": [str(epoch.ref.digest) for epoch in self._epochs(subject) if epoch.ref is not None]}

    def passes(self, subject: Subject) -> int:
        each = sum(2 * steps + 1 for steps in self._all_steps)
        return len(subject.indices) * len(self._epochs(subject)) * self.seeds * each

    @property
    def _all_steps(self) -> list[int]:
        """The long attack last, and once even if it is compared with itself."""
        return [steps for steps in dict.fromkeys(self.steps) if steps != self.reference] + [self.reference]

    def __call__(self, subject: Subject, store: Store) -> Finding:
        epochs, steps, total = self._epochs(subject), self._all_steps, len(subject.indices)
        threat = required(self.threat, "attack_strength")
        losses = np.zeros((len(epochs), self.seeds, len(steps), total))
        state: State = {"losses": losses}
        with _Weights(subject, epochs) as weights:

            def add(todo: tuple[int, int, int, Tensor]) -> int:
                number, seed, which, rows = todo
                attack, indices = PGD(steps[which], self.step, self.start), subject.indices[rows]
                loss = attacked_loss(weights.of(number), attack, indices, threat, seed, self.attack_mode)
                losses[number, seed, which, rows.numpy()] = loss  # a tensor of one row would be a number
                return len(rows)

            todo = [
                (number, seed, which, rows)
                for number in range(len(epochs))
                for seed in range(self.seeds)
                for which in range(len(steps))
                for rows in torch.split(torch.arange(total), subject.batch_size)
            ]
            work = len(epochs) * self.seeds * len(steps) * total
            accumulate(todo, state, add, store, "attack strength", work, subject.quiet)
        return self._finding(subject, threat, epochs, losses)

    def _epochs(self, subject: Subject) -> list[Epoch]:
        """In the order of training."""
        files = [] if subject.run is None else sorted(subject.run.checkpoints.glob(f"{self.checkpoints}.safetensors"))
        if not files and self.checkpoints != EPOCHS:
            of = "a model alone has no run" if subject.run is None else f"none is in {subject.run.checkpoints}"
            raise UserError(f"attack_strength.checkpoints: no weights '{self.checkpoints}': {of}")
        if not files:
            return [Epoch("as it is", 0.0)]
        phases = sorted({str(load_facts(path).get("phase")) for path in files})
        if len(phases) > 1:
            advice = f"choose one, such as attack_strength.checkpoints='{phases[0]}-epoch-*'"
            raise UserError(f"the weights are of several phases ({', '.join(phases)}); {advice}")
        epochs = [Epoch(path.stem, _epoch_of(path), resolve_model(path)) for path in files]
        return sorted(epochs, key=lambda epoch: epoch.at)

    def _finding(self, subject: Subject, threat: LpBall, epochs: list[Epoch], losses: np.ndarray) -> Finding:
        order = [self._all_steps.index(steps) for steps in self.steps]
        compared, oracle = losses[:, :, order], losses[:, :, -1:]
        means = relative_difference(compared.mean(-1), oracle.mean(-1))  # (epochs, seeds, steps)
        names = [f"PGD-{steps}" for steps in self.steps]
        rows = tuple(
            (epoch.name, f"{oracle[number].mean():.4g}", *(_text(means[number, :, one]) for one in range(len(names))))
            for number, epoch in enumerate(epochs)
        )
        charts = []
        if len(epochs) > 1:
            at = tuple(epoch.at for epoch in epochs)
            charts.append(self._chart("by epoch", "epoch", at, names, 100 * np.abs(means).transpose(2, 0, 1)))
        last = 100 * np.abs(means[-1]).T[None]  # (1, steps, seeds)
        charts.append(self._chart("by steps", "steps", tuple(map(float, self.steps)), [epochs[-1].name], last))
        alone = "" if len(epochs) > 1 else " The run kept no weights of other epochs (checkpoints.every)."
        return Finding(
            "Attack strength",
            f"How much lower the cross-entropy after a k-step PGD is than after PGD-{self.reference}, relative to the "
            f"latter: means over {losses.shape[-1]} images of {subject.images.title}, then the ratio, for "
            f"{self.seeds} random starts; {threat}, model in {self.attack_mode} mode while attacked. Nearer to 0 means "
            f"that few steps suffice.{alone}",
            tables=(Table("Relative difference of the loss", ("weights", f"PGD-{self.reference}", *names), rows),),
            charts=tuple(charts),
            arrays={
                "losses": losses,
                "relative": relative_difference(compared, oracle),
                "relative-of-means": means,
                "relative-to-mean": shares_of_the_ratio(compared, oracle),
            },
        )

    def _chart(self, title: str, x_title: str, xs: tuple[float, ...], names: list[str], values: np.ndarray) -> Chart:
        """(lines, points, seeds) as means with intervals over seeds."""
        lines = tuple(Line(name, xs, *_means(of_line)) for name, of_line in zip(names, values, strict=True))
        note = f"Absolute difference from PGD-{self.reference}; 95 % over {self.seeds} random starts."
        return Chart(f"Relative difference of the loss, {title}", x_title, lines, y_title="percent", note=note)


def relative_difference(losses: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """d_k of A Light Recipe (eq. 2): below 0 where the attack is weaker; NaN where the reference has no loss."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = np.where(reference > 0, (losses - reference) / reference, np.nan)
    return ratio


def shares_of_the_ratio(losses: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """For each image a value, whose mean is d_k of the means and whose spread is that of d_k: by the delta method.

    The loss of the reference is a mean over the same images, so that an image with a large one has more of both.
    """
    mean = reference.mean(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = losses.mean(-1, keepdims=True) / mean
        shares: np.ndarray = np.where(mean > 0, ratio - 1 + (losses - ratio * reference) / mean, np.nan)
    return shares


def _means(values: np.ndarray) -> tuple[tuple[float | None, ...], tuple[tuple[float, float], ...]]:
    """Of (points, seeds)."""
    means = [float(row.mean()) if np.isfinite(row).all() else None for row in values]
    intervals = tuple(
        (0.0, 0.0) if mean is None else mean_interval(row, 0.0, math.inf) or (mean, mean)
        for mean, row in zip(means, values, strict=True)
    )
    return tuple(means), intervals


def _text(values: np.ndarray) -> str:
    return f"{100 * values.mean():+.2f} %" if np.isfinite(values).all() else "-"


def _epoch_of(path: Path) -> float:
    epoch = load_facts(path).get("epoch")
    if not isinstance(epoch, int):
        raise UserError(f"{path}: does not say its epoch; name others with attack_strength.checkpoints")
    return float(epoch)


class _Weights:
    """The same head of a model with the weights of each epoch, on the same images; one network in memory at a time."""

    def __init__(self, subject: Subject, epochs: list[Epoch]) -> None:
        self._subject, self._epochs = subject, epochs
        self._stack = ExitStack()
        self._opened: tuple[int, Subject] | None = None

    def __enter__(self) -> "_Weights":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def of(self, number: int) -> Subject:
        ref = self._epochs[number].ref
        if ref is None:
            return self._subject
        if self._opened is None or self._opened[0] != number:
            self._stack.close()
            head = self._subject.model.head if isinstance(self._subject.model, Head) else None
            one = replace(self._subject, model=through(ref.module(), head), num_classes=0)
            self._opened = number, self._stack.enter_context(one.ready())
        return self._opened[1]
