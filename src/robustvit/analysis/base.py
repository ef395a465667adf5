"""What an analysis is, and what it finds: tables, charts and pictures with a caption, as plain values."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np

from robustvit.core.component import OneOf
from robustvit.evaluation.subject import Subject


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """The first cell of each is its name; shares are told in percent by their text."""


@dataclass(frozen=True)
class Chart:
    """Lines: `series` are (name, xs, ys); None leaves a gap."""

    title: str
    x_title: str
    series: tuple[tuple[str, tuple[float, ...], tuple[float | None, ...]], ...]
    in_percent: bool = False


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures, which stand as (rows, columns, 3, H, W) in [0, 1] among the arrays."""

    title: str
    array: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """`arrays` hold what is too large for text."""

    title: str
    caption: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    pictures: tuple[Pictures, ...] = ()
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Analysis(Protocol):
    """Looks at a model on images; called where the model is in eval mode and frozen."""

    def __call__(self, subject: Subject) -> Finding: ...


AnyAnalysis = Annotated[Analysis, OneOf("analysis")]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
