"""What the files of run folders say, as plain values; nothing in them is trusted."""

import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robustvit.core.errors import UserError
from robustvit.core.files import Row, read_json, read_rows
from robustvit.core.run import RunFolder
from robustvit.reporting.notes import notes_beside

Interval = tuple[float, float]
REPORT = "report.html"
"""What a page is called unless told otherwise."""


@dataclass(frozen=True)
class Stage:
    """One attack of a suite; the accuracy is what it and those before it left standing."""

    name: str
    met: int
    """Images that those before it left standing."""
    fell: int
    unverified: int
    robust_accuracy: float
    seconds: float
    passes: float
    settings: Any
    counts: bool = True
    """Not on a sample alone."""


@dataclass(frozen=True)
class Examples:
    """Images that fell, n of them."""

    index: np.ndarray
    clean: np.ndarray
    """(n, 3, H, W) in [0, 1]."""
    adversarial: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    confidence_clean: np.ndarray
    """(n,) probability of the true label on the clean image."""
    confidence_adversarial: np.ndarray
    """(n,) probability of the predicted label on the adversarial image."""


@dataclass(frozen=True)
class Evaluation:
    folder: Path
    suite: str
    norm: str
    eps: float
    eps_text: str
    data: str
    num_images: int
    images_rule: str
    clean_accuracy: float
    clean_interval: Interval
    robust_accuracy: float
    interval: Interval
    stages: tuple[Stage, ...]
    carried: int
    """Images that fell at a smaller eps of the same curve and met no stage here."""
    settings: dict[str, Any]
    """Everything that the numbers depend on, as the result tells it."""
    command: str
    notes: tuple[str, ...]
    """What must be said beside the robust accuracy."""
    control: tuple[float, Interval] | None
    """What random attention factors leave, and its interval."""
    is_of_the_model: bool
    """Judged on the model as it is, and not on one with scaled attention."""
    warnings: tuple[str, ...]
    examples: Examples | None

    @property
    def threat(self) -> str:
        return f"L{self.norm} {self.eps_text}"

    @property
    def checkpoint(self) -> str:
        """Its name, such as `last`; empty where the weights were in no file."""
        return Path(str(self.settings["checkpoint"].get("path") or "")).stem

    @property
    def weights(self) -> str:
        told = self.settings["checkpoint"]
        return str(told.get("weights_sha256") or told.get("sha256"))

    @property
    def family(self) -> tuple[str, str, str, str]:
        """Accuracies may be compared only where all of this is the same, and ranked only at the same eps."""
        return (self.suite, self.norm, self.data, self.images_rule)

    @property
    def fell(self) -> int:
        return sum(stage.fell for stage in self.stages if stage.counts)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def passes(self) -> float:
        return sum(stage.passes for stage in self.stages)


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    """The folder's name, with as much of its path as tells it from the other runs."""
    recipe_name: str
    recipe: str
    environment: dict[str, Any]
    metrics: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]
    unfinished: tuple[str, ...]
    """Folders of evaluations that have no result yet."""
    is_trained: bool

    @property
    def has_rivals(self) -> bool:
        """Whether several of its checkpoints were evaluated."""
        return len({evaluation.weights for evaluation in self.evaluations}) > 1

    def weights_name(self, evaluation: Evaluation) -> str:
        """Such as `last checkpoint`, with a piece of the checksum if that alone could mean several."""
        named_so = {other.weights for other in self.evaluations if other.checkpoint == evaluation.checkpoint}
        model = str(evaluation.settings["checkpoint"].get("name") or "")
        words = [f"{evaluation.checkpoint} checkpoint"] if evaluation.checkpoint else [model] if model else []
        return " ".join(words + ([evaluation.weights[:6]] if len(named_so) > 1 else []))

    @property
    def has_training(self) -> bool:
        return any(row.get("kind") == "train" for row in self.metrics)


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Each run once, in the order given."""
    # `runs/*` also names the page that an earlier report wrote there
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths if Path(path).name != REPORT))
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
    results = sorted(folder.evaluations.glob("*/result.json"))
    analysed = any(folder.analyses.glob("*/finding.json"))
    if not folder.metrics.path.exists() and not results and not analysed:
        raise UserError(
            f"{path}: not a run folder, it holds neither metrics.jsonl nor eval/*/result.json{_runs_inside(path)}"
        )
    recipe = folder.recipe.read_text(encoding="utf-8", errors="replace") if folder.recipe.exists() else ""
    environment = path / "environment.json"
    ledgers = folder.evaluations.glob("*/ledger-*.jsonl")
    begun = sorted({ledger.parent for ledger in ledgers} - {result.parent for result in results})
    return Run(
        path=path,
        name=name,
        recipe_name=_recipe_name(recipe),
        recipe=recipe,
        environment=_map(read_json(environment)) if environment.exists() else {},
        metrics=tuple(row for row in read_rows(folder.metrics.path) if isinstance(row, dict)),
        evaluations=tuple(evaluation for result in results for evaluation in _evaluations(result)),
        unfinished=tuple(folder.name for folder in begun),
        is_trained=(folder.checkpoints / "last.safetensors").exists(),
    )


def _runs_inside(path: Path) -> str:
    inside = [
        child for child in sorted(path.iterdir()) if (child / "metrics.jsonl").exists() or (child / "eval").is_dir()
    ]
    return f"; did you mean {' '.join(str(child) for child in inside[:3])}?" if inside else ""


def _recipe_name(text: str) -> str:
    try:
        recipe = yaml.safe_load(text)
    except yaml.YAMLError:
        return ""
    return str(recipe.get("name", "")) if isinstance(recipe, dict) else ""


def _evaluations(path: Path) -> list[Evaluation]:
    """A file holds one result, or a list of them, such as one for each eps."""
    told = read_json(path)
    try:
        if told == []:
            raise ValueError("an empty list")
        return [_checked(path, one) for one in (told if isinstance(told, list) else [told])]
    except KeyError as error:
        problem = f"{error.args[0]} is missing"
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = str(error)
    raise UserError(f"{path}: not a whole result ({problem}); evaluate again to write it anew") from None


def _checked(path: Path, told: dict[str, Any]) -> Evaluation:
    threat = told["threat"]
    examples, problem = _examples(path.with_name("examples.npz"))
    return Evaluation(
        folder=path.parent,
        suite=str(told["suite"]),
        norm=str(threat["norm"]),
        eps=float(threat["eps"]),
        eps_text=str(threat["eps_text"]),
        data=str(told["data"]),
        num_images=int(told["num_images"]),
        images_rule=str(told["images_rule"]),
        clean_accuracy=_share(told["clean_accuracy"]),
        clean_interval=_interval(told["clean_interval"]),
        robust_accuracy=_share(told["robust_accuracy"]),
        interval=_interval(told["interval"]),
        stages=_stages(told),
        carried=sum(int(attack["fell"]) for attack in told["attacks"] if _is_carried(attack)),
        settings={
            "suite": told["suite"],
            "threat": {"norm": threat["norm"], "eps": threat["eps_text"]},
            "data": told["data"],
            "images": told["images_rule"],
            **{key: told[key] for key in ("seed", "precision")},
            **{key: told[key] for key in ("quantized", "processes") if key in told},
            **{key: told[key] for key in ("threads", "device")},
            **({"curve": told["curve"]} if "curve" in told else {}),
            **{key: _map(told[key]) for key in ("checkpoint", "model", "versions")},
        },
        command=str(told.get("command", "")),
        notes=notes_beside(told),
        control=_control(_map(_map(told.get("attention")).get("control"))),
        is_of_the_model=_map(told.get("attention")).get("protocol", "transfer") == "transfer",
        warnings=tuple(str(warning) for warning in told["warnings"]) + problem,
        examples=examples,
    )


def _control(told: dict[str, Any]) -> tuple[float, Interval] | None:
    return (_share(told["robust_accuracy"]), _interval(told["interval"])) if told else None


def _stages(told: dict[str, Any]) -> tuple[Stage, ...]:
    standing = round(_share(told["clean_accuracy"]) * int(told["num_images"]))
    stages = []
    for attack in told["attacks"]:
        if _is_carried(attack):
            standing -= int(attack["fell"])
            continue
        sampled = _map(attack["settings"]).get("sampled")
        stage = Stage(
            name=str(attack["name"]),
            met=standing if sampled is None else int(sampled),
            fell=int(attack["fell"]),
            unverified=int(attack["unverified"]),
            robust_accuracy=_share(attack["robust_accuracy"]),
            seconds=float(attack["seconds"]),
            passes=float(attack["passes"]),
            settings=attack["settings"],
            counts=sampled is None,
        )
        standing -= stage.fell if stage.counts else 0
        stages.append(stage)
    return tuple(stages)


def _is_carried(attack: dict[str, Any]) -> bool:
    return bool(_map(attack["settings"]).get("name") == "carried")


def _share(value: Any) -> float:
    share = float(value)
    if not 0 <= share <= 1:  # NaN compares false
        raise ValueError(f"{value!r} is not a share between 0 and 1")
    return share


def _interval(value: Any) -> Interval:
    low, high = value
    return _share(low), _share(high)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _examples(path: Path) -> tuple[Examples | None, tuple[str, ...]]:
    """The pictures are an extra: damaged ones cost a warning, not the page."""
    if not path.exists():
        return None, ()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            examples = Examples(**{name: arrays[name] for name in Examples.__dataclass_fields__})
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
        return None, (f"{path.name} is damaged: no pictures of this evaluation",)
    count = {len(getattr(examples, name)) for name in Examples.__dataclass_fields__}
    fits = (
        examples.clean.ndim == 4 and examples.clean.shape[1] == 3 and examples.clean.shape == examples.adversarial.shape
    )
    if len(count) > 1 or not fits:
        return None, (f"{path.name} holds arrays that don't fit each other: no pictures of this evaluation",)
    return (examples if examples.index.size else None), ()


def finite(value: Any) -> float | None:
    """The number, or None for null, NaN, infinity and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def common_folder(runs: Sequence[Run]) -> Path:
    """Where a page about these runs lies: in the only run, or in the folder around them all."""
    if len(runs) == 1:
        return runs[0].path
    return Path(os.path.commonpath([run.path.parent for run in runs]))
