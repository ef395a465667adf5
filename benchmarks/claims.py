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
from robustvit.reporting.export import drawn_alone
from robustvit.reproduce import load_paper, paper_names
from robustvit.reproduce.run import finding_folder

SEEN = ROOT / "src" / "robustvit" / "reproduce" / "seen.yaml"
PICTURES = ROOT / "docs" / "images"


def findings(runs: Path) -> dict[str, Finding]:
    """Those of the small forms, by the name of the entry."""
    found = {}
    for entry in (entry for paper in paper_names() for entry in load_paper(paper).entries.values()):
        if entry.small is not None and not entry.small.commands:
            folder = finding_folder(entry, entry.small, runs)
            if folder.exists():
                found[entry.name] = read_finding(folder)
    return found


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
