"""Progress and remaining time of long jobs: a live line in terminals and notebooks, a plain one at times elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from robustvit.core.notebook import cell_number, status_line

PLAIN_SECONDS = 15.0
"""How often a job says something when nobody watches a terminal."""


def say(text: str) -> None:
    """A line for people; results go to standard output, everything else here."""
    in_notebook = cell_number() is not None  # where nothing is piped, and standard error is printed on red
    print(text, file=sys.stdout if in_notebook else sys.stderr, flush=True)


class Progress:
    """`with Progress("training", total) as progress: progress.advance(1, loss=0.3)`."""

    outer: ClassVar[str] = ""
    """The job that others are parts of, said before their titles."""
    _said = time.monotonic()
    """When a plain line was last said, by whichever job: many short ones are heard of too."""

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "images", quiet: bool = False) -> None:
        self.title = f"{Progress.outer}: {title}" if Progress.outer else title
        self.total, self.count, self.unit = total, done, unit
        self._begin_count = done
        self.quiet = quiet
        self._live: Any = None
        self._facts: dict[str, str] = {}

    def __enter__(self) -> "Progress":
        self._begin = time.monotonic()
        self._line = None if self.quiet else status_line()
        if self._line is None and not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as Live, TextColumn

            texts = ("{task.description}", "{task.fields[facts]}")
            title, facts = (TextColumn(text, markup=False) for text in texts)
            columns = (title, BarColumn(bar_width=24), MofNCompleteColumn(), facts)
            self._live = Live(*columns, console=Console(stderr=True), transient=True)
            self._live.start()
            self._task = self._live.add_task(self.title, total=self.total, completed=self.count, facts="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._line is not None and self.total:
            self._line.show(*self._state(), is_end=True)

    def note(self, **facts: str) -> None:
        """Nothing more is done, but something goes on."""
        self.update(self.count, **facts)

    def advance(self, count: int, **facts: str) -> None:
        """So much more is done; `facts` are shown next to it."""
        self.update(self.count + count, **facts)

    def update(self, count: int, **facts: str) -> None:
        """So much is done in all."""
        self.count = count
        self._facts.update(facts)
        if self.quiet:
            return
        if self._live is not None:
            self._live.update(self._task, completed=self.count, facts=self._tail())
        elif self._line is not None:
            self._line.show(*self._state())
        elif time.monotonic() - Progress._said > PLAIN_SECONDS:
            Progress._said = time.monotonic()
            say(self._state()[0])

    def _state(self) -> tuple[str, float]:
        """As a line of text and a fraction."""
        text = f"{self.title}: {self.count}/{self.total} {self.unit}  {self._tail()}"
        return text.rstrip(), self.count / self.total if self.total else 1.0

    def _tail(self) -> str:
        seconds = time.monotonic() - self._begin
        rate = (self.count - self._begin_count) / seconds if seconds > 0 else 0.0
        facts = [f"{key} {value}" for key, value in self._facts.items()]
        if rate > 0:
            is_done = self.count >= self.total
            left = f"{format_seconds((self.total - self.count) / rate)} left"
            facts += [f"{rate:.0f} {self.unit}/s", f"in {format_seconds(seconds)}" if is_done else left]
        return "  ".join(facts)


@contextmanager
def part_of(title: str) -> Iterator[None]:
    """Jobs inside are parts of this one."""
    before, Progress.outer = Progress.outer, title
    try:
        yield
    finally:
        Progress.outer = before


def format_seconds(seconds: float) -> str:
    """`48 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
