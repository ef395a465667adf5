"""Results as a table for people."""

from collections.abc import Sequence
from typing import Any

from robustvit.core.finding import percent
from robustvit.reporting.notes import notes_beside


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """One row each, in the form of `Result.to_dict`."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "suite", "threat", "clean", "robust (95 %)", "images"):
        table.add_column(
            title, justify="right" if title in ("clean", "robust (95 %)", "images") else "left", no_wrap=True
        )
    for result in results:
        threat = result["threat"]
        table.add_row(
            str(result["checkpoint"].get("name") or result["model"]["name"]),
            result["suite"] + (", quantized" if result.get("quantized") else ""),
            f"L{threat['norm']} {threat['eps_text']}",
            percent(result["clean_accuracy"]),
            f"{percent(result['robust_accuracy'])} ({' to '.join(f'{100 * end:.1f}' for end in result['interval'])})"
            if result["attacks"]
            else "not attacked",
            str(result["num_images"]),
        )
    console = Console()
    _print_whole(table)
    several = len(results) > 1
    for result in results:
        name = str(result["checkpoint"].get("name") or result["model"]["name"])
        of = f"{name}, {result['suite']} at {result['threat']['eps_text']}: " if several else ""
        for note in notes_beside(result):
            console.print(f"{of}{note}", soft_wrap=True, markup=False)
    for warning in dict.fromkeys(text for result in results for text in result["warnings"]):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def print_findings(findings: Sequence[Any]) -> None:
    """Their tables; charts and pictures are for the report."""
    from rich.table import Table

    for finding in findings:
        for told in finding.tables:
            print(f"\n{told.title}")  # as a title of the table it would be broken to its width
            table = Table(box=None, pad_edge=False, header_style="bold")
            for place, name in enumerate(told.columns):
                table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
            for row in told.rows:
                table.add_row(*(str(cell) for cell in row))
            _print_whole(table)


def _print_whole(table: Any) -> None:
    """A narrow terminal wraps what would else be cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
