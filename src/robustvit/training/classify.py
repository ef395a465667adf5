"""Training a classifier: steps, average; validation on images held out."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.journal import Row
from robustvit.core.result import Result
from robustvit.core.world import World, is_out_of_memory
from robustvit.data.base import Subset, as_pixels
from robustvit.data.feed import Batch, Batches, RowsOf
from robustvit.evaluation import Job, evaluate_subject, evaluator_from, open_subject
from robustvit.models import Normalized, eval_mode
from robustvit.models.create import describe
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.precision import (
    check_precision,
    checkpoint_activations,
    compile_network,
    compute_in,
    in_float32,
    slower_by,
)
from robustvit.models.sharding import gathered, mapped, scattered, shard
from robustvit.models.start import Start, Started
from robustvit.models.weights import extra_state, load_extra_state
from robustvit.training.image_task import ImageTask
from robustvit.training.opening import never_trained, open_recipe, phase_batches
from robustvit.training.recipe import Event, Phase, Recipe
from robustvit.training.recorder import AnyRecorder
from robustvit.training.state_parts import read_parts, write_parts
from robustvit.training.step import take_step
from robustvit.training.task import Position, State, StepResult

TIMED = 16
"""Images of a pass that is timed."""
CLEAN_EVERY = 20
"""Steps between measurements of the accuracy on clean training images."""


@component("task", "classify")
class Classification:
    """A classifier of images, trained by an objective against a threat."""

    recipe_type: ClassVar[type[Recipe]] = Recipe

    def build(self, recipe: Recipe, recorder: AnyRecorder, world: World) -> "Classify":
        kind = ShardedClassify if recipe.shard and world.size > 1 else Classify
        return kind(recipe, recorder, world)


class Classify(ImageTask):
    """The model, its average, optimizer and health, and the best validation so far."""

    model: Normalized

    def __init__(self, recipe: Recipe, recorder: AnyRecorder, world: World) -> None:
        images, self.held, self.model = open_recipe(recipe, world.device)
        super().__init__(images, describe(self.model)["num_classes"], recorder, world)
        self.recipe, self.best = recipe, -1.0
        self._set_up()
        phases = [(phase_batches(recipe, phase, images, self.num_classes), phase.parts) for phase in recipe.phases]
        self._prepare(phases, recipe.gradient_sum)

    def _set_up(self) -> None:
        """How the network computes; a pass in another precision is timed first."""
        recipe = self.recipe
        check_precision(recipe.precision, self.device)
        compute_in(self.model, recipe.precision, recipe.shard)
        if recipe.activation_checkpointing:
            checkpoint_activations(self.model)
        if recipe.precision != "float32" and self.world.is_first:
            x = as_pixels(self.images.take(torch.arange(min(TIMED, len(self.images))))[0].to(self.device))
            with eval_mode(self.model):
                problem = slower_by(self.model, self._in_float32, x, recipe.precision)
            if problem:
                self.recorder.message(f"warning: {problem}")
        if recipe.compile:
            compile_network(self.model)
            for phase in recipe.phases:
                for event in phase.events:
                    event.check(self.model)

    def _in_float32(self, x: Tensor) -> Tensor:
        with in_float32(self.model):
            logits: Tensor = self.model(x)
        return logits

    def initialize(self) -> None:
        """The weights to begin with, and where each tensor came from."""
        started = None if self.recipe.start is None else self._start(self.recipe.start)
        if started is not None:
            self.recorder.write_json("start.json", vars(started))
            self.recorder.message(str(started))
        if problem := never_trained(self.recipe, self.model, started):
            self.recorder.message(f"warning: {problem}")

    def _start(self, start: Start) -> Started:
        return start(self.model)

    def begin_phase(self, number: int) -> Batches | RowsOf:
        """Its batches, which parameters train, a new optimizer, a new average."""
        self.phase: Phase = self.recipe.phases[number]
        named, self.trainable = list(parameter_names(self.model)), []
        for turn in self.phase.turns:
            self.trainable.append({id(parameter) for name, parameter in named if matches(name, turn.trainable)})
        self._set_trainable(set().union(*self.trainable))
        self.optimizer = self.phase.optimizer.build(self.model)
        for event in self.phase.events:
            if not any(map(event.is_due, range(self.phase.epochs))):
                when = f"in the {self.phase.epochs} epochs of {self.phase.name}"
                self.recorder.message(f"warning: events: {to_dict(event)['name']} is never due {when}")
        return self._begin(number, self.phase.ema is not None)

    def _set_trainable(self, wanted: set[int]) -> None:
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in wanted)

    def begin_epoch(self, position: Position) -> list[Row]:
        """The events that are due."""
        due = [event for event in self.phase.events if event.is_due(position.epoch)]
        if not due:
            return []
        rows, extra = self.world.first(lambda: ([self._happened(e, position) for e in due], extra_state(self.model)))
        load_extra_state(self.model, extra)
        if self.average is not None:
            load_extra_state(self.average, extra_state(self.model))
        return rows

    def _happened(self, event: Event, position: Position) -> Row:
        begin = time.monotonic()
        row = event(self.model, self.images, self.device, self.recipe.seed + position.total_step)
        seconds = round(time.monotonic() - begin, 3)
        return {"kind": "event", "name": to_dict(event)["name"], "epoch": position.epoch, **row, "seconds": seconds}

    def step(self, batch: Batch, position: Position) -> StepResult:
        phase, progress = self.phase, position.progress
        x, y = as_pixels(batch.images.to(self.device)), batch.y.to(self.device)
        random = self.batches.streams(position.step, batch.ids).to(self.device)
        threat = self.recipe.threat.scaled(phase.eps_schedule(progress) if phase.eps_schedule else 1.0)
        lr = phase.optimizer.peak(phase.batch_size) * phase.schedule(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        number = position.step % len(phase.turns)
        turn, asks = phase.turns[number], position.step // len(phase.turns) % CLEAN_EVERY == 0
        self._set_trainable(self.trainable[number])
        with explain_errors(phase.batch_size, self.parts.count):
            random = random.child("attack")
            key = (self.recipe.seed, phase.name, "step", position.step)
            report = take_step(
                self.model, self.optimizer, phase, turn, x, y, threat, random, progress, asks, self.parts, key
            )
        if self.average is not None and phase.ema is not None and report.finite:
            phase.ema.update(self.average, self.model, phase.ema.rate(position.step, position.steps))
        self.report, self.is_compared = report, number == 0  # accuracies of other turns are not comparable
        num_skipped = self.health.skipped + (not report.finite)
        skipped = {"skipped_steps": num_skipped} if num_skipped else {}
        values = {"lr": lr, "eps": threat.eps, **skipped}
        if not report.finite:
            return StepResult(values)
        means = {"loss": report.loss, **report.parts}
        if phase.alternate is not None:
            means[f"{turn.head or to_dict(turn.objective)['name']}_loss"] = report.loss
        means["robust_accuracy" if report.attacked else "clean_accuracy"] = report.hits
        if report.clean_hits is not None:
            means["clean_accuracy"] = report.clean_hits
        return StepResult(values, means)

    def end_step(self, result: StepResult) -> None:
        """The health of the training."""
        report = self.report
        if not report.finite:
            self.health.see_step(False, 0.0, 0, report.attacked)
        elif self.is_compared:
            hits = result.means["robust_accuracy" if report.attacked else "clean_accuracy"]
            self.health.see_step(True, float(hits.sum()), len(hits), report.attacked)

    def end_epoch(self, position: Position) -> None:
        """Validation, where it is due, and warnings."""
        epoch, robust = position.epoch, None
        if self.held is not None and (epoch % self.recipe.validation.every == 0 or position.is_phase_end):
            result = self._validate(self.held)
            row = {"suite": result.title, "images": result.num_images, "clean_accuracy": result.clean_accuracy}
            self.recorder.log(position, {"kind": "validation", **row, "robust_accuracy": result.robust_accuracy})
            robust = int(result.is_robust.sum()), result.num_images
            if result.robust_accuracy > self.best:
                self.best = result.robust_accuracy
                rule = f"best {result.title} accuracy on {result.num_images} images held out of the training data"
                facts = {"phase": self.phase.name, "epoch": epoch, "rule": rule, "hold_out_robust_accuracy": self.best}
                self.recorder.save_weights("best", self.weights(), facts)
        schedule = self.phase.eps_schedule
        full_eps = schedule is None or schedule(max(0.0, (epoch - 1) / self.phase.epochs)) >= 1
        for warning in self.health.end_epoch(epoch, position.progress, robust, full_eps):
            self.recorder.warn(position, warning)

    def _validate(self, held: Subset) -> Result:
        """In memory and in float32; neither probes the model nor hashes weights and images."""
        recipe, size, model = self.recipe, self.phase.batch_size, self.weights()
        subject = open_subject(model, held, seed=recipe.seed, batch_size=size, device=self.device, quiet=True)
        evaluator = evaluator_from(recipe.validation.suite, recipe.threat)
        with in_float32(model):
            return evaluate_subject(subject, evaluator, Job(checks=False, reads_identity=False), self.world)

    def state(self) -> State:
        return {**super().state(), "extra": extra_state(self.model), "best": self.best}

    def load_state(self, state: State) -> None:
        state = read_parts(state, lambda path: None, self.world)  # of a training that was spread over processes
        super().load_state(state)
        self.best = state["best"]
        load_extra_state(self.model, state["extra"])
        if self.average is not None:
            load_extra_state(self.average, state["extra"])


class ShardedClassify(Classify):
    """The same with a network that is spread over the processes; its state has a part of each."""

    def _set_up(self) -> None:
        super()._set_up()
        shard(self.model, self.world)

    def _start(self, start: Start) -> Started:
        """On a whole network, of whose tensors each process then takes its part."""
        whole, own = self._whole(), self.model.state_dict()
        started = start(whole)
        self.model.load_state_dict({key: scattered(value, own[key]) for key, value in whole.state_dict().items()})
        load_extra_state(self.model, started.extra_state)
        return started

    def _copied(self) -> nn.Module:
        made = self._whole()  # a sharded network can't be copied
        compute_in(made, self.recipe.precision, shard=True)
        shard(made, self.world)
        return made

    def _whole(self, of: nn.Module | None = None) -> Normalized:
        made = self.recipe.model.build().to(self.device)
        made.load_state_dict(gathered((of or self.model).state_dict()))
        load_extra_state(made, extra_state(of or self.model))
        return made

    def weights(self) -> nn.Module:
        """Whole, in every process, all of which must call it."""
        return self._whole(super().weights())

    def state(self) -> State:
        """What is spread is written at once, a part by each process, all of which must call it."""
        return write_parts(super().state(), self.world.first(self.recorder.begin_parts), self.world)

    def load_state(self, state: State) -> None:
        """From the parts of any number of processes, or from the state of a whole network."""
        own = self._own_tensors()

        def like(path: str) -> Tensor | None:
            return own.get(path, own.get(path.rpartition("/")[0]))

        whole = read_parts(state, like, self.world)
        super().load_state(mapped(whole, lambda path, value: scattered(value, like(path))))

    def _own_tensors(self) -> dict[str, Tensor]:
        """By their path in a state; that of moments begins with their parameter's."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        own: dict[str, Tensor] = {f"optimizer/state/{number}": tensor for number, tensor in enumerate(parameters)}
        for name, module in (("model", self.model), ("average", self.average)):
            own |= {
                f"{name}/{key}": value for key, value in (module.state_dict() if module is not None else {}).items()
            }
        return own


@contextmanager
def explain_errors(batch_size: int, parts: int) -> Iterator[None]:
    """Name the setting that avoids an error of torch."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        need = f"more than one image in each of the {parts} parts of a batch, not {batch_size} in all"
        raise UserError(f"recipe.batch_size: the batch norms of this model need {need}") from None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        setting = f"accumulate={2 * parts} (the same gradient, but for batch norms) or activation_checkpointing=true"
        where = f"out of memory at batch_size {batch_size} in {parts} parts"
        raise UserError(f"{where}: start a new run (another --run folder) with {setting}") from None
