"""Means over the steps since the last row of the metrics."""

from typing import Any

from torch import Tensor


class Meter:
    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self._sums: dict[str, float] = dict(state["sums"]) if state else {}
        self._counts: dict[str, int] = dict(state["counts"]) if state else {}
        self._last: dict[str, str] = {}

    def add(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.detach().sum())
        self._counts[name] = self._counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float | None]:
        """Rounded for the file; a mean that isn't finite is None, as JSON knows no other word."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums}
        return {name: round(value, 6) if abs(value) < float("inf") else None for name, value in means.items()}

    def shown(self) -> dict[str, str]:
        """For the progress line: the newest means."""
        for name, value in self.means().items():
            self._last[name] = "?" if value is None else f"{value:.3f}"
        shown = [name for name in self._last if name == "loss" or name.endswith("_accuracy")]
        return {name.removesuffix("_accuracy"): self._last[name] for name in shown}

    def clear(self) -> None:
        self._sums, self._counts = {}, {}

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "counts": self._counts}
