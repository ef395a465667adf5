"""Results as a table for people."""

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from robustvit.core.figures import percent
from robustvit.core.finding import Finding
from robustvit.core.result import CLEAN_ACCURACY, ORIGINAL_CLEAN_ACCURACY, ROBUST_ACCURACY, Result
from robustvit.core.summary import condition_text, heatmap_rows, measure_text, shown_heatmaps

if TYPE_CHECKING:
    from robustvit.reporting import Card


def print_results(results: Sequence[Result]) -> None:
    """A row for each; conditions and further measures below."""
    from rich.console import Console

    _print_table(("model", "suite", "threat", "clean", "robust (95 %)", "images"), map(_cells, results), range(3))
    console = Console()
    several = len(results) > 1
    for result in results:
        at = f" at {result.threat.eps_text}" if result.threat is not None else ""
        of = f"{_name(result)}, {result.suite}{at}: " if several else ""
        for heatmap in shown_heatmaps(result):
            print(f"\n{of}{heatmap.title}")
            corner = " / ".join(filter(None, (heatmap.row_title, heatmap.column_title)))
            _print_table((corner, *heatmap.columns), heatmap_rows(heatmap), range(1))
        for note in (*_measures(result), *result.notes):
            console.print(f"{of}{note}", soft_wrap=True, markup=False)
    for warning in dict.fromkeys(str(warning) for result in results for warning in result.warnings):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def _cells(result: Result) -> tuple[str, ...]:
    threat = "" if result.threat is None else str(result.threat)
    not_attacked = "" if result.threat is not None and result.conditions else "not attacked"
    robust = measure_text(result.headline) if _has_robust(result) else not_attacked
    clean = percent(result.clean_accuracy) if result.has_clean else ""
    return _name(result), result.suite, threat, clean, robust, str(result.num_images)


def _has_robust(result: Result) -> bool:
    """Whether it is the worst case over attacks or conditions."""
    return bool(result.stages) or result.headline.name == ROBUST_ACCURACY


def _name(result: Result) -> str:
    name = str(result.provenance.checkpoint.get("name") or result.provenance.model["name"])
    head = result.provenance.model.get("head")
    return name if head is None else f"{name}, head {head}"


def _measures(result: Result) -> list[str]:
    """What the table has no column for."""
    in_columns = {CLEAN_ACCURACY} if result.has_clean else set()
    if _has_robust(result):  # a changed model is judged: its notes name the original one's accuracy
        in_columns |= {result.headline.name, ORIGINAL_CLEAN_ACCURACY}
    several = result.conditions if len(result.conditions) > 1 and not shown_heatmaps(result) else ()
    measures = [one for one in result.measures if one.name not in in_columns and not one.is_detail]
    return [
        *(f"{one.name}: {condition_text(one)}" for one in several),
        *(f"{one.name}: {measure_text(one)} {one.description}".rstrip() for one in measures),
    ]


def print_card(card: "Card") -> None:
    """A row for each measure; notes, warnings and what is missing below."""
    from rich.console import Console

    several = len(card.models) > 1
    names = [one.name if several else "value (95 %), change from clean" for one in card.models]
    rows = [
        (line.name, *(cell.text for cell in line.cells), line.num_images or "-", line.protocol) for line in card.lines
    ]
    texts = {0, len(names) + 2}
    _print_table(("measure", *names, "images", "protocol"), rows, texts)
    console = Console()
    for line in card.lines:
        if line.missing:
            console.print(f"{line.name}: not measured: {line.missing}", soft_wrap=True, markup=False)
    for note in card.notes:
        console.print(note, soft_wrap=True, markup=False)
    for warning in card.warnings:
        places = [f"  {place}" for place in warning.places] if len(warning.places) > 1 else []
        for text in (f"warning: {warning}", *places):
            console.print(text, style="yellow", soft_wrap=True, markup=False)


def print_findings(findings: Sequence[Finding]) -> None:
    """Their tables; charts and pictures are for the report."""
    for table in (table for finding in findings for table in finding.tables):
        print(f"\n{table.title}")  # as a title of the table it would be broken to its width
        _print_table(table.columns, table.rows, range(1))


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: Container[int]) -> None:
    """These columns are texts, the others numbers; a narrow terminal wraps what would else be cut off."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if number in texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # names as they are: text would be read as markup
    console = Console()
    needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
