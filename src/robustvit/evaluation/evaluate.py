"""A model and data in, a result out; with a run folder, killed at any moment, the same call resumes."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from robustvit.attacks.base import Classifier
from robustvit.core.component import build, explaining, is_component, registered
from robustvit.core.errors import UserError, check_counts, short_repr
from robustvit.core.result import Result, ResultWarning
from robustvit.core.world import World
from robustvit.data.base import Dataset, Split
from robustvit.evaluation.attacked import Attacked
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.evaluator import Evaluator
from robustvit.evaluation.given import resolve_given
from robustvit.evaluation.saved import in_memory_only
from robustvit.evaluation.subject import open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.evaluation.suite_names import settings_after_colon, yaml_value
from robustvit.models import ModelRef
from robustvit.threats import LpBall


def evaluate(
    model: Classifier | str | Path | ModelRef,
    data: Any = None,
    *,
    suite: Any = "pgd-20",
    threat: LpBall | None = None,
    head: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    split: Split = "test",
    images: int | None = None,
    device: str = "auto",
    processes: int | None = 1,
    smaller: Result | None = None,
    save_images: bool = False,
    quantized: bool = False,
    checks: bool = True,
    checkpoint: dict[str, Any] | None = None,
    warnings: Sequence[ResultWarning] = (),
    quiet: bool = False,
    world: World | None = None,
) -> Result:
    """Clean and worst-case robust accuracy of a model of pixels in [0, 1], or what another evaluator measures.

    `model`: an nn.Module, any callable, or what `resolve_model` takes, such as a run folder, whose data and threat are
    the defaults; `data`: a pair (x, y), a torch Dataset, a name or a path, unless the suite brings it; `suite`: a
    name, a list of attacks, or an evaluator. With `run`, outcomes are kept there per image and nothing is computed
    twice; `processes` of one thread each may then share the work (None: as many as pay off), and so may those of a
    `world`. What was fooled in `smaller`, a result at a smaller eps, counts as fooled. `save_images` keeps every
    adversarial image (`result.adversarial()`); `quantized` ones have pixels in steps of 1/255 and are judged so.
    `head` names the output that is attacked and judged, of a model with several. Without `checks` the model isn't
    probed for signs of masked gradients. `checkpoint` and `warnings` go into the result as they are.
    """
    check_counts(batch_size=1 if batch_size is None else batch_size, processes=1 if processes is None else processes)
    _check_arguments(seed=seed, run=run, world=world, checkpoint=checkpoint, warnings=warnings)
    if world is not None and device == "auto":
        device = world.device
    own = own_data(suite)
    if own is not None and data is not None:
        raise UserError(f"data: {suite_name(suite)} has images of its own; leave the data out")
    given = resolve_given(model, data if own is None else own, threat, head)
    evaluator = evaluator_from(suite, given.threat, quantized)
    options: dict[str, Any] = {"split": split, "images": images, "seed": seed, "batch_size": batch_size}
    subject = open_subject(given.model, given.data, device=device, quiet=quiet, **options)
    checkpoint, warnings = checkpoint or given.checkpoint, (*warnings, *given.warnings)
    with nullcontext(run) if run is not None or not save_images else TemporaryDirectory() as folder:
        path = None if folder is None else Path(folder)
        job = Job(path, processes, checks, save_images, smaller, checkpoint, warnings)
        result = evaluate_subject(subject, evaluator, job, world or World())
        return result if run is not None or not save_images else in_memory_only(result)


def _check_arguments(**given: Any) -> None:
    if type(given["seed"]) is not int:
        raise UserError(f"seed: a whole number, not {given['seed']!r}")
    if isinstance(given["run"], str) and not given["run"]:
        raise UserError("run: the name of a folder, not ''; leave it out to keep nothing")
    warnings = given["warnings"]
    if isinstance(warnings, str) or not all(isinstance(one, ResultWarning) for one in warnings):
        raise UserError(f"warnings: a list of ResultWarning, not {short_repr(warnings)}")
    kinds: dict[str, tuple[Any, str]] = {
        "run": (str | Path, "a folder"), "world": (World, "a World"), "checkpoint": (dict, "facts by name")
    }  # fmt: skip
    for name, (kind, expected) in kinds.items():
        if given[name] is not None and not isinstance(given[name], kind):
            raise UserError(f"{name}: {expected}, not {short_repr(given[name])}")


def evaluator_from(suite: Any, threat: LpBall | None, quantized: bool = False) -> Evaluator:
    """A registered evaluator by name, settings or instance; anything else is a suite of attacks."""
    if threat is not None and not isinstance(threat, LpBall):
        raise UserError(f"threat: a ball such as rv.LpBall('inf', 8 / 255), not {threat!r}")
    named = named_evaluator(suite)
    if named is None:
        attacks = suite_from(suite)  # first: a name that means nothing needs no threat
        return Attacked(threat=_needed(threat), suite=attacks, quantized=quantized)
    if quantized:
        raise UserError("quantized: a setting of attacks; leave it out, or give it to the evaluator itself")
    if not isinstance(named, Mapping):
        own = getattr(named, "threat", None)
        if None not in (own, threat) and own != threat:
            raise UserError(f"threat: the evaluator has {own} already, not {threat}; leave one of them out")
        return named
    if needs_threat(named):
        named = {**named, "threat": _needed(threat)}
    with explaining(str(named["name"])):
        return cast(Evaluator, build("evaluator", named))


def named_evaluator(value: Any) -> Evaluator | Mapping[str, Any] | None:
    """The settings of an evaluator that a text such as `accuracy:worst=true` or a map means, or an instance.

    None for a suite of attacks.
    """
    if isinstance(value, str):
        head = value.partition(":")[0]
        if head in registered("evaluator"):
            return {"name": head, **settings_after_colon(value)}
        value = yaml_value(value)
    if isinstance(value, Mapping):
        name = value.get("name")
        return value if isinstance(name, str) and name in registered("evaluator") else None
    return value if is_component(value, "evaluator") else None


def needs_threat(suite: Any) -> bool:
    """Whether an evaluation of this kind needs a threat to be given."""
    named = named_evaluator(suite)
    if named is None:
        suite_from(suite)  # refuses a name that means nothing
    if not isinstance(named, Mapping):
        return named is None and suite != "clean"
    return "threat" in registered("evaluator")[named["name"]].__dataclass_fields__ and "threat" not in named


def own_data(suite: Any) -> Dataset | None:
    """The images that an evaluator brings itself, such as those of ImageNet-R; None where the caller gives them."""
    named = named_evaluator(suite)
    if isinstance(named, Mapping):
        named = None if needs_threat(named) else evaluator_from(named, None)
    return getattr(named, "own_data", None)


def suite_name(suite: Any) -> str:
    """Of an evaluator, as it is registered."""
    named = named_evaluator(suite)
    return str(named["name"] if isinstance(named, Mapping) else getattr(named, "name", suite))


def _needed(threat: LpBall | None) -> LpBall:
    if threat is None:
        raise UserError("threat: how large a change is allowed? such as 8/255 (--eps 8/255, rv.LpBall('inf', 8 / 255))")
    return threat


def evaluate_curve(
    model: Classifier | str | Path | ModelRef, data: Any = None, *, threats: Sequence[LpBall | None], **options: Any
) -> list[Result]:
    """`evaluate` for each threat from the smallest eps on, sharing the work; each has a folder and a result of its own.

    `options` are those of `evaluate`.
    """
    if list(threats) == [None]:
        return [evaluate(model, data, threat=None, **options)]
    balls = [threat for threat in threats if isinstance(threat, LpBall)]
    if len(balls) < len(threats):
        raise UserError("threats: balls such as rv.LpBall('inf', 8 / 255)")
    if not balls or len({threat.norm for threat in balls}) > 1:
        raise UserError("threats: at least one, all of one norm")
    if len(balls) > 1 and named_evaluator(options.get("suite")) is not None:
        raise UserError("threats: several eps make a curve of attacks; this evaluator takes one")
    results: list[Result] = []
    for threat in sorted(set(balls), key=lambda threat: threat.eps):
        smaller = results[-1] if results else None
        results.append(evaluate(model, data, threat=threat, smaller=smaller, **options))
    return results
