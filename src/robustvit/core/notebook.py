"""Notebooks: whether this process runs one, a line there that changes in place, and values as sheets of figures."""

import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import Any

from robustvit.core.figures import Figure, Pictures, Table

_DRAWN_BY = "robustvit.reporting.notebook"
"""Above this package, which never imports it: asked by name when a notebook shows a value."""


@dataclass(frozen=True)
class Sheet:
    """What a notebook shows of a value."""

    title: str
    caption: str = ""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    pictures: tuple[Pictures, ...] = ()
    remarks: tuple[str, ...] = ()
    """Notes and warnings, which belong to the numbers above them."""
    folded: tuple[Table, ...] = ()
    """Tables to unfold: details, or what a figure shows already."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts to unfold, by their titles."""
    arrays: Mapping[str, Any] = field(default_factory=dict)
    """Which figures and pictures name."""


class InNotebooks(ABC):
    """A value that notebooks show as a sheet."""

    @abstractmethod
    def sheet(self) -> Sheet:
        """What notebooks show, as plain values."""

    def _repr_html_(self) -> str:
        page: str = importlib.import_module(_DRAWN_BY).sheet_html(self.sheet())
        return page


def cell_number() -> int | None:
    """The cell of a notebook that runs; None in scripts and terminals."""
    module: Any = sys.modules.get("IPython")  # which a kernel has imported long before
    shell: Any = module.get_ipython() if module is not None else None
    return int(shell.execution_count) if hasattr(shell, "kernel") else None


class StatusLine:
    """A line of a notebook that changes in place."""

    def __init__(self, seconds: float = 0.5) -> None:
        """`seconds`: between changes; jobs that take less show nothing."""
        self._seconds, self._changed = seconds, time.monotonic()
        self._handle: Any = None

    def show(self, text: str, fraction: float, is_end: bool = False) -> None:
        """Show it, unless the line changed just now; the end of a job only where its beginning was shown."""
        is_due = time.monotonic() - self._changed >= self._seconds
        if not (is_due or (is_end and self._handle is not None)):
            return
        self._changed = time.monotonic()
        bar = f'<progress max="1" value="{min(fraction, 1.0):.3f}"></progress>'
        forms = {"text/plain": text, "text/html": f"{bar} {escape(text)}"}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(forms, raw=True, display_id=True)
        else:
            self._handle.update(forms, raw=True)


def status_line() -> StatusLine | None:
    """Of the cell that runs: its jobs share one, as a line for each would fill the page. None outside of notebooks."""
    cell = cell_number()
    return None if cell is None else _line_of(cell)


@lru_cache(maxsize=1)
def _line_of(cell: int) -> StatusLine:
    return StatusLine()
