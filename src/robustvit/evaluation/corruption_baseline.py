"""What a result on corruptions is compared with: another model's result, and what the model was trained with."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustvit.core.errors import UserError
from robustvit.core.files import is_file
from robustvit.core.numbers import counted
from robustvit.core.result import Measure, Result
from robustvit.core.result_files import FILE, read_result
from robustvit.data.augment.corruptions import Corruptions
from robustvit.data.corruptions.choice import chosen_names
from robustvit.evaluation.corruption_measures import CorruptionAnswers, condition_name
from robustvit.evaluation.ledger import Ledger

KIND = "corruptions"
_FREE = {"which", "severities", "baseline"}
"""Settings that two results may differ in."""


@dataclass(frozen=True)
class Baseline:
    """A result whose errors are those to be divided by, as mCE divides by AlexNet's."""

    folder: Path
    result: Result

    @classmethod
    def read(cls, folder: Path) -> "Baseline":
        if not is_file(folder / FILE):
            raise UserError(f"baseline: no {FILE} in '{folder}'; give the folder of a result, RUN/eval/corruptions-...")
        return cls(folder, read_result(folder))

    def check(
        self, names: Collection[str], severities: Sequence[int], settings: Mapping[str, Any], data_sha256: str
    ) -> None:
        """Refuse a result of other images, or without an error to divide by."""
        if self.result.kind != KIND:
            raise UserError(f"baseline: '{self.folder}' is a result of {self.result.kind}, not of {KIND}")
        if self.result.provenance.data_sha256 != data_sha256:
            raise UserError(f"baseline: '{self.folder}' is of other images ({self.result.provenance.data})")
        other = self.result.provenance.settings
        differs = [key for key in settings if key not in _FREE and other.get(key) != settings[key]]
        if differs:
            shown = ", ".join(f"{key}: {other.get(key)} (here {settings[key]})" for key in differs)
            raise UserError(f"baseline: '{self.folder}' has other settings, {shown}")
        known = {one.name for one in self.result.conditions}
        wanted = [condition_name(name, severity) for name in names for severity in severities]
        missing = next((name for name in wanted if name not in known), None)
        if missing is not None:
            raise UserError(f"baseline: '{self.folder}' has no condition '{missing}'")
        answers = self.answers(dict.fromkeys(names, ""), severities)
        perfect = next((name for name, errors in answers.errors.items() if not errors.any()), None)
        if perfect is not None:
            raise UserError(f"baseline: '{self.folder}' has no error under '{perfect}' to divide by")

    def answers(self, groups: Mapping[str, str], severities: Sequence[int]) -> CorruptionAnswers:
        """Of each image, by type and severity."""
        ledger = Ledger(self.folder)
        wanted = [condition_name(name, severity) for name in groups for severity in severities]
        answers = {name: ledger.answers(name) for name in wanted}
        missing = next((name for name, one in answers.items() if len(one.images) != self.result.num_images), None)
        if missing is not None:
            lacks = f"its ledger lacks images under '{missing}'"
            raise UserError(f"baseline: '{self.folder}' is not complete: {lacks}; evaluate that model again")
        return CorruptionAnswers(groups, severities, answers)

    def measure(self, found: CorruptionAnswers) -> Measure:
        model = self.result.provenance.checkpoint.get("name") or self.result.provenance.model["name"]
        types, other = counted(len(found.groups), "type"), f"{model} ({self.folder})"
        about = f"mean over {types} of the error over that of {other}, in percent"
        return found.relative_to(self.answers(found.groups, found.severities), about)


def trained_corruptions(recipe: Any) -> set[str]:
    """The types that augmentations of a recipe make, in whichever phase and inside of whichever augmentation."""
    names: set[str] = set()
    for key, value in _items(recipe):
        names |= _augmented_with(value) if key == "augmentation" else trained_corruptions(value)
    return names


def _augmented_with(tree: Any) -> set[str]:
    if isinstance(tree, str):
        tree = {"name": tree}
    names: set[str] = set()
    if isinstance(tree, Mapping) and tree.get("name") == KIND:
        names = set(chosen_names(tree.get("which", Corruptions().which)))
    parts = [value for key, value in _items(tree) if key not in ("name", "which")]
    return names.union(*map(_augmented_with, parts))


def _items(tree: Any) -> list[tuple[Any, Any]]:
    if isinstance(tree, list | tuple):
        return list(enumerate(tree))
    return list(tree.items()) if isinstance(tree, Mapping) else []
