"""The training loop: batch, search, loss, step, average; and its exact position at every moment."""

import time
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.devices import is_out_of_memory
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_json
from robustvit.core.generators import seeded_globals
from robustvit.core.progress import Progress, say
from robustvit.core.run import RunFolder
from robustvit.data.base import Subset, as_pixels, content_fingerprint
from robustvit.data.feed import Batch, load_batches
from robustvit.core.result import Result
from robustvit.evaluation import evaluate
from robustvit.models import save_model
from robustvit.models.attention_factors import attention_factors, set_attention_factors
from robustvit.models.create import describe
from robustvit.models.extra_state import load_extra_state
from robustvit.models.names import parameter_names
from robustvit.models.normalize import Normalized
from robustvit.models.start import Start
from robustvit.training.batches import phase_batches
from robustvit.training.checkpoints import load_newest_state, save_state
from robustvit.training.ema import AveragedModel
from robustvit.training.health import Health
from robustvit.training.loggers import Sink, values_of
from robustvit.training.meter import Meter
from robustvit.training.opening import open_recipe, trains
from robustvit.training.recipe import Phase, Recipe
from robustvit.training.step import StepReport, take_step

CLEAN_EVERY = 20
"""Steps between measurements of the accuracy on clean training images."""


class Stop:
    """Set by Ctrl-C or a polite kill: the running step ends, the state is saved."""

    signal: int | None = None


class Stopped(KeyboardInterrupt):
    """Training ended early at the user's wish, its state saved."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.signal = signal


class Trainer:
    """One run: `position` is (phase, step within it); everything else follows from it and the state on disk."""

    def __init__(self, recipe: Recipe, folder: RunFolder, quiet: bool = False) -> None:
        self.recipe, self.folder, self.quiet = recipe, folder, quiet
        self.images, self.held, self.model = open_recipe(recipe)
        self.num_classes: int = describe(self.model)["num_classes"]
        self.phase_number, self.step, self.total_step = 0, 0, 0
        self.best = -1.0
        self.finished = False
        self.meter = Meter()
        self.sinks: list[Sink] = []
        self._begin_phase()
        state = load_newest_state(folder.checkpoints)
        if state is not None:
            self._restore(state)
        elif recipe.start is not None:
            self._start(recipe.start)
        self._cut_metrics()
        if self.finished and not is_file(folder.checkpoints / "last.safetensors"):
            self._give_away("last", self._facts(self.phase.epochs))

    def _start(self, start: Start) -> None:
        """The weights to begin with, and a record of what became of each."""
        assert isinstance(self.model, Normalized)
        told = start(self.model)
        write_json(self.folder.path / "start.json", told.to_dict())
        if self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())
            load_extra_state(self.average.module, told.extra_state)
        if not self.quiet:
            say(str(told))

    @property
    def phase(self) -> Phase:
        return self.recipe.phases[self.phase_number]

    @property
    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    @property
    def phase_steps(self) -> int:
        return len(self.batches)

    @property
    def progress(self) -> float:
        return self.step / self.phase_steps

    @property
    def trained_model(self) -> nn.Module:
        """What is validated and given away: the average where there is one."""
        return self.average.module if self.average is not None else self.model

    def run(self, stop: Stop, max_steps: int | None = None) -> None:
        """To the end, or to `max_steps` more, or until asked to stop."""
        saved = time.monotonic()
        until = None if max_steps is None else self.total_step + max_steps

        def asked() -> bool:
            return stop.signal is not None or (until is not None and self.total_step >= until)

        while not self.finished and not asked():
            feed = load_batches(self.batches, self.step, self.recipe.workers, self.recipe.device.startswith("cuda"))
            with self._progress_bar() as bar, closing(feed):
                for batch in feed:
                    self._train_step(batch, bar)
                    if self.step % self.steps_per_epoch == 0:
                        self._end_epoch()
                    if self.step == self.phase_steps:
                        self._end_phase()
                        break
                    if asked():
                        self._save()
                        break
                    if time.monotonic() - saved >= self.recipe.checkpoints.seconds:
                        self._save()
                        saved = time.monotonic()
        if stop.signal is not None and not self.finished:
            raise Stopped(stop.signal)

    def _train_step(self, batch: Batch, bar: Progress) -> None:
        phase, device = self.phase, self.recipe.device
        x, y = as_pixels(batch.images.to(device)), batch.y.to(device)
        random = self.batches.streams(self.step, batch.ids).to(device)
        searched = None
        if self.step % self.steps_per_epoch == 0:
            searched = self._scale_attention(self.step // self.steps_per_epoch)
        with seeded_globals(self.recipe.seed, phase.name, "step", self.step):
            factor = phase.eps_schedule(self.progress) if phase.eps_schedule else 1.0
            threat = self.recipe.threat.scaled(factor)
            lr = phase.optimizer.peak(phase.batch_size) * phase.schedule(self.progress)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            try:
                report = take_step(
                    self.model, self.optimizer, phase, x, y, threat, random.child("attack"), self.progress
                )
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise UserError(
                    f"recipe.batch_size: the batch norms of this model need more than one image in each of the "
                    f"{phase.accumulate} parts of a batch, not {phase.batch_size} in all"
                ) from None
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise UserError(
                    f"out of memory at batch_size {phase.batch_size} in {phase.accumulate} parts: train anew (another "
                    f"--run folder) with accumulate={2 * phase.accumulate}: the same gradient, but for batch norms"
                ) from None
            if self.average is not None and phase.ema is not None and report.finite:
                self.average.update(self.model, phase.ema.rate(self.step, self.phase_steps))
        self._note(report, x, y)
        self.step += 1
        self.total_step += 1
        if searched is not None:  # now, as the state saved before it would keep its row and write it again
            self._log({"kind": "attention", **searched})
        if self.step % self.recipe.log_every == 0 or self.step == self.phase_steps:
            skipped = {"skipped_steps": self.health.skipped} if self.health.skipped else {}
            self._log({"kind": "train", "lr": lr, "eps": threat.eps, **self.meter.means(), **skipped})
            self.meter.clear()
        bar.advance(phase.batch_size, **self.meter.shown())

    def _scale_attention(self, epoch: int) -> dict[str, Any] | None:
        """What is told of the search, if one is due."""
        event = self.phase.attention_scaling
        if event is None or not event.is_due(epoch):
            return None
        begin = time.monotonic()
        factors = event(self.model, self.images, self.recipe.device, self.recipe.seed + self.total_step)
        if self.average is not None:
            set_attention_factors(self.average.module, factors)
        return {"epoch": epoch, "factors": list(factors), "seconds": round(time.monotonic() - begin, 3)}

    def _note(self, report: StepReport, x: Tensor, y: Tensor) -> None:
        """Means for the metrics; a step that was skipped has no part in them."""
        self.health.see_step(report.finite, float(report.hits.sum()), len(y), report.attacked)
        if not report.finite:
            return
        self.meter.add("loss", report.loss)
        for name, part in report.parts.items():
            self.meter.add(name, part)
        self.meter.add("robust_accuracy" if report.attacked else "clean_accuracy", report.hits)
        if report.attacked and self.step % CLEAN_EVERY == 0:
            self.meter.add("clean_accuracy", self._clean_hits(x, y))

    @torch.no_grad()
    def _clean_hits(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.eval()
        return (self.model(x).argmax(1) == (y if y.ndim == 1 else y.argmax(1))).float()

    def _end_epoch(self) -> None:
        epoch = self.step // self.steps_per_epoch
        rules, facts = self.recipe.checkpoints, {"phase": self.phase.name, "epoch": epoch}
        last = self.step == self.phase_steps
        held = None
        if self.held is not None and (epoch % self.recipe.validation.every == 0 or last):
            result = self._validate(self.held)
            self._log(
                {
                    "kind": "validation",
                    "suite": result.suite,
                    "images": result.num_images,
                    "clean_accuracy": result.clean_accuracy,
                    "robust_accuracy": result.robust_accuracy,
                }
            )
            held = int(result.is_robust.sum()), result.num_images
            if result.robust_accuracy > self.best:
                self.best = result.robust_accuracy
                rule = f"best {result.suite} accuracy on {result.num_images} images held out of the training data"
                self._give_away("best", {**facts, "rule": rule, "hold_out_robust_accuracy": self.best})
        schedule = self.phase.eps_schedule
        full_eps = schedule is None or schedule(max(0.0, (epoch - 1) / self.phase.epochs)) >= 1
        for name, text in self.health.end_epoch(epoch, self.progress, held, full_eps).items():
            self._log({"kind": "warning", "name": name, "text": text})
            say(f"warning: {text}")
        self._give_away("last", self._facts(epoch))
        if rules.every and epoch % rules.every == 0:
            self._give_away(f"{self.phase.name}-epoch-{epoch:04d}", {**facts, "rule": f"epoch {epoch}"})

    def _facts(self, epoch: int) -> dict[str, Any]:
        rest = "" if epoch == self.phase.epochs else f" of {self.phase.epochs}, training not finished"
        return {"phase": self.phase.name, "epoch": epoch, "rule": f"last epoch ({epoch}{rest})"}

    def _validate(self, held: Subset) -> Result:
        return evaluate(
            self.trained_model,
            held,
            suite=self.recipe.validation.suite,
            threat=self.recipe.threat,
            batch_size=self.phase.batch_size,
            seed=self.recipe.seed,
            device=self.recipe.device,
            quiet=True,
        )

    def _give_away(self, name: str, facts: dict[str, Any]) -> None:
        path = self.folder.checkpoints / f"{name}.safetensors"
        save_model(self.trained_model, path, **facts, recipe=self.recipe.to_dict())

    def _end_phase(self) -> None:
        if self.phase_number + 1 < len(self.recipe.phases):
            if self.average is not None:
                self.model.load_state_dict(self.average.module.state_dict())
            self.phase_number, self.step = self.phase_number + 1, 0
            self._begin_phase()
        else:
            self.finished = True
        self._save()
        if self.finished and not self.quiet:
            say(f"{self.folder.path}: trained {self.total_step} steps")

    def _begin_phase(self) -> None:
        """Its batches, which parameters train, a new optimizer, a new average."""
        self.batches = phase_batches(self.recipe, self.phase, self.images, self.num_classes)
        for name, parameter in parameter_names(self.model):
            parameter.requires_grad_(trains(name, self.phase))
        self.optimizer = self.phase.optimizer.build(self.model)
        ema = self.phase.ema
        self.average = AveragedModel(self.model, ema.buffers) if ema is not None else None
        self.health = Health(self.num_classes)
        event = self.phase.attention_scaling
        if event is not None and event.every >= self.phase.epochs and self.step == 0 and not self.quiet:
            say(
                f"warning: attention_scaling.every is {event.every} and {self.phase.name} has {self.phase.epochs} "
                "epochs: no search will come"
            )

    def _save(self) -> None:
        state = {
            "phase": self.phase_number,
            "step": self.step,
            "total_step": self.total_step,
            "best": self.best,
            "finished": self.finished,
            "threads": torch.get_num_threads(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.module.state_dict() if self.average is not None else None,
            "meter": self.meter.state(),
            "health": self.health.state(),
            "data": self._data_seen(),
            "attention_factors": attention_factors(self.model),
        }
        save_state(self.folder.checkpoints, self.total_step + self.finished, state)

    def _data_seen(self) -> str:
        """A checksum of some training images and labels, wherever they lie."""
        some = torch.linspace(0, len(self.images) - 1, min(16, len(self.images)), dtype=torch.float64).long()
        return content_fingerprint(self.images, some)

    def _restore(self, state: dict[str, Any]) -> None:
        if not state["finished"] and state.get("data", self._data_seen()) != self._data_seen():
            raise UserError(
                f"{self.folder.path}: {self.images.title} holds other images now than when the training was stopped; "
                "put them back, or train anew (another --run folder)"
            )
        self.phase_number, self.step, self.total_step = state["phase"], state["step"], state["total_step"]
        self.best, self.finished = state["best"], state["finished"]
        self._begin_phase()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        if state.get("attention_factors"):
            for model in (self.model, *([self.average.module] if self.average is not None else [])):
                set_attention_factors(model, state["attention_factors"])
        self.meter, self.health = Meter(state["meter"]), Health(**state["health"])
        if self.finished or self.quiet:
            return
        say(f"{self.folder.path}: going on at step {self.total_step}")
        if state["threads"] != torch.get_num_threads():
            say(
                f"this run began with {state['threads']} threads and goes on with {torch.get_num_threads()}: "
                "its weights will not be bit-identical to an unbroken run's"
            )

    def _cut_metrics(self) -> None:
        """Rows written after the last saved state will be written again."""
        journal = self.folder.metrics
        rows = journal.repair()
        kept = [row for row in rows if row["total_step"] <= self.total_step]
        if len(kept) < len(rows):
            journal.rewrite(kept)

    def _log(self, row: dict[str, Any]) -> None:
        place = {
            "total_step": self.total_step,
            "phase": self.phase.name,
            "step": self.step,
            "epoch": round(self.step / self.steps_per_epoch, 4),
        }
        self.folder.metrics.append([{**place, **row}])
        if values := values_of({**place, **row}):
            for sink in self.sinks:
                sink.write(self.total_step, values)

    def _progress_bar(self) -> Progress:
        size = self.phase.batch_size
        title = self.recipe.name + (f" {self.phase.name}" if len(self.recipe.phases) > 1 else "")
        return Progress(title, self.phase_steps * size, self.step * size, quiet=self.quiet)
