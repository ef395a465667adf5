"""Results as a table for people."""

from collections.abc import Iterable, Sequence

from robustvit.core.figures import percent
from robustvit.core.finding import Finding
from robustvit.core.result import CLEAN_ACCURACY, ORIGINAL_CLEAN_ACCURACY, Result
from robustvit.core.summary import condition_text, heatmap_rows, measure_text, shown_heatmaps


def print_results(results: Sequence[Result]) -> None:
    """A row for each; conditions and further measures below."""
    from rich.console import Console

    _print_table(("model", "suite", "threat", "clean", "robust (95 %)", "images"), map(_cells, results), texts=3)
    console = Console()
    several = len(results) > 1
    for result in results:
        at = f" at {result.threat.eps_text}" if result.threat is not None else ""
        of = f"{_name(result)}, {result.suite}{at}: " if several else ""
        for heatmap in shown_heatmaps(result):
            print(f"\n{of}{heatmap.title}")
            corner = " / ".join(filter(None, (heatmap.row_title, heatmap.column_title)))
            _print_table((corner, *heatmap.columns), heatmap_rows(heatmap), texts=1)
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


def _measures(result: Result) -> list[str]:
    """What the table has no column for."""
    in_columns = {CLEAN_ACCURACY} if result.has_clean else set()
    if result.stages:  # a changed model is judged: its notes name the original one's accuracy
        in_columns |= {result.headline.name, ORIGINAL_CLEAN_ACCURACY}
    several = result.conditions if len(result.conditions) > 1 and not shown_heatmaps(result) else ()
    measures = [one for one in result.measures if one.name not in in_columns and not one.is_detail]
    return [
        *(f"{one.name}: {condition_text(one)}" for one in several),
        *(f"{one.name}: {measure_text(one)} {one.description}".rstrip() for one in measures),
    ]


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
