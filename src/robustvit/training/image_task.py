"""What tasks that train a network on images have in common: parts of a batch, average, optimizer, health, state."""

import copy
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import nn

from robustvit.core.errors import UserError
from robustvit.core.world import World
from robustvit.data.base import Images, content_fingerprint
from robustvit.data.feed import Batches, RowsOf
from robustvit.training.health import Health
from robustvit.training.parts import GradientSum, Parts, parts_warning
from robustvit.training.recorder import AnyRecorder
from robustvit.training.task import State


class ImageTask:
    """Abstract: a network, its average where the phase has one, and its optimizer."""

    title: str
    model: nn.Module
    average: nn.Module | None
    optimizer: torch.optim.Optimizer

    def __init__(self, images: Images, num_classes: int, recorder: AnyRecorder, world: World) -> None:
        self.images, self.num_classes = images, num_classes
        self.recorder, self.world, self.device = recorder, world, world.device

    def fingerprint(self) -> str:
        """Of some images and labels, real ones first, then those that each phase mixes into them."""
        return "".join(map(_of_some, (self.images, *self._generated)))

    @property
    def _generated(self) -> list[Images]:
        found = [batches.mixture.generated for batches, _ in self._phases]
        return [images for images in found if images is not None]

    def _prepare(self, phases: Sequence[tuple[Batches, int]], gradient_sum: GradientSum) -> None:
        """The batches of every phase and the parts that are wanted of each: what is wrong is said before any trains."""
        self._phases = [(batches, _cut(batches, parts, self.world, gradient_sum)) for batches, parts in phases]
        self.title = " with ".join(dict.fromkeys(images.title for images in (self.images, *self._generated)))
        wanted = [parts for _, parts in phases]
        found = [parts_warning(cut, n, self.model) for (_, cut), n in zip(self._phases, wanted, strict=True)]
        for problem in dict.fromkeys(filter(None, found)):
            self.recorder.message(f"warning: {problem}")

    def _begin(self, number: int, has_average: bool) -> Batches | RowsOf:
        """A phase with a new average and health; the rows of its batches that are this process's own."""
        batches, self.parts = self._phases[number]
        self.batches, self.health = batches, Health(self.num_classes)
        self.average = self._copied().requires_grad_(False).eval() if has_average else None
        return batches if self.world.size == 1 else RowsOf(batches, self.parts.own_rows)

    def _copied(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def end_phase(self) -> None:
        """The next phase continues from the average."""
        if self.average is not None:
            self.model.load_state_dict(self.average.state_dict())

    def weights(self) -> nn.Module:
        """The average where there is one."""
        return self.average if self.average is not None else self.model

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "health": asdict(self.health),
        }

    def load_state(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        saved, own = state["optimizer"], self.optimizer.param_groups
        groups = zip(saved["param_groups"], own, strict=True)  # kernels are those of here, not of where it was saved
        kept = [{**group, **{key: mine[key] for key in ("fused", "foreach") if key in mine}} for group, mine in groups]
        self.optimizer.load_state_dict({**saved, "param_groups": kept})
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.health = Health(**state["health"])


def _of_some(images: Images) -> str:
    some = torch.linspace(0, len(images) - 1, min(16, len(images)), dtype=torch.float64).long()
    return content_fingerprint(images, some)


def _cut(batches: Batches, parts: int, world: World, gradient_sum: GradientSum) -> Parts:
    try:
        return Parts.of(batches.rows, parts, world, gradient_sum)
    except UserError as error:
        raise UserError(f"phase '{batches.mixture.phase}': {error}") from None
