"""Sheets of notebooks as HTML: tables, figures as pictures with their colors inside, the rest to unfold."""

import base64

from markupsafe import Markup

from robustvit.core.figures import Table
from robustvit.core.notebook import Sheet
from robustvit.reporting.export import drawn_alone

_LEFT = Markup(' style="text-align: left"')
"""Notebooks move what is in tables to the right; numbers are there already."""
_FOLDED = Markup("<details><summary>{}</summary>{}</details>")


def sheet_html(sheet: Sheet) -> str:
    """Without a style sheet or a script, which some notebooks leave out; whatever users name is escaped."""
    parts = [Markup("<p><b>{}</b></p>").format(sheet.title)]
    if sheet.caption:
        parts.append(Markup("<p>{}</p>").format(sheet.caption))
    parts += [_table(table, table.title) for table in sheet.tables]
    parts += [_picture(title, svg) for title, svg in drawn_alone(sheet.figures, sheet.pictures, sheet.arrays)]
    parts += [Markup("<p>{}</p>").format(remark) for remark in sheet.remarks]
    parts += [_FOLDED.format(table.title or "Table", _table(table)) for table in sheet.folded]
    parts += [_FOLDED.format(title, Markup("<pre>{}</pre>").format(text)) for title, text in sheet.texts.items()]
    return Markup("\n").join(parts)


def _table(table: Table, title: str = "") -> Markup:
    caption = Markup("<caption{}>{}</caption>").format(_LEFT, title) if title else ""
    columns = zip(*table.rows, strict=True) if table.rows else [("",)] * len(table.columns)
    styles = ["" if all(map(_is_number, cells)) else _LEFT for cells in columns]
    head = _row("th", table.columns, styles)
    body = Markup("").join(_row("td", row, styles) for row in table.rows)
    return Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(caption, head, body)


def _row(kind: str, cells: tuple[str, ...], styles: list[str]) -> Markup:
    made = (Markup("<{}{}>{}</{}>").format(kind, *pair, kind) for pair in zip(styles, cells, strict=True))
    return Markup("<tr>{}</tr>").format(Markup("").join(made))


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in ("", "-", "+")


def _picture(title: str, svg: str) -> Markup:
    """An image rather than inline: its style sheet can't reach the notebook, nor the notebook's it."""
    content = base64.b64encode(svg.encode()).decode()
    return Markup('<p><img alt="{}" src="data:image/svg+xml;base64,{}"/></p>').format(title, content)
