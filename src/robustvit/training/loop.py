"""The training loop, whatever is trained: batches, steps, epochs, phases, and the exact position at every moment."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.progress import Progress
from robustvit.core.readers import conforming
from robustvit.core.run import cpu_seconds, processor
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.data.feed import load_batches
from robustvit.training.base_recipe import BasePhase, BaseRecipe, recipe_digest
from robustvit.training.recorder import AnyRecorder
from robustvit.training.task import Position, State, StepResult, Task


class _Meter(TypedDict):
    sums: dict[str, Annotated[float, Field(allow_inf_nan=True)]]
    counts: dict[str, int]


class _State(TypedDict):
    """What the loop reads of a training state; the task checks its own part."""

    phase: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0)]
    total_step: Annotated[int, Field(ge=0)]
    finished: bool
    threads: int
    data: str
    recipe: str
    cpu_seconds: Annotated[float, Field(ge=0)]
    meter: _Meter
    task: dict[str, Any]


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


class Stop:
    """Set by Ctrl-C or SIGTERM: the running step ends, the state is saved."""

    signal: int | None = None


class Flags(NamedTuple):
    """What a process asks for after a step."""

    stop: bool = False
    save: bool = False


class Stopped(KeyboardInterrupt):
    """Training ended early because a signal asked for it, its state saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass
class Meter:
    """Means over the steps since the last row of the metrics."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.detach().sum())
        self.counts[name] = self.counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float | None]:
        """Rounded for the file; a mean that isn't finite is None, as JSON knows no other word."""
        means = {name: self.sums[name] / self.counts[name] for name in self.sums}
        return {name: round(value, 6) if abs(value) < float("inf") else None for name, value in means.items()}

    def shown(self) -> dict[str, str]:
        """For the progress line."""
        means = {name: mean for name, mean in self.means().items() if name == "loss" or name.endswith("_accuracy")}
        return {name.removesuffix("_accuracy"): "?" if mean is None else f"{mean:.3f}" for name, mean in means.items()}


class Loop:
    """One run of a task: everything follows from the recipe, `position` and the state on disk."""

    def __init__(
        self,
        recipe: BaseRecipe,
        task: Task,
        recorder: AnyRecorder,
        world: World | None = None,
        began: float | None = None,
    ) -> None:
        """`began`: what `cpu_seconds()` was before the task was opened, whose cost is the run's, too."""
        self.recipe, self.task, self.recorder = recipe, task, recorder
        self.world = world or World()
        self.finished = False
        self.meter = Meter()
        self.cpu_seconds = -(cpu_seconds() if began is None else began)
        """With those of the process added, what all sessions of this run have used."""
        state = self.world.broadcast(recorder.load_state())
        if state is None:
            task.initialize()
            self.position = self._begin_phase(0)
        else:
            self._restore(state)
        recorder.cut_metrics(self.position.total_step)
        if self.finished and not recorder.has_weights("last"):
            recorder.save_weights("last", task.weights(), self._facts())

    @property
    def phase(self) -> BasePhase:
        return self.recipe.phases[self.position.phase]

    def run(self, stop: Stop, max_steps: int | None = None) -> None:
        """To the end, or to `max_steps` more, or until asked to stop."""
        saved = time.monotonic()
        until = None if max_steps is None else self.position.total_step + max_steps

        def asked() -> Flags:
            enough = until is not None and self.position.total_step >= until
            is_late = time.monotonic() - saved >= self.recipe.checkpoints.seconds
            return Flags(stop.signal is not None or enough, is_late)

        pin_memory = self.world.device.startswith("cuda")
        while not self.finished and not any(flags.stop for flags in self.world.gather(asked())):
            batches = load_batches(self.feed, self.position.step, self.recipe.workers, pin_memory)
            with self._progress() as progress, closing(batches):
                for batch in batches:
                    flags = self.step(batch, progress, asked)
                    if self.position.is_between_epochs:
                        self._end_epoch()
                    if self.position.is_phase_end or flags.stop:
                        break
                    if flags.save:
                        self._save()
                        saved = time.monotonic()
            # data workers have ended, so that what they used is counted
            if self.position.is_phase_end:
                self._end_phase()
            else:
                self._save()
        signals = [signal for signal in self.world.gather(stop.signal) if signal is not None]
        if signals and not self.finished:
            raise Stopped(signals[0])

    def step(self, batch: Any, progress: Progress, asked: Callable[[], "Flags"] = Flags) -> "Flags":
        """One step of the task, and its metrics; what the processes agree on then, `asked` after the step."""
        begin = self.position
        events = self.task.begin_epoch(begin) if begin.is_between_epochs else []
        with seeded_globals(self.recipe.seed, self.phase.name, "step", begin.step):
            mine = self.task.step(batch, begin)
        self.position = begin.advanced()
        result, agreed = self._gathered(mine, asked())
        self.task.end_step(result)
        for name, values in result.means.items():
            self.meter.add(name, values)
        progress.advance(self.phase.batch_size, **self.meter.shown())
        for row in events:  # now, as a state saved before the step would keep the row and write it again
            self.recorder.log(self.position, row)
        if self.position.step % self.recipe.log_every == 0 or self.position.is_phase_end:
            self.recorder.log(self.position, {"kind": "train", **result.values, **self.meter.means()})
            self.meter = Meter()
        return agreed

    def _gathered(self, result: StepResult, flags: "Flags") -> "tuple[StepResult, Flags]":
        """The samples of all processes; stop where one asks for it, save by the first one's clock."""
        if self.world.size == 1:
            return result, flags
        everyone = self.world.gather(({name: v.cpu() for name, v in result.means.items()}, flags))
        means = {name: torch.cat([each[name] for each, _ in everyone]) for name in result.means}
        agreed = Flags(any(each.stop for _, each in everyone), everyone[0][1].save)
        return StepResult(result.values, means), agreed

    def _end_epoch(self) -> None:
        self.task.end_epoch(self.position)
        self.recorder.save_weights("last", self.task.weights(), self._facts())
        epoch, every = self.position.epoch, self.recipe.checkpoints.every
        if every and epoch % every == 0:
            facts = {**self._facts(), "rule": f"epoch {epoch}"}
            self.recorder.save_weights(f"{self.phase.name}-epoch-{epoch:04d}", self.task.weights(), facts)

    def _facts(self) -> dict[str, Any]:
        epoch, epochs = self.position.epoch, self.phase.epochs
        rest = "" if epoch == epochs else f" of {epochs}, training not finished"
        return {"phase": self.phase.name, "epoch": epoch, "rule": f"last epoch ({epoch}{rest})"}

    def _end_phase(self) -> None:
        following = self.position.phase + 1
        self.finished = following == len(self.recipe.phases)
        if not self.finished:
            self.task.end_phase()
            self.position = self._begin_phase(following, total_step=self.position.total_step)
        self._save()
        if self.finished:
            self.recorder.message(f"trained {self.position.total_step} steps")

    def _begin_phase(self, number: int, step: int = 0, total_step: int = 0) -> Position:
        self.feed = self.task.begin_phase(number)
        name = self.recipe.phases[number].name
        return Position(number, name, len(self.feed), self.feed.steps_per_epoch, step, total_step)

    def _save(self) -> None:
        used = sum(self.world.gather(self.cpu_seconds + cpu_seconds()))
        self.recorder.write_json("cost.json", {"cpu_seconds": round(used, 1), "processor": processor()})
        state = {
            "phase": self.position.phase,
            "step": self.position.step,
            "total_step": self.position.total_step,
            "finished": self.finished,
            "threads": torch.get_num_threads(),
            "data": self.task.fingerprint(),
            "meter": asdict(self.meter),
            "recipe": recipe_digest(self.recipe),
            "cpu_seconds": used,
            "task": self.task.state(),
        }
        self.recorder.save_state(self.position.total_step + self.finished, state)

    def _restore(self, state: State) -> None:
        where, remedy = state.get("path", "training state"), "remove it, or start a new run (another --run folder)"
        position = conforming(state, _STATE, where, "whole state of a training", remedy)
        if position["recipe"] != recipe_digest(self.recipe):
            raise UserError(f"{where}: made by a recipe with another seed or other settings than this run's; {remedy}")
        self.finished = position["finished"]
        self.cpu_seconds += position["cpu_seconds"] / self.world.size
        if not self.task.fingerprint().startswith(position["data"]):  # a state may know less
            when = "it was trained" if self.finished else "the training was stopped"
            advice = "put it back, or start a new run (another --run folder)"
            raise UserError(f"{self.task.title} holds other data now than when {when}; {advice}")
        if position["phase"] >= len(self.recipe.phases):
            raise UserError(f"{where}: in phase {position['phase']} of {len(self.recipe.phases)}; {remedy}")
        self.position = self._begin_phase(position["phase"], position["step"], position["total_step"])
        if self.position.step > self.position.steps:
            raise UserError(f"{where}: at step {self.position.step} of {self.position.steps}; {remedy}")
        try:
            self.task.load_state(state["task"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise UserError(f"{where}: does not fit the model ({shortened(first_line(error))}); {remedy}") from error
        self.meter = Meter(**state["meter"])
        if self.finished:
            return
        self.recorder.message(f"resuming at step {self.position.total_step}")
        if state["threads"] != torch.get_num_threads():
            threads = f"began with {state['threads']} threads and continues with {torch.get_num_threads()}"
            self.recorder.message(f"this run {threads}: its weights will not be bit-identical to an unbroken run's")

    def _progress(self) -> Progress:
        size = self.phase.batch_size
        title = self.recipe.name + (f" {self.phase.name}" if len(self.recipe.phases) > 1 else "")
        return Progress(title, self.position.steps * size, self.position.step * size, quiet=self.recorder.quiet)
