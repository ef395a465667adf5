"""Results as a table for people."""

from collections.abc import Sequence
from typing import Any


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """One row each, in the form of `EvalResult.to_dict`."""
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
            result["suite"],
            f"L{threat['norm']} {threat['eps_text']}",
            _percent(result["clean_accuracy"]),
            f"{_percent(result['robust_accuracy'])} ({' to '.join(f'{100 * end:.1f}' for end in result['interval'])})"
            if result["attacks"]
            else "not attacked",
            str(result["num_images"]),
        )
    console = Console()
    console.print(table, soft_wrap=True)
    for result in results:
        if result.get("bound"):
            console.print(_bound(result["bound"]), soft_wrap=True)
    for warning in dict.fromkeys(text for result in results for text in result["warnings"]):
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def _bound(bound: dict[str, Any]) -> str:
    sure = "" if bound["confidence"] == 1 else f" ({100 * bound['confidence']:.0f} % sure)"
    return (
        f"AutoAttack would leave at least {_percent(max(bound['robust_accuracy_at_least'], 0))}{sure}: "
        f"it took {bound['fell']} of {bound['sampled']} sampled out of {bound['survivors']} survivors"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
