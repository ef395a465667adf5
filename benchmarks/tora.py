"""TORA-ViT against its baselines on CIFAR-10, from the zoo's standard ViT; every command resumes.

    python benchmarks/tora.py train      # sweeps/tora_tuning_cifar10, into runs/tora-tuning-cifar10
    python benchmarks/tora.py probe RUN  # PGD, AutoAttack and AAS on 200 images: does the gate mask gradients?
    python benchmarks/tora.py table      # all points: clean, robust, parameters, hours; which curve lies above

CIFAR-10 is found as everywhere (ROBUSTVIT_DATA). The backbone is zoo:vit_standard unless --weights names another.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from measure import ROOT

import robustvit as rv
from robustvit.core.finding import read_finding
from robustvit.core.run import RunFolder
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import sweep_from

SWEEP = "sweeps/tora_tuning_cifar10"
RUNS = ROOT / "runs" / "tora-tuning-cifar10"
PROBED = 200
SUITES = ("autoattack", "aas-pgd-100:step=2/255")


def train(weights: str | None) -> None:
    sweep = sweep_from(SWEEP, [])
    if weights is not None:
        # of the runs without a first phase, and of the first phases, which take a point's settings of the whole recipe
        cases = tuple({"start.weights": weights, **case} for case in sweep.cases)
        sweep = replace(sweep, cases=cases)
    run_sweep(sweep, RUNS)


def probe(run: Path, head: str | None) -> None:
    """A model whose AutoAttack accuracy is far below that by PGD hides its gradients."""
    for suite in ("pgd-20", *SUITES):
        result = rv.evaluate(run, suite=suite, head=head, images=PROBED, run=run)
        print(result, *map(str, result.warnings), sep="\n  ")


def table() -> None:
    for folder in sorted(RunFolder(RUNS).analyses.glob("sweep-*")):
        finding = read_finding(folder)
        for row in (finding.tables[0].columns, *finding.tables[0].rows):
            print(" | ".join(row))
        *curves, front = finding.charts[0].lines
        best = set(zip(front.xs, front.ys, strict=True))
        for curve in curves:
            places = list(zip(curve.labels, curve.xs, curve.ys, strict=True))
            text = ", ".join(f"{label}: {100 * x:.1f} / {100 * (y or 0):.1f}" for label, x, y in places)
            on_front = sum((x, y) in best for _, x, y in places)
            print(f"{curve.name}: {text}; {on_front} of {len(places)} on the Pareto front")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train").add_argument("--weights")
    probing = commands.add_parser("probe")
    probing.add_argument("run", type=Path)
    probing.add_argument("--head")
    commands.add_parser("table")
    given = parser.parse_args()
    if given.command == "train":
        train(given.weights)
    elif given.command == "probe":
        probe(given.run, given.head)
    else:
        table()


if __name__ == "__main__":
    main()
