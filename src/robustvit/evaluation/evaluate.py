"""A model and data in, a result out; with a run folder, killed at any moment, the same call goes on."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robustvit.attacks.base import Classifier
from robustvit.core.component import to_dict
from robustvit.core.devices import checked_device
from robustvit.core.distributed import Shard, launched, wait_for_all
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import Journal, hash8, is_file, locked, read_json, write_json
from robustvit.core.numbers import format_fraction
from robustvit.core.run import RunFolder, command, versions
from robustvit.data.base import Split, choose_images, data_fingerprint
from robustvit.data.open import images_from
from robustvit.evaluation.attention import check_scaling, control_of, judged, scales_attention, with_factors
from robustvit.evaluation.carried import Carried, carried_from
from robustvit.evaluation.examples import Examples
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.processes import run_processes
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.runner import Sink, attack_again, run_sample, run_suite
from robustvit.evaluation.sanity import signs_before
from robustvit.evaluation.saved import FILE, Saver, carry_saved, write_saved
from robustvit.evaluation.stages import Suite
from robustvit.evaluation.subject import Subject, model_device
from robustvit.evaluation.suites import suite_from
from robustvit.evaluation.summary import is_complete, sample_of, summarise
from robustvit.threats import LpBall


def evaluate(
    model: Classifier,
    data: Any,
    *,
    suite: Any = "pgd-20",
    threat: LpBall,
    batch_size: int = 128,
    seed: int = 0,
    run: str | Path | None = None,
    split: Split = "test",
    images: int | None = None,
    device: str | None = None,
    processes: int = 1,
    smaller: EvalResult | None = None,
    save_images: bool = False,
    quantized: bool = False,
    checks: bool = True,
    checkpoint: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
    quiet: bool = False,
) -> EvalResult:
    """Clean and worst-case robust accuracy of a model of pixels in [0, 1].

    `model`: an nn.Module or any callable; `data`: a pair (x, y), a torch Dataset, a name or a path; `suite`: a name or
    a list of attacks. With `run`, outcomes are kept there per image and nothing is computed twice; `processes` of one
    thread each may then share the work, and so may those that torchrun starts. What fell in `smaller`, a result at a
    smaller eps, counts as fallen. `save_images` keeps every adversarial image; `quantized` ones have pixels in steps of
    1/255 and are judged so. Without `checks` the model isn't tried for signs of masked gradients beforehand.
    `checkpoint` and `notes` (warnings) go into the result as they are.
    """
    if not callable(model):
        raise UserError(f"model: an nn.Module or a callable, not {type(model).__name__}")
    if not isinstance(threat, LpBall):
        raise UserError(f"threat: a ball such as rv.LpBall('inf', 8 / 255), not {threat!r}")
    check_counts(batch_size=batch_size, processes=processes)
    if type(seed) is not int:
        raise UserError(f"seed: a whole number, not {seed!r}")
    if smaller is not None and not isinstance(smaller, EvalResult):
        raise UserError(f"smaller: a result of rv.evaluate, not {smaller!r}")
    if processes > 1 and launched().count > 1:
        raise UserError("processes: torchrun has started several already; give it more, and leave processes out")
    if processes > 1 and run is None:
        raise UserError("several processes share their outcomes through files: give a run folder")
    if save_images and run is None:
        raise UserError("save_images: adversarial images are saved below a run folder: give one")
    opening = {
        "model": model,
        "data": data,
        "split": split,
        "images": images,
        "threat": threat,
        "seed": seed,
        "batch_size": batch_size,
        "device": device,
        "quantized": quantized,
    }
    subject = open_subject(**opening)
    beside = None
    if (control := control_of(suite_from(suite))) is not None:
        same = {key: value for key, value in opening.items() if key not in ("model", "data")}
        beside = evaluate(
            model, data, suite=control, run=run, processes=processes, checks=False, checkpoint=checkpoint, quiet=quiet,
            **same,
        )  # fmt: skip
    with subject.ready():
        subject.check()
        wanted, given_way = suite_from(suite).fitted(subject.num_classes, threat)
        subject.warnings.extend([*notes, *given_way])
        check_scaling(wanted, subject)
        sha256 = subject.fingerprint()
        carried = carried_from(smaller, subject, wanted, sha256)
        identity = {
            "model": sha256,
            "behaviour": subject.behaviour(),
            "data": data_fingerprint(subject.images, subject.indices),
            "threat": to_dict(threat),
            "suite": wanted.to_dict(),
            "seed": seed,
            **({"quantized": True} if quantized else {}),
            **({"smaller": list(carried.smaller_eps)} if carried.smaller_eps else {}),
        }
        folder = None if run is None else _folder(RunFolder(Path(run)), wanted, threat, identity)
        shard = launched() if folder is not None else Shard()
        with ExitStack() as stack:
            stack.enter_context(_alone(folder, shard))
            if folder is not None and shard.rank == 0:
                _check_identity(folder, identity)
            attention = None
            if scales_attention(wanted):
                wanted, attention = stack.enter_context(_scaled(wanted, subject, folder, shard, quiet))
                if beside is not None:
                    attention["control"] = _in_short(beside)
            task = _Task(opening, wanted, carried, folder, save_images, quiet)
            made = _made_here(shard.count * processes, 1 if processes > 1 else torch.get_num_threads())
            ledger = Ledger(folder, shard.rank)
            finished = (
                folder is not None and is_file(folder / "result.json") and is_complete(ledger, wanted, subject, carried)
            )
            if folder is not None and finished:
                stored = _stored(folder, made, attention)
                made = {key: stored[key] for key in made}
            else:
                if checks and shard.rank == 0:
                    subject.warnings.extend(signs_before(subject, wanted))
                subject.warnings.extend(_note_session(folder, shard, made))
                ledger = task.compute(subject, ledger, shard, processes)
            unsaved = []
            if save_images and folder is not None and shard.rank == 0 and not is_file(folder / FILE):
                unsaved = _save_images(task, subject, ledger, smaller, sha256)
                subject.warnings.extend(unsaved)
            result = summarise(
                subject, wanted, ledger, carried, sha256=sha256, checkpoint=checkpoint, folder=folder, made=made,
                attention=attention,
            )  # fmt: skip
            if finished:
                result = replace(result, warnings=(*stored["warnings"], *unsaved))
                if folder is not None and unsaved:
                    write_json(folder / "result.json", result.to_dict())
            elif folder is not None and shard.rank == 0:
                write_json(folder / "result.json", result.to_dict())
    return result


@dataclass(frozen=True)
class _Task:
    """What every process of an evaluation is told."""

    opening: dict[str, Any]
    """Arguments of `open_subject`."""
    suite: Suite
    carried: Carried
    folder: Path | None
    save_images: bool
    quiet: bool
    sample: tuple[int, ...] | None = None
    """None: the stages that all images meet; else those of the sample, for these images."""

    def compute(self, subject: Subject, ledger: Ledger, shard: Shard, processes: int) -> Ledger:
        """All images, then the sample of the survivors, by all processes; the ledger of them all."""
        ledger = self._by_all(subject, ledger, shard, processes)
        if not self.suite.sampled:
            return ledger
        sample = sample_of(ledger, self.suite, subject, self.carried)
        assert sample is not None, "every process has come to its end"
        return replace(self, sample=sample.images)._by_all(subject, ledger, shard, processes)

    def _by_all(self, subject: Subject, ledger: Ledger, shard: Shard, processes: int) -> Ledger:
        if processes > 1 and self.folder is not None:
            run_processes(processes, _work, {"task": self}, self.folder)
            return Ledger(self.folder)
        self.run_share(subject, ledger, shard)
        wait_for_all(shard)
        return Ledger(self.folder, shard.rank) if shard.count > 1 else ledger

    def run_share(self, subject: Subject, ledger: Ledger, shard: Shard) -> None:
        first = shard.rank == 0
        sinks: list[Sink] = []
        if self.folder is not None and first:
            sinks.append(Examples(self.folder / "examples.npz", subject.logits))
        if self.folder is not None and self.save_images:
            sinks.append(Saver(self.folder))
        share = replace(subject, indices=shard.of(subject.indices))
        if self.sample is None:
            run_suite(share, self.suite, ledger, sinks, self.carried, self.quiet or not first)
        else:
            run_sample(share, self.suite, ledger, sinks, self.sample, self.quiet or not first)


def _work(*, shard: Shard, task: _Task) -> None:
    """One of several processes: its share of the images, into a ledger of its own."""
    subject = open_subject(**task.opening)
    with subject.ready():
        subject.check()
        task.run_share(subject, Ledger(task.folder, shard.rank), shard)


def _save_images(task: _Task, subject: Subject, ledger: Ledger, smaller: EvalResult | None, sha256: str) -> list[str]:
    """What fell and wasn't kept when it did (an evaluation made before without saving) falls once more."""
    assert task.folder is not None
    saver = Saver(task.folder)
    if smaller is not None and smaller.folder is not None:
        carry_saved(Path(smaller.folder), saver, set(task.carried.images))
    known = saver.known()
    missing = [i for i in subject.indices.tolist() if i not in known]
    attack_again(subject, task.suite, ledger, saver, missing)
    return write_saved(task.folder, saver, subject, task.suite, sha256)


@contextmanager
def _scaled(
    suite: Suite, subject: Subject, folder: Path | None, shard: Shard, quiet: bool
) -> Iterator[tuple[Suite, dict[str, Any]]]:
    """The suite with its attention factors, which the first process searches for and the others read."""
    if shard.rank == 0:
        suite, facts = with_factors(suite, subject, folder, quiet)
    wait_for_all(shard)
    if shard.rank > 0:
        suite, facts = with_factors(suite, subject, folder, quiet=True)
    with judged(suite, subject, facts) as at_work:
        yield at_work, facts


def _stored(folder: Path, made: dict[str, Any], attention: dict[str, Any] | None) -> dict[str, Any]:
    """The result of before, which is what the ledger and the factors beside it say."""
    path = folder / "result.json"
    stored = read_json(path)
    if not isinstance(stored, dict) or any(key not in stored for key in (*made, "warnings")):
        raise UserError(f"{path}: not a whole result; remove it to have it written anew from the ledger")
    before = stored.get("attention") or {}
    if attention is not None and before.get("searches") != attention["searches"]:
        raise UserError(f"{path}: was made with other factors than factors.json beside it holds; remove the folder")
    return stored


def _in_short(result: EvalResult) -> dict[str, Any]:
    """A result beside another."""
    told = result.to_dict()
    cost = {key: sum(vars(attack)[key] for attack in result.attacks) for key in ("seconds", "passes")}
    return {**{key: told[key] for key in ("suite", "clean_accuracy", "robust_accuracy", "interval")}, **cost}


def _made_here(processes: int, threads: int) -> dict[str, Any]:
    """What the numbers of this call are made with."""
    return {"processes": processes, "threads": threads, "versions": versions(), "command": command()}


def _note_session(folder: Path | None, shard: Shard, made: dict[str, Any]) -> list[str]:
    """Remember who computes here; a warning if others before did so in another way."""
    if folder is None:
        return []
    journal = Journal(folder / "sessions.jsonl")
    before = journal.repair()
    if shard.rank == 0:
        journal.append([made])
    other = [key for key in ("threads", "versions") if any(row.get(key) != made[key] for row in before)]
    return [f"made in several sessions that differ in {' and '.join(other)}; see sessions.jsonl"] if other else []


def open_subject(
    model: Classifier,
    data: Any,
    split: Split,
    images: int | None,
    threat: LpBall,
    seed: int,
    batch_size: int,
    device: str | None,
    quantized: bool = False,
) -> Subject:
    """Data opened, images chosen, the model on its device."""
    opened = images_from(data, split)
    indices, rule = choose_images(opened, images, seed)
    place = checked_device(device or model_device(model) or "cpu")
    return Subject(model, opened, indices, threat, seed, batch_size, place, images_rule=rule, quantized=quantized)


@contextmanager
def _alone(folder: Path | None, shard: Shard) -> Iterator[None]:
    """The lock is held by the first process of a launch; the others wait until it has it."""
    if folder is not None and shard.rank == 0:
        with locked(folder / ".lock", "evaluating"):
            wait_for_all(shard)
            yield
    else:
        wait_for_all(shard)
        yield


def _folder(run: RunFolder, suite: Suite, threat: LpBall, identity: dict[str, Any]) -> Path:
    words = f"{suite.name}-{threat.norm}-{format_fraction(threat.eps)}"
    return run.evaluations / f"{re.sub(r'[^A-Za-z0-9.=+-]+', '_', words)[:80]}-{hash8(identity)}"


def _check_identity(folder: Path, identity: dict[str, Any]) -> None:
    path = folder / "identity.json"
    if not path.exists():
        write_json(path, identity)
    elif (found := read_json(path)) != identity:
        differs = ", ".join(key for key in identity if found.get(key) != identity[key])
        raise UserError(f"{folder}: holds an evaluation with another {differs}; choose another --run folder")
