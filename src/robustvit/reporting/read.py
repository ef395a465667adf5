"""The files of run folders as plain values; nothing in them is trusted."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from robustvit.core.card import FILE as CARD, PAGE as CARD_PAGE
from robustvit.core.errors import UserError
from robustvit.core.examples import EXAMPLES, Examples, read_examples
from robustvit.core.journal import Row
from robustvit.core.readers import MOST_YAML, parse_yaml, read_bytes, read_json
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result, ResultWarning, ThreatInfo
from robustvit.core.result_files import FILE, read_result
from robustvit.core.run import RunFolder

REPORT = "report.html"
"""What a page is called unless another name is given."""
_PAGES = (REPORT, CARD, CARD_PAGE)


@dataclass(frozen=True)
class Evaluation:
    """A result and the pictures next to it."""

    folder: Path
    result: Result
    examples: Examples | None
    problems: tuple[ResultWarning, ...]
    """Why there are no pictures."""

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        return (*self.result.warnings, *self.problems)

    @property
    def fits_table(self) -> bool:
        """Whether the columns of the table of attacks, clean and robust accuracy, hold its numbers."""
        names = {measure.name for measure in self.result.measures}
        attacked = bool(self.result.stages) or names == {CLEAN_ACCURACY}
        return self.result.threat is not None and CLEAN_ACCURACY in names and attacked

    @property
    def threat(self) -> ThreatInfo:
        return self.result.threat or ThreatInfo("", 0.0, "")

    @property
    def clean(self) -> Measure:
        return self.result.measure(CLEAN_ACCURACY)

    @property
    def robust(self) -> Measure:
        return self.result.headline

    @property
    def checkpoint(self) -> str:
        """Its name, such as `last`; empty where the weights were in no file."""
        return Path(str(self.result.provenance.checkpoint.get("path") or "")).stem

    @property
    def head(self) -> str:
        """Of a model with several; empty: its output."""
        return str(self.result.provenance.model.get("head") or "")

    @property
    def weights(self) -> str:
        checkpoint = self.result.provenance.checkpoint
        return str(checkpoint.get("weights_sha256") or checkpoint.get("sha256"))

    @property
    def data(self) -> tuple[str, str, str]:
        """Title, rule and fingerprint of the images: other images may have the same title."""
        provenance = self.result.provenance
        return provenance.data, provenance.images_rule, provenance.data_sha256

    @property
    def family(self) -> tuple[str, str, tuple[str, str, str]]:
        """Accuracies may be compared only where all of this is the same, and ranked only at the same eps."""
        return self.result.suite, self.threat.norm, self.data

    @property
    def carried(self) -> int:
        """Images that were fooled at a smaller eps of the same curve and met no stage here."""
        return int(self.result.details.get("curve", {}).get("carried", 0))


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    """The folder's name, with as much of its path as distinguishes it from the other runs."""
    recipe: str
    settings: dict[str, Any]
    """Of the recipe; empty where it can't be read."""
    environment: dict[str, Any]
    metrics: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]
    unfinished: tuple[str, ...]
    """Folders of evaluations that have no result yet."""
    is_trained: bool
    group: str = ""
    """A label that several runs may have."""

    @property
    def recipe_name(self) -> str:
        return str(self.settings.get("name", ""))

    @property
    def has_rivals(self) -> bool:
        """Whether several of its checkpoints were evaluated."""
        return len({evaluation.weights for evaluation in self.evaluations}) > 1

    def weights_name(self, evaluation: Evaluation) -> str:
        """Such as `last checkpoint`, with a piece of the checksum if that alone could mean several."""
        named = evaluation.checkpoint, evaluation.head
        same_name = {other.weights for other in self.evaluations if (other.checkpoint, other.head) == named}
        model = str(evaluation.result.provenance.checkpoint.get("name") or "")
        words = [f"{evaluation.checkpoint} checkpoint"] if evaluation.checkpoint else [model] if model else []
        words += [f"head {evaluation.head}"] if evaluation.head else []
        return " ".join(words + ([evaluation.weights[:6]] if len(same_name) > 1 else []))

    @property
    def has_training(self) -> bool:
        return any(row.get("kind") == "train" for row in self.metrics)


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Each run once, in the order given."""
    # `runs/*` also names the pages that were written there before
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths if Path(path).name not in _PAGES))
    if not folders:
        raise UserError("report: name at least one run folder, such as runs/digits-trades")
    return [_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def _names(folders: list[Path]) -> list[str]:
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _run(path: Path, name: str) -> Run:
    folder = RunFolder(path)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path}: {what}; a report takes run folders, such as robustvit train and evaluate write")
    results = sorted(folder.evaluations.glob(f"*/{FILE}"))
    if not (folder.metrics.path.exists() or results or any(folder.analyses.glob("*/finding.json"))):
        missing = "it holds neither metrics.jsonl nor eval/*/result.json"
        raise UserError(f"{path}: not a run folder, {missing}{_runs_inside(path)}")
    recipe = read_bytes(folder.recipe, MOST_YAML).decode("utf-8", "replace") if folder.recipe.exists() else ""
    environment = {}
    if folder.environment.exists():
        remedy = "remove it to have a report without the command"
        environment = read_json(folder.environment, TypeAdapter(dict[str, Any]), "description of a machine", remedy)
    ledgers = folder.evaluations.glob("*/ledger-*.jsonl")
    begun = sorted({ledger.parent for ledger in ledgers} - {result.parent for result in results})
    return Run(
        path=path,
        name=name,
        recipe=recipe,
        settings=_settings(recipe),
        environment=environment,
        metrics=tuple(folder.metrics.read()),
        evaluations=_evaluations([result.parent for result in results]),
        unfinished=tuple(folder.name for folder in begun),
        is_trained=(folder.checkpoints / "last.safetensors").exists(),
        group=folder.read_group(),
    )


def _evaluations(folders: Sequence[Path]) -> tuple[Evaluation, ...]:
    """All but those that another names as its control: it shows them with its own numbers."""
    evaluations = [Evaluation(folder, read_result(folder), *_examples(folder / EXAMPLES)) for folder in folders]
    controls = {one.result.control.folder for one in evaluations if one.result.control is not None}
    return tuple(evaluation for evaluation in evaluations if evaluation.folder.name not in controls)


def _runs_inside(path: Path) -> str:
    folders = [RunFolder(child) for child in sorted(path.iterdir())]
    inside = [str(folder.path) for folder in folders if folder.metrics.path.exists() or folder.evaluations.is_dir()]
    return f"; did you mean {' '.join(inside[:3])}?" if inside else ""


def _settings(recipe: str) -> dict[str, Any]:
    try:
        settings = parse_yaml(recipe, "recipe")
    except UserError:
        return {}
    return settings if isinstance(settings, dict) and all(isinstance(name, str) for name in settings) else {}


def _examples(path: Path) -> tuple[Examples | None, tuple[ResultWarning, ...]]:
    """The pictures are an extra: damaged ones cost a warning, not the page."""
    if not path.exists():
        return None, ()
    try:
        examples = read_examples(path)
    except UserError:
        observation = f"{path.name} is damaged: no pictures of this evaluation"
        return None, (ResultWarning("no-pictures", observation, "to have them, evaluate into another run folder"),)
    return (examples if len(examples) else None), ()


_LARGEST = 1e100
"""Sums and differences of a few such numbers are finite."""


def finite(value: Any) -> float | None:
    """The number, or None for null, NaN, what is too large for a chart and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        return None
    return float(value)


def common_folder(runs: Sequence[Path]) -> Path:
    """Where a page about these runs lies: in the only one, or in the folder around them all."""
    folders = {path.resolve() for path in runs}
    return runs[0] if len(folders) == 1 else Path(os.path.commonpath([path.parent for path in folders]))
