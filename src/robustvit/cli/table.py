"""Results as a table for people."""

from collections.abc import Iterable, Sequence

from robustvit.core.figures import Heatmap, percent
from robustvit.core.finding import Finding
from robustvit.core.result import CLEAN_ACCURACY, ORIGINAL_CLEAN_ACCURACY, Result
from robustvit.core.summary import Grid, condition_grid, condition_text, measure_text


def print_results(results: Sequence[Result]) -> None:
    """A row for each; conditions and further measures below."""
    from rich.console import Console

    _print_table(("model", "suite", "threat", "clean", "robust (95 %)", "images"), map(_cells, results), texts=3)
    console = Console()
    several = len(results) > 1
    for result in results:
        at = f" at {result.threat.eps_text}" if result.threat is not None else ""
        of = f"{_name(result)}, {result.suite}{at}: " if several else ""
        if not _heatmaps(result):
            _print_grid(condition_grid(result.conditions))
        for heatmap in _heatmaps(result):
            print(f"\n{of}{heatmap.title}")
            corner = " / ".join(filter(None, (heatmap.row_title, heatmap.column_title)))
            _print_table((corner, *heatmap.columns), _heatmap_rows(heatmap), texts=1)
        for note in (*_measures(result), *result.notes):
            console.print(f"{of}{note}", soft_wrap=True, markup=False)
    for warning in dict.fromkeys(str(warning) for result in results for warning in result.warnings):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def _cells(result: Result) -> tuple[str, ...]:
    threat = "" if result.threat is None else str(result.threat)
    not_attacked = "" if result.threat is not None and result.conditions else "not attacked"
    robust = measure_text(result.headline) if result.stages else not_attacked
    clean = percent(result.clean_accuracy) if result.has_clean else ""
    return _name(result), result.suite, threat, clean, robust, str(result.num_images)


def _name(result: Result) -> str:
    return str(result.provenance.checkpoint.get("name") or result.provenance.model["name"])


MOST_COLUMNS = 12
"""Of a heat map that a terminal has room for."""


def _heatmaps(result: Result) -> list[Heatmap]:
    """Shown instead of a list of conditions."""
    return [one for one in result.figures if isinstance(one, Heatmap) and len(one.columns) <= MOST_COLUMNS]


def _heatmap_rows(heatmap: Heatmap) -> list[tuple[str, ...]]:
    text = percent if heatmap.in_percent else "{:.3g}".format
    cells = [tuple("" if value is None else text(value) for value in row) for row in heatmap.values]
    return [(name, *row) for name, row in zip(heatmap.rows, cells, strict=True)]


def _measures(result: Result) -> list[str]:
    """What the table has no column for."""
    in_columns = {CLEAN_ACCURACY} if result.has_clean else set()
    if result.stages:  # a changed model is judged: its notes name the original one's accuracy
        in_columns |= {result.headline.name, ORIGINAL_CLEAN_ACCURACY}
    is_drawn = bool(_heatmaps(result)) or condition_grid(result.conditions) is not None
    several = result.conditions if len(result.conditions) > 1 and not is_drawn else ()
    measures = [one for one in result.measures if one.name not in in_columns and not one.is_detail]
    return [
        *(f"{one.name}: {condition_text(one)}" for one in several),
        *(f"{one.name}: {measure_text(one)} {one.description}".rstrip() for one in measures),
    ]


def _print_grid(grid: Grid | None) -> None:
    """Rows and columns of conditions, with the mean of each."""
    if grid is None:
        return
    means = [sum(column) / len(column) for column in zip(*grid.rows.values(), strict=True)]
    rows = {**grid.rows, "mean": means}
    cells = [(name, *(f"{100 * value:.1f}" for value in values)) for name, values in rows.items()]
    _print_table(("accuracy in %", *grid.columns), cells, texts=1)


def print_findings(findings: Sequence[Finding]) -> None:
    """Their tables; charts and pictures are for the report."""
    for table in (table for finding in findings for table in finding.tables):
        print(f"\n{table.title}")  # as a title of the table it would be broken to its width
        _print_table(table.columns, table.rows, texts=1)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> None:
    """The first columns are texts, the others numbers; a narrow terminal wraps what would else be cut off."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if number < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # names as they are: text would be read as markup
    console = Console()
    needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
