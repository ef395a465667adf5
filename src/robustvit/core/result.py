"""The result of an evaluation: one versioned schema, written and read here; reports and tables read nothing else."""

import fnmatch
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, InstanceOf

from robustvit.core.adversarial import FILE as ADVERSARIAL, Adversarial
from robustvit.core.errors import UserError
from robustvit.core.figures import Figure, Heatmap, without_nan
from robustvit.core.files import is_file
from robustvit.core.measure import (
    Measure as Measure,
    accuracy_measure as accuracy_measure,
    mean_accuracy_measure as mean_accuracy_measure,
)
from robustvit.core.notebook import InNotebooks, Sheet
from robustvit.core.numbers import mcnemar_p_value, wilson_interval
from robustvit.core.outcomes import Outcomes as Outcomes
from robustvit.core.summary import headline_text, result_sheet, summary_text

VERSION = 1
CLEAN_ACCURACY, ROBUST_ACCURACY = "clean_accuracy", "robust_accuracy"
ORIGINAL_CLEAN_ACCURACY = "original_clean_accuracy"
"""Of the model as it is, where a changed one was judged."""
AT_CHANCE = "at-chance"
"""Names the warning of a clean accuracy no better than guessing."""
NOT_PUBLISHED = "not the published images"
"""In the title of data that has the name of a published set, but not its content."""
SIGNIFICANCE = 0.05

Accuracy = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Interval = tuple[Accuracy, Accuracy]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Images = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class ResultWarning:
    """A reason to doubt a number: what was observed, and what to do about it."""

    name: str
    observation: str
    advice: str = ""
    inflates: bool = False
    """Whether the true accuracy may be lower than the number; such a result is never called the highest."""

    def __str__(self) -> str:
        return f"{self.name}: {self.observation}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class ThreatInfo:
    """Which perturbations were allowed."""

    norm: str
    eps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    eps_text: str
    """As a fraction such as 8/255 where it is one."""

    def __str__(self) -> str:
        return f"L{self.norm} {self.eps_text}"


@dataclass(frozen=True)
class StageResult:
    """One attack of a suite."""

    name: str
    num_images: Images
    """That met it: all that earlier stages left, or a sample of them."""
    num_fooled: Images
    num_unverified: Images
    """Claimed by the attack and not confirmed by the re-check; they count as robust."""
    robust_accuracy: Accuracy
    """After this stage and all before it."""
    seconds: Cost
    passes: Cost
    """Forward and backward passes, counted per image."""
    settings: dict[str, Any]
    is_sampled: bool = False
    """Met a sample only: what it fooled counts, what it would have fooled of the others is bounded."""


@dataclass(frozen=True)
class ConditionResult:
    """Accuracy under one condition, without an attack."""

    name: str
    groups: tuple[str, ...]
    num_images: Images
    """That met it; with `worst`, those that were right under all before it."""
    accuracy: Accuracy | None
    """None where no image was left."""
    interval: Interval | None


@dataclass(frozen=True)
class Provenance:
    """Everything else that the numbers depend on."""

    data: str
    data_sha256: str
    num_images: Annotated[int, Field(ge=1)]
    images_rule: str
    seed: int
    precision: str
    device: str
    processes: int
    threads: int
    """Of each process."""
    model: dict[str, Any]
    checkpoint: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the evaluator."""
    command: str = ""
    class_names: tuple[str, ...] = ()
    """Of the data, where it has some."""


@dataclass(frozen=True)
class Control:
    """A second result to compare with: the same evaluation with chance in place of what was searched for."""

    name: str
    """Such as `random factors`."""
    title: str
    measures: tuple[Measure, ...]
    folder: str | None = None
    """Its folder, next to this result's."""


@dataclass(frozen=True, repr=False, eq=False)
class Result(InNotebooks):
    """The result of an evaluator over all requested images: robust accuracy, or accuracy under conditions."""

    kind: str
    """The evaluator's name."""
    title: str
    """Of the suite or the conditions."""
    measures: tuple[Measure, ...]
    provenance: Provenance
    outcomes: InstanceOf[Outcomes]
    threat: ThreatInfo | None = None
    stages: tuple[StageResult, ...] = ()
    conditions: tuple[ConditionResult, ...] = ()
    warnings: tuple[ResultWarning, ...] = ()
    notes: tuple[str, ...] = ()
    """What must be said next to the headline number: bounds, what was judged, what was searched for."""
    judges_original: bool = True
    """Whether outcomes are those of the model as it is, and not of one that the suite changed."""
    control: Control | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Further facts by topic: `bound`, `curve`, `attacks`."""
    figures: tuple[Figure, ...] = ()
    """Charts and heat maps."""
    is_probed: bool = False
    """Whether the model was probed for signs of masked gradients, so that `warnings` tell what was found."""
    folder: str | None = None
    control_result: "Result | None" = None
    """The control itself, where it was made in this process; files hold only its name."""
    kept_images: InstanceOf[Adversarial] | None = None
    """Adversarial images, where there is no folder to keep them in."""

    def __post_init__(self) -> None:
        named = next((one.title for one in self.figures if isinstance(one, Heatmap) and one.array), None)
        if named is not None:
            raise UserError(f"heat map '{named}': a result has no arrays; give its values")

    def __repr__(self) -> str:
        return f"Result({headline_text(self)})"

    def summary(self) -> str:
        """Accuracies, stages or conditions, notes and warnings as text."""
        return summary_text(self)

    def sheet(self) -> Sheet:
        return result_sheet(self)

    def adversarial(self) -> Adversarial:
        """The adversarial images of `evaluate(..., save_images=True)`."""
        if self.kept_images is not None:
            return self.kept_images
        if self.folder is None or not is_file(Path(self.folder) / ADVERSARIAL):
            raise UserError("this result kept no adversarial images; evaluate with save_images=True (--save-images)")
        return Adversarial.load(Path(self.folder) / ADVERSARIAL)

    def measure(self, name: str) -> Measure:
        known = {measure.name: measure for measure in self.measures}
        if name not in known:
            raise UserError(f"result of {self.title}: no measure '{name}'; it has {list(known)}")
        return known[name]

    def has(self, name: str) -> bool:
        return any(measure.name == name for measure in self.measures)

    @property
    def suite(self) -> str:
        """The title, and whether images were quantized, which is another question with the same attacks."""
        return f"{self.title}, quantized" if self.provenance.settings.get("quantized") else self.title

    @property
    def headline(self) -> Measure:
        """The last measure, which is the strictest: robust accuracy where something attacked."""
        return self.measures[-1]

    @property
    def clean(self) -> Measure:
        """Clean accuracy of the model as it is, whichever was judged."""
        return self.measure(CLEAN_ACCURACY if self.judges_original else ORIGINAL_CLEAN_ACCURACY)

    @property
    def is_doubtful(self) -> bool:
        """Whether a warning says that the model is no better than chance, or its accuracy lower than it looks."""
        return any(warning.inflates or warning.name == AT_CHANCE for warning in self.warnings)

    def is_higher(self, other: "Result") -> bool:
        """Whether its accuracy is higher by a paired test on the same images: McNemar's, at the 5 % level.

        Where a sample met further attacks, so must be what they would leave of all images.
        """
        if not np.array_equal(self.indices, other.indices) or self.least_accuracy <= other.robust_accuracy:
            return False
        return mcnemar_p_value(self.is_robust, other.is_robust) < SIGNIFICANCE

    @property
    def least_accuracy(self) -> float:
        """The robust accuracy, or its lower bound where only a sample met all attacks."""
        bound = self.details.get("bound", {})
        return float(bound.get("robust_accuracy_at_least", self.robust_accuracy))

    @property
    def num_images(self) -> int:
        return len(self.outcomes.index)

    @property
    def indices(self) -> np.ndarray:
        return self.outcomes.index

    @property
    def has_clean(self) -> bool:
        """Whether the clean images were asked; otherwise there is no clean accuracy."""
        return self.outcomes.correct is not None

    @property
    def is_correct(self) -> np.ndarray:
        return self._outcome("correct")

    @property
    def is_robust(self) -> np.ndarray:
        return self._outcome("robust")

    def under(self, *patterns: str) -> np.ndarray:
        """(N, C) right under these conditions: names such as `fog/*`, or groups such as `noise` where no name fits."""
        chosen: set[int] = set()
        for pattern in patterns:
            named = [n for n, one in enumerate(self.conditions) if fnmatch.fnmatchcase(one.name, pattern)]
            fits = named or [n for n, one in enumerate(self.conditions) if fnmatch.filter(one.groups, pattern)]
            if not fits:
                known = ", ".join(one.name for one in self.conditions[:8]) or "none"
                raise UserError(f"result of {self.title}: no condition '{pattern}'; it has {known}, ...")
            chosen.update(fits)
        return self._outcome("under")[:, sorted(chosen)]

    def _outcome(self, name: str) -> np.ndarray:
        known = self.outcomes.arrays()
        if name not in known:
            raise UserError(f"result of {self.title}: no outcomes '{name}'; it has {list(known)}")
        return known[name]

    @property
    def clean_accuracy(self) -> float:
        return float(self.is_correct.mean())

    @property
    def robust_accuracy(self) -> float:
        return float(self.is_robust.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % for the robust accuracy, over the choice of images."""
        return wilson_interval(int(self.is_robust.sum()), self.num_images)

    def to_dict(self) -> dict[str, Any]:
        """What `result.json` holds; the per-image outcomes are arrays next to it."""
        left_out = ("outcomes", "folder", "control_result", "kept_images")
        plain = {key: value for key, value in asdict(self).items() if key not in left_out}
        figures = without_nan({"figures": plain.pop("figures")})
        return {"version": VERSION, **json.loads(json.dumps(plain)), **figures}


def as_control(name: str, result: Result) -> Control:
    return Control(name, result.title, result.measures, None if result.folder is None else Path(result.folder).name)
