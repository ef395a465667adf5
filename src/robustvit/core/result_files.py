"""A result on disk: result.json, and the outcomes of its images as arrays next to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from robustvit.core.checksum import with_checksum, without_checksum
from robustvit.core.errors import UserError, short_repr
from robustvit.core.files import write_arrays, write_json
from robustvit.core.outcomes import OUTCOMES, read_outcomes
from robustvit.core.readers import conforming, read_json
from robustvit.core.result import CLEAN_ACCURACY, ROBUST_ACCURACY, VERSION, Result

FILE = "result.json"


def write_result(folder: Path, result: Result) -> None:
    """The outcomes first: a result.json means that all is there."""
    write_arrays(folder / OUTCOMES, result.outcomes.arrays())
    write_json(folder / FILE, with_checksum(result.to_dict(), result.outcomes.arrays()))


def read_result(folder: Path) -> Result:
    """The result stored in the folder of an evaluation."""
    path, remedy = folder / FILE, f"remove {FILE} to have it written anew from the ledger"
    content = read_json(path, TypeAdapter(dict[str, Any]), "whole result", remedy)
    if content.get("version") != VERSION:
        version = short_repr(content.get("version"))
        raise UserError(f"{path}: not a whole result of version {VERSION} (but {version}); {remedy}")
    outcomes = read_outcomes(folder, remedy)
    result = conforming({**_with_kinds(content), "outcomes": outcomes}, _ADAPTER, path, "whole result", remedy)
    problem = _contradiction(result)
    if problem:
        raise UserError(f"{path}: {problem}; {remedy}")
    without_checksum(content, path, remedy, outcomes.arrays())
    return replace(result, folder=str(folder))


def _with_kinds(content: Any) -> Any:
    """Files from before measures had a kind: their names tell it."""
    if isinstance(content, list):
        return [_with_kinds(one) for one in content]
    if not isinstance(content, dict):
        return content
    named = {key: _with_kinds(value) for key, value in content.items() if key in ("measures", "control")}
    if "name" in content and "value" in content and "kind" not in content:
        named["kind"] = _kind_by_name(str(content["name"]))
    return {**content, **named}


def _kind_by_name(name: str) -> str:
    if name in ("shape_bias", "texture_accuracy", "other_models_accuracy"):
        return "fraction"
    if name == "drop_from_clean_accuracy":
        return "difference"
    return "accuracy" if name.endswith("accuracy") else "number"


def _contradiction(result: Result) -> str:
    """Where result.json and outcomes.npz don't say the same."""
    if not result.measures:
        return "it has no measures"
    if result.provenance.num_images != result.num_images:
        return f"it speaks of {result.provenance.num_images} images, {OUTCOMES} of {result.num_images}"
    known = result.outcomes.arrays()
    if "under" in known:
        said, held = [one.accuracy for one in result.conditions], known["under"].mean(0).tolist()
        if said != held:
            return f"its {len(said)} conditions have other accuracies than {OUTCOMES} holds of {len(held)}"
    if result.threat is None:
        return ""
    for name, key in ((CLEAN_ACCURACY, "correct"), (ROBUST_ACCURACY, "robust")):
        if result.has(name):
            value = float(known[key].mean()) if key in known else float("nan")
            if not abs(result.measure(name).value - value) <= 1e-9:
                return f"it says {name} {result.measure(name).value:.6g}, {OUTCOMES} says {value:.6g}"
    return ""


_ADAPTER: TypeAdapter[Result] = TypeAdapter(Result)


def control_of(result: Result) -> Result | None:
    """The control that it names: as it was made, or from the folder next to its own."""
    named = result.control
    if result.control_result is not None or named is None or named.folder is None or result.folder is None:
        return result.control_result
    return read_result(Path(result.folder).parent / named.folder)
