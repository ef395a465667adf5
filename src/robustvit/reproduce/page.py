"""One self-contained page about a table, a figure or a whole paper."""

from collections.abc import Sequence
from pathlib import Path

from robustvit.core.finding import Finding
from robustvit.reporting.findings import shown
from robustvit.reporting.pictures import Budget
from robustvit.reporting.template import rendered, write_page
from robustvit.reproduce.finding import points_text
from robustvit.reproduce.verdict import OURS, RULE


def write_claims(
    path: Path, title: str, lede: str, findings: Sequence[Finding], missing: Sequence[tuple[str, str]] = ()
) -> Path:
    """`missing`: what could not be made, and why."""
    budget = Budget()
    blocks = [shown(finding, budget) for finding in findings]
    text = rendered(
        "claims.html",
        ("page.css",),
        {"points": points_text},
        title=title,
        lede=lede,
        blocks=blocks,
        missing=missing,
        rule=RULE,
        ours=OURS,
    )
    write_page(path, text)
    return path
