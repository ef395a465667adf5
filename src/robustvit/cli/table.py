"""Results as a table for people."""

from collections.abc import Sequence
from typing import Any

from robustvit.evaluation.result import result_table


def print_results(results: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "suite", "threat", "clean", "robust (95 %)", "images"):
        table.add_column(title, justify="right" if title in ("clean", "robust (95 %)", "images") else "left")
    for row in result_table(results):
        table.add_row(*row)
    console = Console()
    console.print(table, soft_wrap=True)
    for warning in dict.fromkeys(text for result in results for text in result["warnings"]):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)
