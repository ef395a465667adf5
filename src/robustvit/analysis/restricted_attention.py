"""What a transformer can do with attention to few patches: near ones, random ones, or none but the class token.

Figure 9 of Understanding Robustness of Transformers for Image Classification (Bhojanapalli et al. 2021).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from robustvit.analysis.base import network
from robustvit.analysis.checks import few_images, needing
from robustvit.core.component import component
from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import wilson_interval
from robustvit.evaluation.condition import Condition
from robustvit.evaluation.conditions import Accuracy
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.ledger import CLEAN
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.layout import Layout
from robustvit.models.restricted_attention import Kind, Restriction, attention_layouts

Layouts = tuple[tuple[int, Layout], ...]
COST = 1.2
"""Of a pass, as scores are computed apart from their product with the values."""


@component("analysis", "restricted_attention")
class RestrictedAttention:
    """Accuracy with attention to near patches alone, to as many random ones, to the class token alone in k blocks."""

    distances: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Rows and columns that a patch may look away, of its block's own grid; null: all. The whole grid is shown, too."""
    random: bool = True
    """Also with as many pairs at random, drawn by the seed: the control."""
    class_only: bool = True
    """Also with no attention among patches in the first and the last k blocks, if there is a class token."""

    def check(self, subject: Subject) -> None:
        self._layouts(subject)

    def passes(self, subject: Subject) -> int:
        conditions = list(self._conditions(self._layouts(subject), subject.seed))
        return round(COST * len(subject.indices) * len(conditions))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        layouts = self._layouts(subject)
        conditions = tuple(self._conditions(layouts, subject.seed))
        result = evaluate_subject(subject, Accuracy(conditions=conditions), Job(run=store.folder, checks=False))
        accuracy = {one.name: one.accuracy or 0.0 for one in result.conditions}
        near, class_only = self._near(layouts), self._class_only(layouts)
        shown = [_chart("Attention to near patches", "largest distance, in patches", near, accuracy, result.num_images)]
        title = "No attention among patches in k blocks"
        shown += [_chart(title, "blocks", class_only, accuracy, result.num_images)] if class_only else []
        tables = [_table(chart) for chart in shown]
        grids = dict.fromkeys(f"{layout.height} x {layout.width}" for _, layout in layouts)
        return Finding(
            "Restricted attention",
            f"Accuracy with pairs of patches masked in the attention, without training for it. {len(subject.indices)} "
            f"images of {subject.images.title}. The grid of patches is {', then '.join(grids)}. {self._said(layouts)}",
            tables=tuple(tables),
            charts=tuple(shown),
        )

    def _said(self, layouts: Layouts) -> str:
        if all(layout.prefix for _, layout in layouts):
            return "Class tokens see all patches and are seen by all."
        if _with_token(layouts):
            return "Class tokens see all patches and are seen by all; the k blocks are among those that have one."
        return "There is no class token, so that a random control leaves each patch at least one other or itself."

    def _layouts(self, subject: Subject) -> Layouts:
        with needing("masks pairs of patches in attention", "lesion and layer_similarity take networks without it"):
            return attention_layouts(network(subject), few_images(subject))

    def _near(self, layouts: Layouts) -> dict[Kind, dict[int, str]]:
        """Names of conditions by line and point of the x axis."""
        most = max(max(layout.height, layout.width) for _, layout in layouts)
        wanted = range(most) if self.distances is None else sorted(set(self.distances))
        kinds: dict[Kind, str] = {"near": "distance"}
        if self.random:
            kinds["random"] = "random, as many as distance"
        masked = [distance for distance in wanted if distance < most - 1]
        return {
            kind: {**{distance: f"{words} {distance}" for distance in masked}, most - 1: CLEAN}
            for kind, words in kinds.items()
        }

    def _class_only(self, layouts: Layouts) -> dict[str, dict[int, str]]:
        counts = range(1, len(_with_token(layouts)) + 1)
        if not self.class_only or not counts:
            return {}
        return {
            where: {0: CLEAN, **{count: f"class token only in the {where} {count}" for count in counts}}
            for where in _ENDS
        }

    def _conditions(self, layouts: Layouts, seed: int) -> Iterator[Condition]:
        yield Condition(CLEAN)
        for kind, names in self._near(layouts).items():
            for distance, name in _changed(names):
                drawn = seed if kind == "random" else 0
                yield Condition(name, (kind,), around=Restriction(kind, layouts, distance, drawn))
        for where, names in self._class_only(layouts).items():
            for count, name in _changed(names):
                having = _with_token(layouts)
                chosen = having[:count] if where == _ENDS[0] else having[-count:]
                yield Condition(name, (where,), around=Restriction("class", chosen))


_ENDS = ("first", "last")


def _with_token(layouts: Layouts) -> Layouts:
    """Blocks before the class token joins, as in a stem, have none."""
    return tuple((number, layout) for number, layout in layouts if layout.prefix)


def _changed(names: Mapping[int, str]) -> list[tuple[int, str]]:
    return [(x, name) for x, name in names.items() if name != CLEAN]


def _chart(
    title: str, x_title: str, lines: Mapping[Any, Mapping[int, str]], accuracy: Mapping[str, float], images: int
) -> Chart:
    drawn = []
    for line, names in lines.items():
        values = [accuracy[name] for name in names.values()]
        intervals = tuple(wilson_interval(round(value * images), images) for value in values)
        drawn.append(Line(line, tuple(map(float, names)), tuple(values), intervals))
    note = "Bands are 95 % intervals over the choice of images."
    return Chart(title, x_title, tuple(drawn), in_percent=True, note=note)


def _table(chart: Chart) -> Table:
    rows = [
        (f"{x:g}", *(percent(value or 0.0) for value in values))
        for x, *values in zip(chart.lines[0].xs, *(line.ys for line in chart.lines), strict=True)
    ]
    return Table(chart.title, (chart.x_title, *(line.name for line in chart.lines)), tuple(rows))
