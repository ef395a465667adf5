"""A result in words: one line, a few lines of text, or a sheet for notebooks."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from robustvit.core.figures import Chart, Figure, Heatmap, Line, Table, percent
from robustvit.core.notebook import Sheet
from robustvit.core.numbers import counted

if TYPE_CHECKING:
    from robustvit.core.result import ConditionResult, Measure, Result


MOST_MEASURES = 4
"""Of one line; of more, the first and the headline."""
MOST_COLUMNS = 12
"""Of a heat map that a terminal has room for."""


def shown_heatmaps(result: "Result") -> list[Heatmap]:
    """Which say in a table what would be a long list of conditions."""
    maps = (one for one in result.figures if isinstance(one, Heatmap) and one.rows)
    return [one for one in maps if 0 < len(one.columns) <= MOST_COLUMNS]


def heatmap_rows(heatmap: Heatmap) -> list[tuple[str, ...]]:
    """The name and the values of each row."""
    text = percent if heatmap.in_percent else "{:.3g}".format
    cells = [tuple("" if value is None else text(value) for value in row) for row in heatmap.values]
    return [(name, *row) for name, row in zip(heatmap.rows, cells, strict=True)]


def aligned(rows: Sequence[Sequence[str]], texts: Container[int]) -> list[str]:
    """A line for each row, in columns: these are texts, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if number in texts else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def measure_text(measure: "Measure") -> str:
    """`74.0 % (64.6 to 81.6)`, `12.5 points (8.1 to 16.9)`, `76.7`."""
    interval = interval_text(measure)
    return value_text(measure) + (f" ({interval})" if interval else "")


def value_text(measure: "Measure") -> str:
    """`74.0 %`."""
    unit = " %" if measure.is_fraction else " points" if measure.kind == "difference" else ""
    return f"{_number(measure, measure.value)}{unit}"


def interval_text(measure: "Measure") -> str:
    """`64.6 to 81.6`, or nothing."""
    return " to ".join(_number(measure, end) for end in measure.interval or ())


def _number(measure: "Measure", value: float) -> str:
    return f"{value:.4g}" if measure.kind == "number" else f"{100 * value:.1f}"


def condition_text(condition: "ConditionResult") -> str:
    """`61.2 % of 360 images`."""
    if condition.accuracy is None:
        return "no image was left"
    return f"{100 * condition.accuracy:.1f} % of {counted(condition.num_images, 'image')}"


def headline_text(result: "Result") -> str:
    """`pgd-20 at Linf 8/255 on 100 images: clean 95.0 % (88.8 to 97.8), robust 74.0 % (64.6 to 81.6)`."""
    few = len(result.measures) <= MOST_MEASURES
    shown = result.measures if few else (result.measures[0], result.headline)
    return f"{_question(result)}: {', '.join(f'{_words(one.name)} {measure_text(one)}' for one in shown)}"


def summary_text(result: "Result") -> str:
    return "\n".join([headline_text(result), *(f"  {name}: {text}" for name, text in _rows(result)), *_remarks(result)])


def result_sheet(result: "Result") -> Sheet:
    shown = [one for one in result.measures if not one.is_detail]
    details = [one for one in result.measures if one.is_detail]
    tables = [_measures_table("", shown)]
    if result.stages:
        rows = tuple(
            (one.name, str(one.num_images), str(one.num_fooled), percent(one.robust_accuracy)) for one in result.stages
        )
        tables.append(Table("", ("attack", "images", "fooled", "robust after it"), rows))
    folded = [_measures_table("Further measures", details)] if details else []
    if len(result.conditions) > 1:
        conditions = tuple((one.name, condition_text(one)) for one in result.conditions)
        folded.append(Table("Conditions", ("condition", "accuracy"), conditions))
    figures = (*_measures_chart(shown), *result.figures)
    return Sheet(_question(result), "", tuple(tables), figures, remarks=tuple(_remarks(result)), folded=tuple(folded))


def _measures_table(title: str, measures: Sequence["Measure"]) -> Table:
    rows = tuple((_words(one.name), value_text(one), interval_text(one)) for one in measures)
    return Table(title, ("measure", "value", "95 % interval"), rows)


def _measures_chart(measures: Sequence["Measure"]) -> tuple[Figure, ...]:
    """Accuracies with their intervals, where there are several to compare."""
    known = [one for one in measures if one.is_accuracy]
    if len(known) < 2:
        return ()
    places = tuple(map(float, range(len(known))))
    intervals = tuple(one.interval or (one.value, one.value) for one in known)
    line = Line("with its 95 % interval", places, tuple(one.value for one in known), intervals)
    names = tuple(_words(one.name) for one in known)
    return (Chart("Accuracy", "", (line,), True, "dots", names),)


def _question(result: "Result") -> str:
    threat = "" if result.threat is None else f" at {result.threat}"
    return f"{result.title}{threat} on {counted(result.num_images, 'image')}"


def _words(name: str) -> str:
    return name.removesuffix("_accuracy").replace("_", " ")


def _rows(result: "Result") -> Iterator[tuple[str, str]]:
    for stage in result.stages:
        yield stage.name, f"fooled {stage.num_fooled} of {stage.num_images}, {100 * stage.robust_accuracy:.1f} % robust"
    heatmaps = shown_heatmaps(result)
    for condition in result.conditions if len(result.conditions) > 1 and not heatmaps else ():
        yield condition.name, condition_text(condition)
    for heatmap in heatmaps:
        yield heatmap.title, ", ".join(heatmap.columns)
        for name, *values in heatmap_rows(heatmap):
            yield name, ", ".join(values)


def _remarks(result: "Result") -> Iterable[str]:
    return [*result.notes, *(f"warning: {warning}" for warning in result.warnings)]
