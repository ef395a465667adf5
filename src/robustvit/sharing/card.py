"""The model card: what was measured, against which threat, by which protocol, with intervals and caveats.

The numbers are in the metadata, too, in the form that the hub reads (`model-index`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robustvit.core.config import validated
from robustvit.core.errors import UserError
from robustvit.core.figures import percent
from robustvit.core.numbers import NonNegative, counted, format_fraction
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result
from robustvit.core.summary import measure_text
from robustvit.models.create import describe
from robustvit.models.hub import RECIPE
from robustvit.models.normalize import Normalized
from robustvit.models.reference import ModelRef
from robustvit.models.zoo import PREFIX, zoo_card
from robustvit.objectives.base import AnyObjective, trains_on_attacked

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TASK = "image-classification"


def model_card(
    ref: ModelRef, model: Normalized, results: Sequence[Result], repository: str, license: str | None, not_in_timm: str
) -> str:
    """README.md: metadata, then text; `not_in_timm` is the reason why timm can't load the model, if it can't."""
    from huggingface_hub import ModelCardData

    name = repository.rpartition("/")[2]
    data = ModelCardData(
        model_name=name,
        license=license,
        library_name="robustvit" if not_in_timm else "timm",
        pipeline_tag=_TASK,
        tags=["robustvit", "adversarial-robustness", _TASK],
        metrics=["accuracy"],
        eval_results=[entry for result in results for entry in eval_results(result)],
    )
    parts = [
        f"# {_plain(name)}\n\n{_about(ref, model)}",
        f"## Robustness\n\n{_table(results)}",
        f"## Protocol\n\n{_items(line for result in results for line in _protocol(result))}",
        f"## Caveats\n\n{_items(_caveats(ref, results))}",
        f"## Use\n\n{_use(repository, model, not_in_timm)}",
    ]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def eval_results(result: Result) -> "list[EvalResult]":
    """An entry for each fraction of images, with its interval and all that the number depends on."""
    from huggingface_hub import EvalResult

    provenance = result.provenance
    data, _, split = provenance.data.rpartition("/")
    common = {
        "suite": result.suite,
        "images": provenance.num_images,
        "images_rule": provenance.images_rule,
        "data_sha256": provenance.data_sha256,
        "seed": provenance.seed,
    }
    attacked = {"norm": result.threat.norm, "eps": result.threat.eps} if result.threat is not None else {}
    if head := provenance.model.get("head"):
        common |= {"head": head}
    return [
        EvalResult(
            task_type=_TASK,
            dataset_type=re.sub(r"[^\w./-]+", "-", data or provenance.data),
            dataset_name=data or provenance.data,
            dataset_split=split if data else None,
            metric_type="accuracy",
            metric_value=measure.value,
            metric_name=_metric_name(result, measure),
            metric_args={
                **common,
                **({} if measure.name == CLEAN_ACCURACY else attacked),
                **({"interval_95": list(measure.interval)} if measure.interval else {}),
            },
        )
        for measure in result.measures
        if measure.is_fraction and not measure.is_detail
    ]


def _metric_name(result: Result, measure: Measure) -> str:
    words = measure.name.replace("_", " ")
    return words if measure.name == CLEAN_ACCURACY else f"{words} ({_question(result)})"


def _question(result: Result) -> str:
    return result.suite if result.threat is None else f"{result.suite} at {result.threat}"


def _about(ref: ModelRef, model: Normalized) -> str:
    settings = describe(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = (
        f"{_plain(settings['name'])} with {parameters / 1e6:.3g} M parameters for {settings.get('num_classes')} "
        f"classes on images of {settings.get('img_size')} pixels."
    )
    recipe = ref.recipe or {}
    if not recipe.get("name"):
        return text
    text += f" Trained by the recipe {_plain(str(recipe['name']))} (`{RECIPE}`)"
    data, threat, objectives = recipe.get("data"), recipe.get("threat"), list(_objectives(recipe))
    names = [str(objective.get("name")) if isinstance(objective, dict) else str(objective) for objective in objectives]
    text += f" on {_plain(str(data.get('name')))}" if isinstance(data, dict) else ""
    text += f" with {', then '.join(map(_plain, dict.fromkeys(names)))}" if names else ""
    if not isinstance(threat, dict) or not threat.get("eps"):
        return f"{text}."
    eps = validated(NonNegative, threat["eps"], "recipe.threat.eps")
    ball = f"L{_plain(str(threat.get('norm', 'inf')))} {format_fraction(eps)}"
    try:
        made = [validated(AnyObjective, objective, "objective") for objective in objectives]
    except UserError as error:  # of a package that isn't installed, or of another version
        reason = _plain(str(error).partition(";")[0])
        return f"{text}. Whether it was trained against {ball} is not known here ({reason})."
    return f"{text} against {ball}." if any(map(trains_on_attacked, made)) else f"{text}."


def _objectives(recipe: Mapping[str, Any]) -> Iterator[Any]:
    """Of every phase, and of the turns that a phase alternates, as the recipe writes them."""
    for phase in recipe.get("phases") or [recipe]:
        for turn in (phase.get("alternate") or [phase]) if isinstance(phase, dict) else []:
            if isinstance(turn, dict) and turn.get("objective") is not None:
                yield turn["objective"]


def _table(results: Iterable[Result]) -> str:
    rows = ["| data | evaluation | images | measure | value (95 % interval) |", "| --- | --- | --- | --- | --- |"]
    for result in results:
        doubt = " (doubtful, see below)" if result.is_doubtful else ""
        for measure in result.measures:
            if not measure.is_detail:
                cells = (
                    result.provenance.data,
                    _question(result),
                    str(result.num_images),
                    measure.name.replace("_", " "),
                )
                rows.append(f"| {' | '.join(map(_plain, cells))} | {measure_text(measure)}{doubt} |")
    return "\n".join(rows)


def _protocol(result: Result) -> Iterable[str]:
    provenance = result.provenance
    attacks = ", ".join(stage.name for stage in result.stages)
    stages = (
        f" {counted(len(result.stages), 'attack')} in order ({_plain(attacks)}), each on what the others left;"
        if attacks
        else ""
    )
    quantized = " images rounded to 8 bits;" if provenance.settings.get("quantized") else ""
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    yield (
        f"**{_plain(_question(result))}**:{stages}{quantized} {counted(result.num_images, 'image')} of "
        f"{_plain(provenance.data)} "
        f"({_plain(provenance.images_rule)}), seed {provenance.seed}, {provenance.precision}; "
        f"{versions}."
    )


def _caveats(ref: ModelRef, results: Sequence[Result]) -> Iterable[str]:
    if any(result.threat is not None and result.stages for result in results):
        yield (
            "Robust accuracy is an upper bound: an image counts as robust if none of these attacks fooled the model; "
            "stronger ones may. It holds for the threat that is named, and says nothing of other perturbations."
        )
        yield "Every adversarial image was checked apart from the attack: inside the ball, in [0, 1], misclassified."
    yield "Intervals are for the choice of images, not for another training with another seed."
    if rule := ref.checkpoint.get("rule"):
        yield f"These weights were chosen by this rule: {_plain(str(rule))}."
    if ref.source.startswith(PREFIX):
        yield zoo_card(ref.source).limits
    for result in results:
        for note in result.notes:
            yield f"{_plain(_question(result))}: {_plain(note)}"
        for warning in result.warnings:
            yield f"**Warning** ({_plain(_question(result))}): {_plain(str(warning))}"
        bound = result.details.get("bound", {}).get("robust_accuracy_at_least")
        if bound is not None:
            lower = f"a sample met all attacks; by it, at least {percent(bound)} of all images are robust"
            yield f"{_plain(_question(result))}: {lower}."


def _use(repository: str, model: Normalized, not_in_timm: str) -> str:
    text = (
        f'```python\nimport robustvit as rv\n\nmodel = rv.load_model("hf_hub:{repository}")  # of pixels in [0, 1]\n```'
        "\n\nTo evaluate it again: `robustvit evaluate hf_hub:" + repository + " --data ... --suite ... --eps ...`."
    )
    if not_in_timm:
        return f"{text}\n\nOnly robustvit loads it: {_plain(not_in_timm)}."
    mean, std = ([round(value, 6) for value in values] for values in model.normalization)
    return (
        f"{text}\n\ntimm alone loads it as well, for images normalized with mean {mean} and std {std}:\n\n```python\n"
        f'import timm\n\nmodel = timm.create_model("hf_hub:{repository}", pretrained=True).eval()\n```'
    )


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


def _plain(text: str) -> str:
    """Names come from files: nothing in them becomes markup."""
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", " ".join(text.split()))
