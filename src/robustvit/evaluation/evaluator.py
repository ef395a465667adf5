"""What an evaluator is: it turns a subject into a result, through a ledger that survives a kill."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from robustvit.core.component import OneOf
from robustvit.core.errors import UserError
from robustvit.core.measure import Kind
from robustvit.core.result import Provenance, Result, ResultWarning
from robustvit.core.world import World
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.subject import Subject


class Sink(Protocol):
    """Receives the adversarial images of a batch; `fooled` marks those that count."""

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None: ...


class Evaluator(Protocol):
    """Turns a subject into a result; a component whose fields are its settings."""

    def begin(self, subject: Subject) -> "Evaluation":
        """Check that it fits the subject; nothing is computed yet."""
        ...


def measure_kinds(evaluator: Evaluator) -> Mapping[str, Kind] | None:
    """Every measure that its results may have, where the evaluator tells; None: known from a result alone."""
    tell = getattr(evaluator, "measure_kinds", None)
    return None if tell is None else tell()


AnyEvaluator = Annotated[Evaluator, OneOf("evaluator")]


@dataclass(frozen=True)
class Evaluation(ABC):
    """An evaluator applied to a subject; folder, lock, resume and processes are up to the store and the engine."""

    evaluator: Any
    subject: Subject
    makes_images: ClassVar[bool] = False
    """Whether it makes adversarial images, so that `save_images` can be asked for."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Names the folder, together with a hash of the identity."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the outcomes depend on, besides model, data and seed."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Of the evaluator, as the result stores them."""

    def carry(self, smaller: Result) -> "Evaluation":
        """The same with a result at a smaller eps: what was fooled there counts as fooled here."""
        raise UserError(f"smaller: {self.title} has no eps along which outcomes carry over")

    def prepare(self, folder: Path | None) -> "Evaluation":
        """Once, by the first process before the others, who find in the folder what it took."""
        return self

    def passes(self) -> int | None:
        """Forward and backward passes of all images together at most; None where it is unknown."""
        return None

    def seconds_of_changes(self) -> float:
        """For changing or reading images before they meet the model, all of them together, by a sample."""
        return 0.0

    def probe(self) -> Sequence[ResultWarning]:
        """Signs, by a few passes over some images, that the result could mislead."""
        return ()

    def recipe_warnings(self, recipe: Mapping[str, Any]) -> Sequence[ResultWarning]:
        """What is to be said of a model that was trained by this recipe, which is empty where it isn't known."""
        return ()

    @abstractmethod
    def advance(self, ledger: Ledger, world: World, sinks: Sequence[Sink], quiet: bool) -> None:
        """Record what is missing of the images of this process (`world.shard`), as far as the ledger of all allows."""

    @abstractmethod
    def is_complete(self, ledger: Ledger) -> bool:
        """Whether the ledger holds all that the result needs; until then there are further rounds of `advance`."""

    def expected_rows(self) -> Mapping[str, np.ndarray] | None:
        """The stages or conditions that rows of the ledger may be of, each with its images; None: any."""
        return None

    def shared_stages(self, other: "Evaluation") -> Sequence[str]:
        """Stages whose rows another evaluation has, too: a verdict depends on its stage and image alone."""
        return ()

    def save_images(self, folder: Path, ledger: Ledger, smaller: Result | None) -> Sequence[ResultWarning]:
        """Every adversarial image as one file, where the evaluation `makes_images`."""
        raise NotImplementedError

    def control(self) -> Evaluator | None:
        """A second evaluation to compare with."""
        return None

    @abstractmethod
    def result(self, ledger: Ledger, provenance: Provenance, control: Result | None) -> Result: ...
