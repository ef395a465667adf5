"""Keeps what `robustvit reproduce` found, for `robustvit reproduce --list` and docs/claims.md.

    robustvit reproduce beats-wrn/table-3            # and others; below runs
    python benchmarks/claims.py [runs]               # all of them that are there

Adds to src/robustvit/reproduce/seen.yaml, to docs/images and to the tables of docs/claims.md and README.md. Entries
without a finding below the folder stay as they are.
"""

import subprocess
import sys
from pathlib import Path

import yaml
from measure import ROOT

from robustvit.core.finding import Finding, read_finding
from robustvit.core.run import RunFolder
from robustvit.reporting.export import drawn_alone
from robustvit.reproduce import load_paper, paper_names

SEEN = ROOT / "src" / "robustvit" / "reproduce" / "seen.yaml"
PICTURES = ROOT / "docs" / "images"


def findings(runs: Path) -> dict[str, Finding]:
    """By the name of the entry."""
    names = [entry.name for paper in paper_names() for entry in load_paper(paper).entries.values()]
    folders = {path.name: path for sweep in sorted(runs.iterdir()) for path in RunFolder(sweep).analyses.glob("*-*-*")}
    return {name: read_finding(folders[key]) for name in names if (key := name.replace("/", "-")) in folders}


def main() -> None:
    found = findings(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs")
    seen = yaml.safe_load(SEEN.read_text()) or {}
    for name, finding in found.items():
        seen[name] = finding.facts["verdicts"]
        ((_, svg),) = drawn_alone(finding.charts, (), finding.arrays)
        (PICTURES / f"claims-{name.replace('/', '-')}.svg").write_text(svg)
        print(name, *(f"{one['claim']}: {one['verdict']}" for one in seen[name]), sep="\n  ")
    SEEN.write_text(yaml.safe_dump(dict(sorted(seen.items())), sort_keys=False, width=120))
    subprocess.run([sys.executable, ROOT / "docs" / "reference.py"], check=True)


if __name__ == "__main__":
    main()
