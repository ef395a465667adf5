"""Mix ratios of generated digits for a ViT and a WideResNet; writes docs/benchmarks-mix-ratio.md.

robustvit train digits/edm
robustvit generate runs/digits-edm --images 5000 --out generated/digits
python benchmarks/mix_ratio.py                  # sweeps/digits_mix_ratio in runs/digits-mix-ratio; resumes
python benchmarks/mix_ratio.py --only-page      # of the runs that are done so far
"""

import argparse
from pathlib import Path

from measure import table, write_page

from robustvit.core.result_files import read_result
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_finding import Outcome, sweep_finding
from robustvit.training.sweep_grid import Point, Sweep, sweep_from

SWEEP = "sweeps/digits_mix_ratio"


def done(sweep: Sweep, root: Path) -> list[tuple[Point, Outcome]]:
    """The results that are there."""
    folders = {point.folder: sorted((root / point.folder).glob("eval/*/result.json")) for point in sweep.points()}
    return [
        (point, (read_result(files[0].parent),)) for point in sweep.points() if len(files := folders[point.folder]) == 1
    ]


def page(sweep: Sweep, root: Path) -> None:
    outcomes = done(sweep, root)
    finding = sweep_finding(sweep, outcomes)
    every, *summaries = finding.tables
    lines = [
        "# Mix ratios on the digits",
        "",
        f"`{SWEEP}`: {sweep.info.about}; {len(outcomes)} of {len(sweep.points())} trainings. Robust accuracy by",
        f"{finding.caption.split('. ')[0]}. Intervals are 95 % over seeds, by the t distribution;",
        "where all seeds agree there is none.",
        "The difference between two models changes along the rows if generated images help one of them more: a change",
        "whose interval holds zero may be chance. [What follows](synthesis.md#does-generated-data-help-a-vit-more).",
        "`python benchmarks/mix_ratio.py` makes this page.",
        "",
    ]
    for one in (*summaries, every):
        lines += [f"## {one.title[0].upper()}{one.title[1:]}", "", *table(one.columns, one.rows)]
    write_page("benchmarks-mix-ratio.md", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/digits-mix-ratio"), help="the folder around the runs")
    parser.add_argument("--only-page", action="store_true", help="train nothing")
    given = parser.parse_args()
    sweep = sweep_from(SWEEP, [])
    if not given.only_page:
        run_sweep(sweep, given.runs)
    page(sweep, given.runs)


if __name__ == "__main__":
    main()
