"""Figures of results and findings as inline SVG."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from robustvit.core.figures import Chart, Heatmap, Line
from robustvit.core.numbers import short_count
from robustvit.reporting.axes import percent_text, tone
from robustvit.reporting.charts import Band, Series, line_chart
from robustvit.reporting.dots import dot_chart
from robustvit.reporting.heatmaps import heatmap
from robustvit.reporting.scatter import scatter_chart

_STYLES = {"clean": "clean", "robust": "robust"}
"""What these words have in the other parts of the page."""


def drawn(figure: Chart | Heatmap, arrays: Mapping[str, Any] | None = None) -> Markup:
    if isinstance(figure, Heatmap):
        return heatmap(figure, matrix_of(figure, arrays or {}))
    if figure.kind == "scatter":
        return scatter_chart(figure)
    text = percent_text if figure.in_percent else "{:.3g}".format
    names = [line.name for line in figure.lines]
    styles = {name: _STYLES[name] for name in names if name in _STYLES}
    free = [name for name in names if name not in styles] if "robust" not in styles else names
    styles = {**{name: tone(place) for place, name in enumerate(free)}, **styles}
    series = [_series(line, styles[line.name], figure.kind == "lines") for line in figure.lines]
    if figure.kind == "dots":
        return dot_chart(figure.title, figure.rows, series, x_title=figure.x_title, x_text=text)
    is_accuracy = figure.in_percent and figure.kind == "lines" and not figure.y_log
    return line_chart(
        figure.title,
        series,
        x_title=figure.x_title,
        y_text=text,
        y_range=(0, 1) if is_accuracy else None,
        marks=figure.marks,
        has_values=figure.kind == "lines",
        x_text=percent_text if figure.x_in_percent else short_count,
        y_title=figure.y_title,
        x_log=figure.x_log,
        y_log=figure.y_log,
        from_zero=figure.kind == "histogram",
    )


def matrix_of(figure: Heatmap, arrays: Mapping[str, Any]) -> np.ndarray:
    values = arrays[figure.array] if figure.array else figure.values
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _series(line: Line, style: str, has_dots: bool) -> Series:
    return Series(
        line.name,
        style,
        list(zip(line.xs, line.ys, strict=True)),
        _band(line, line.intervals),
        has_dots,
        _band(line, line.ranges),
        line.sizes,
        line.labels,
    )


def _band(line: Line, pairs: tuple[tuple[float, float], ...]) -> Band:
    return [(x, *pair) for x, pair in zip(line.xs, pairs, strict=True)] if pairs else ()
