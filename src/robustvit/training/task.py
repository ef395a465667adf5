"""What the loop trains: anything with batches, steps, epochs and a state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor, nn

from robustvit.core.journal import Row
from robustvit.data.feed import Feed

State = dict[str, Any]
"""Plain types and tensors, so that `torch.load(weights_only=True)` reads it."""


@dataclass(frozen=True)
class Position:
    """How far a run has come."""

    phase: int
    phase_name: str
    steps: int
    """Of the phase."""
    steps_per_epoch: int
    step: int = 0
    """Taken within the phase."""
    total_step: int = 0
    """Taken in all phases."""

    @property
    def progress(self) -> float:
        """Of the phase, from 0 to 1."""
        return self.step / self.steps

    @property
    def epoch(self) -> int:
        """Whole epochs of the phase."""
        return self.step // self.steps_per_epoch

    @property
    def is_between_epochs(self) -> bool:
        return self.step % self.steps_per_epoch == 0

    @property
    def is_phase_end(self) -> bool:
        return self.step == self.steps

    def advanced(self) -> "Position":
        return replace(self, step=self.step + 1, total_step=self.total_step + 1)


@dataclass(frozen=True)
class StepResult:
    """What the metrics record of a step."""

    values: Mapping[str, float] = field(default_factory=dict)
    """Logged as they are at the step, such as the learning rate."""
    means: Mapping[str, Tensor] = field(default_factory=dict)
    """(B,) values of each sample, averaged over the steps between two rows; none of a step that was skipped."""


class Task(Protocol):
    """What the loop trains; the loop handles position, seeds, metrics and files."""

    title: str
    """Of the training data."""

    def fingerprint(self) -> str:
        """A checksum of the training data; a resumed run must find the same."""

    def initialize(self) -> None:
        """Once, before the first phase of a new run."""

    def begin_phase(self, number: int) -> Feed[Any]:
        """The batches of a phase; called again before `load_state` where a run is resumed."""

    def begin_epoch(self, position: Position) -> list[Row]:
        """Before the first step of an epoch; the rows are logged after that step."""

    def step(self, batch: Any, position: Position) -> StepResult:
        """One step; global generators are seeded for it. `means` holds the samples of this process."""

    def end_step(self, result: StepResult) -> None:
        """After a step, with the values of all processes."""

    def end_epoch(self, position: Position) -> None: ...

    def end_phase(self) -> None:
        """After the last epoch of a phase that another one follows."""

    def weights(self) -> nn.Module:
        """What is saved as the result so far."""

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...
