"""Findings of analyses, as the page shows them."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from robustvit.core.errors import UserError
from robustvit.core.files import read_json
from robustvit.core.run import RunFolder
from robustvit.reporting.charts import Series, line_chart
from robustvit.reporting.pictures import PIXELATED_BELOW, data_uri

MOST_PICTURES = 12
"""Rows of pictures of one finding."""


@dataclass(frozen=True)
class Finding:
    title: str
    caption: str
    tables: tuple[dict[str, Any], ...]
    charts: tuple[tuple[str, Markup], ...]
    galleries: tuple[tuple[str, tuple[str, ...], list[list[str]], bool], ...]
    """Title, columns, rows of pictures, and whether they are small."""
    command: str


def findings(run: Path) -> Iterator[Finding]:
    """In the order of their folders' names."""
    for path in sorted(RunFolder(run).analyses.glob("*/finding.json")):
        told = read_json(path)
        try:
            yield Finding(
                title=str(told["title"]),
                caption=str(told["caption"]),
                tables=tuple(told["tables"]),
                charts=tuple((str(chart["title"]), _drawn(chart)) for chart in told["charts"]),
                galleries=tuple(_gallery(one, path.with_name("arrays.npz")) for one in told["pictures"]),
                command=str(told.get("facts", {}).get("command", "")),
            )
        except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: not a whole finding ({error}); remove its folder to have it made anew") from None


def _drawn(chart: dict[str, Any]) -> Markup:
    series = [
        Series(str(name), f"tone-{place % 6 + 1}", list(zip(xs, ys, strict=True)))
        for place, (name, xs, ys) in enumerate(chart["series"])
    ]
    text = (lambda y: f"{100 * y:.3g} %") if chart["in_percent"] else (lambda y: f"{y:.3g}")
    return line_chart(str(chart["title"]), series, x_title=str(chart["x_title"]), y_text=text)


def _gallery(told: dict[str, Any], arrays: Path) -> tuple[str, tuple[str, ...], list[list[str]], bool]:
    with np.load(arrays, allow_pickle=False) as stored:
        images = stored[told["array"]][:MOST_PICTURES]  # (rows, columns, 3, H, W)
    is_small = min(images.shape[-2:]) < PIXELATED_BELOW
    rows = [[data_uri(np.nan_to_num(image), is_small) for image in row] for row in images]
    return str(told["title"]), tuple(map(str, told["columns"])), rows, is_small
