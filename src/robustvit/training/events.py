"""What may happen to a model between the epochs of a training."""

from typing import Annotated, Protocol

from torch import nn

from robustvit.core.component import OneOf
from robustvit.core.journal import Row
from robustvit.data.base import Images


class Event(Protocol):
    """Called before the first step of an epoch where it is due."""

    def check(self, model: nn.Module) -> None:
        """Raise a UserError before the training where the model doesn't fit."""
        ...

    def is_due(self, epoch: int) -> bool:
        """Whether it happens after so many whole epochs."""
        ...

    def __call__(self, model: nn.Module, images: Images, device: str, seed: int) -> Row:
        """Change the model; the row joins the metrics, with numbers to plot below `values`."""
        ...


AnyEvent = Annotated[Event, OneOf("event")]
