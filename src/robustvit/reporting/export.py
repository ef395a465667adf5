"""The figures of a finding as files: SVG, which papers and slides take, and PNG where cairosvg is installed."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from robustvit.core.errors import UserError
from robustvit.core.figures import Figure, Pictures
from robustvit.core.files import write_atomic, write_text
from robustvit.core.finding import FIGURES, Finding
from robustvit.reporting.axes import LETTER, drawn_text, shortened
from robustvit.reporting.drawing import drawn
from robustvit.reporting.pictures import PIXELATED_BELOW, data_uri
from robustvit.reporting.template import part

HEADING, MARGIN, LINE = 26.0, 12.0, 14.0
"""Above a figure for its title; around it; of a note below it."""
CELL, GAP, NAME = 112.0, 6.0, 18
"""Of a picture among others; letters of a name."""
MOST_ROWS = 24
"""Of pictures in a file."""
_STYLED = (".chart ", ".line", ".tone-", ".robust", ".clean")
"""Selectors of the page that figures need."""
_RULE, _VARIABLE = re.compile(r"([^{}]+)\{([^{}]*)\}"), re.compile(r"var\((--[a-z0-9-]+)\)")


def write_figures(folder: Path, finding: Finding) -> list[Path]:
    """Every chart, heat map and gallery of a finding below `figures`, numbered in their order."""
    paths = []
    figures = drawn_alone(finding.charts, finding.pictures, finding.arrays)
    for number, (title, svg) in enumerate(figures, start=1):
        words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
        path = folder / FIGURES / f"{number:02d}-{words}.svg"
        write_text(path, svg)
        paths += [path, *_png(path, svg)]
    return paths


def drawn_alone(
    charts: Sequence[Figure], galleries: Sequence[Pictures], arrays: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The title of every figure, and itself as an SVG file with its colors inside."""
    for chart in charts:
        match = re.fullmatch(r'<svg[^>]*viewBox="0 0 (\d+) (\d+)"[^>]*>(.*)</svg>', drawn(chart, arrays), re.S)
        if match:  # what has no finite values is a sentence
            yield chart.title, _alone(chart.title, float(match[1]), float(match[2]), Markup(match[3]), chart.note)
    for pictures in galleries:
        yield pictures.title, _gallery(pictures, arrays[pictures.array])


def _alone(title: str, width: float, height: float, body: Markup, note: str = "") -> str:
    """A whole file with its title, its colors and a white page."""
    width, bottom = width + 2 * MARGIN, height + HEADING + MARGIN
    notes = textwrap.wrap(note, int((width - 2 * MARGIN) / LETTER))
    total = bottom + LINE * len(notes) + MARGIN
    parts = [
        Markup('<rect width="100%" height="100%" fill="#fff"/>'),
        Markup('<g class="chart">'),
        drawn_text("title", MARGIN, HEADING - 6, title),
        Markup('<g transform="translate({} {})">{}</g>').format(MARGIN, HEADING + MARGIN / 2, body),
        *(drawn_text("note", MARGIN, bottom + LINE * number, line) for number, line in enumerate(notes, start=1)),
        Markup("</g>"),
    ]
    head = Markup('<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" viewBox="0 0 {} {}">').format(
        *(f"{side:.0f}" for side in (width, total, width, total))
    )
    return f"{head}<title>{escape(title)}</title><style>{style()}</style>{Markup('').join(parts)}</svg>\n"


@cache
def style() -> str:
    """The rules of the page that figures need, with their colors written out: few programs know variables."""
    sheet = part("page.css")
    root = next(match[2] for match in _RULE.finditer(sheet) if match[1].strip() == ":root")
    colors = dict(re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", root + ";"))
    rules = [(match[1].strip(), match[2].strip()) for match in _RULE.finditer(sheet)]
    wanted = [f"{name} {{ {body} }}" for name, body in rules if name.startswith(_STYLED)]
    text = _VARIABLE.sub(lambda match: colors[match[1]], "\n".join(wanted))
    return f"svg {{ font-family: {colors['--sans']}; }}\n{text}".replace("<", "")


def _gallery(pictures: Pictures, images: np.ndarray) -> str:
    """(rows, columns, 3, H, W) images with the names of rows and columns."""
    shown = images[:MOST_ROWS]
    rows, columns = ([_lines(name) for name in names] for names in (pictures.rows[: len(shown)], pictures.columns))
    left = 10 + LETTER * max(len(line) for lines in rows for line in lines)
    above = 4 + LINE * max(map(len, columns))
    parts = [
        drawn_text("tick", left + (CELL + GAP) * number, above - 8 - LINE * (len(lines) - 1 - line), text)
        for number, lines in enumerate(columns)
        for line, text in enumerate(lines)
    ]
    is_small = min(images.shape[-2:]) < PIXELATED_BELOW
    for row, line in enumerate(shown):
        top = above + (CELL + GAP) * row
        middle = top + CELL / 2 - LINE * (len(rows[row]) - 1) / 2
        parts += [drawn_text("tick", 0, middle + LINE * number, text) for number, text in enumerate(rows[row])]
        for column, image in enumerate(line):
            parts.append(
                Markup('<image x="{}" y="{}" width="{}" height="{}" href="{}"/>').format(
                    f"{left + (CELL + GAP) * column:.1f}", f"{top:.1f}", CELL, CELL,
                    data_uri(np.nan_to_num(image), is_small),
                )
            )  # fmt: skip
    width = max(left + (CELL + GAP) * len(pictures.columns), LETTER * len(pictures.title))
    note = f"{len(shown)} of {len(images)} rows" if len(shown) < len(images) else ""
    return _alone(pictures.title, width, above + (CELL + GAP) * len(shown), Markup("").join(parts), note)


def _lines(name: str) -> list[str]:
    """Next to each other, names are as wide as a picture at most: long ones take several lines."""
    lines = textwrap.wrap(name, NAME, break_long_words=False, break_on_hyphens=False)
    return [shortened(line, NAME) for line in lines] or [""]


def _png(path: Path, svg: str) -> list[Path]:
    try:
        import cairosvg
    except (ImportError, OSError):  # OSError: the package is there, the library that it calls isn't
        return []
    target = path.with_suffix(".png")
    try:
        content: bytes = cairosvg.svg2png(bytestring=svg.encode(), scale=2)
    except Exception as error:  # whatever a foreign library raises
        raise UserError(
            f"{path}: cairosvg can't draw it ({error}); uninstall cairosvg to have SVG files alone"
        ) from None
    write_atomic(target, lambda file: file.write(content))
    return [target]
