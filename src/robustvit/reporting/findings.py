"""Findings of analyses and sweeps, as the page shows them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from robustvit.core.errors import UserError
from robustvit.core.figures import Heatmap, Pictures
from robustvit.core.finding import FILE, Finding, read_finding
from robustvit.core.run import RunFolder
from robustvit.reporting.drawing import drawn
from robustvit.reporting.pictures import PIXELATED_BELOW, Budget, data_uri

MOST_PICTURES = 12
"""Rows of pictures of one finding."""
LEFT_OUT = Markup('<p class="note">Left out to keep the page small; its numbers are in {}.</p>')


@dataclass(frozen=True)
class Gallery:
    pictures: Pictures
    rows: list[list[str]]
    is_small: bool
    left_out: int
    """Rows that the page has no room for."""


@dataclass(frozen=True)
class Shown:
    finding: Finding
    charts: list[tuple[str, Markup, str]]
    """Title, drawing and note."""
    galleries: list[Gallery]


def findings(run: Path, budget: Budget) -> Iterator[Shown]:
    """In the order of their folders' names; what another finding shows with more models is not shown again."""
    found = [(path, read_finding(path.parent)) for path in sorted(RunFolder(run).analyses.glob(f"*/{FILE}"))]
    combined = {str(name) for _, finding in found for name in finding.facts.get("combines") or ()}
    for path, finding in found:
        if path.parent.name in combined:
            continue
        try:
            yield shown(finding, budget)
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a whole finding ({error}); remove its folder to have it made anew") from None


def shown(finding: Finding, budget: Budget) -> Shown:
    charts = []
    for chart in finding.charts:
        svg = drawn(chart, finding.arrays)
        if isinstance(chart, Heatmap) and not budget.spend(len(svg)):
            svg = LEFT_OUT.format("arrays.npz" if chart.array else FILE)
        charts.append((chart.title, svg, chart.note))
    return Shown(finding, charts, [_gallery(one, finding.arrays[one.array], budget) for one in finding.pictures])


def _gallery(pictures: Pictures, images: np.ndarray, budget: Budget) -> Gallery:
    """(rows, columns, 3, H, W) images, as many rows as the budget has room for."""
    is_small = min(images.shape[-2:]) < PIXELATED_BELOW
    rows: list[list[str]] = []
    for row in images[:MOST_PICTURES]:
        made = [data_uri(np.nan_to_num(image), is_small) for image in row]
        if not budget.spend(sum(map(len, made))):
            break
        rows.append(made)
    return Gallery(pictures, rows, is_small, len(images) - len(rows))
