"""Results as a table for people."""

from collections.abc import Sequence
from typing import Any

from robustvit.core.finding import percent
from robustvit.core.result import Measure, Result


def print_results(results: Sequence[Result]) -> None:
    """A row for each; conditions and further measures below."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "suite", "threat", "clean", "robust (95 %)", "images"):
        table.add_column(
            title, justify="right" if title in ("clean", "robust (95 %)", "images") else "left", no_wrap=True
        )
    for result in results:
        quantized = ", quantized" if result.provenance.settings.get("quantized") else ""
        table.add_row(
            _name(result),
            result.title + quantized,
            "" if result.threat is None else str(result.threat),
            percent(result.clean_accuracy),
            _accuracy(result.headline) if result.stages else "not attacked",
            str(result.num_images),
        )
    _print_whole(table)
    console = Console()
    several = len(results) > 1
    for result in results:
        at = f" at {result.threat.eps_text}" if result.threat is not None else ""
        of = f"{_name(result)}, {result.title}{at}: " if several else ""
        for note in (*_measures(result), *result.notes):
            console.print(f"{of}{note}", soft_wrap=True, markup=False)
    for warning in dict.fromkeys(str(warning) for result in results for warning in result.warnings):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def _name(result: Result) -> str:
    return str(result.provenance.checkpoint.get("name") or result.provenance.model["name"])


def _accuracy(measure: Measure) -> str:
    if measure.interval is None:
        return percent(measure.value)
    return f"{percent(measure.value)} ({' to '.join(f'{100 * end:.1f}' for end in measure.interval)})"


def _measures(result: Result) -> list[str]:
    """What the table has no column for."""
    if result.stages:
        return []
    several = result.conditions if len(result.conditions) > 1 else ()
    return [
        *(f"{one.name}: {percent(one.accuracy)} of {one.num_images} images" for one in several),
        *(f"{one.name}: {one.value:.4g} {one.description}".rstrip() for one in result.measures if several),
    ]


def print_findings(findings: Sequence[Any]) -> None:
    """Their tables; charts and pictures are for the report."""
    from rich.table import Table

    for finding in findings:
        for shown in finding.tables:
            print(f"\n{shown.title}")  # as a title of the table it would be broken to its width
            table = Table(box=None, pad_edge=False, header_style="bold")
            for place, name in enumerate(shown.columns):
                table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
            for row in shown.rows:
                table.add_row(*(str(cell) for cell in row))
            _print_whole(table)


def _print_whole(table: Any) -> None:
    """A narrow terminal wraps what would else be cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
