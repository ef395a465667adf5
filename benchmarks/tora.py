"""TORA-ViT against its baselines on CIFAR-10, from the zoo's standard ViT; every command resumes.

    python benchmarks/tora.py train [SYSTEM ...]  # sweeps/tora_tuning_cifar10, into runs/tora-tuning-cifar10
    python benchmarks/tora.py probe RUN  # PGD, AutoAttack and AAS on 200 images: does the gate mask gradients?
    python benchmarks/tora.py table      # all points: clean, robust, parameters, hours; which curve lies above
    python benchmarks/tora.py zoo RUN    # a point of TORA into runs/zoo/tora, for benchmarks/zoo.py add tora

CIFAR-10 is found as everywhere (ROBUSTVIT_DATA). The backbone is zoo:vit_standard unless --weights names another.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from measure import ROOT
from zoo import ABOUT, RUNS as ZOO_RUNS, commit

import robustvit as rv
from robustvit.core.finding import read_finding
from robustvit.core.run import RunFolder
from robustvit.training import recipe_from
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import sweep_from

SWEEP = "sweeps/tora_tuning_cifar10"
RUNS = ROOT / "runs" / "tora-tuning-cifar10"
PROBED = 200
SUITES = ("autoattack", "aas-pgd-100:step=2/255")
WHOLE = "cifar10/tora"


def system_of(settings: Mapping[str, Any]) -> str:
    """`head_only`, `single_adapter`, `adapter_fusion` or `tora`."""
    named = {"per_token": "adapter_fusion", "adapter": "tora"}
    return named.get(settings.get("model.adapters.softmax", ""), settings["recipe"].rpartition("/")[2])


def train(systems: list[str], weights: str | None) -> None:
    sweep = sweep_from(SWEEP, [])
    if systems:
        sweep = replace(sweep, cases=tuple(case for case in sweep.cases if system_of(case) in systems))
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


def to_zoo(run: Path) -> None:
    """Both phases of a point as the run of one recipe, which ends with the same weights (tests/test_trade_off.py)."""
    second = RunFolder(run).read_recipe()
    first = Path(second["start"]["weights"])
    weight = second["phases"][0]["objective"]["robust_weight"]
    changes = [f"objective.robust_weight={weight}"]
    folder = ZOO_RUNS / "tora"
    shutil.copytree(run / "checkpoints", folder / "checkpoints")
    recipe = recipe_from(WHOLE, changes).resolved("cpu").to_dict()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    costs = [json.loads((one / "cost.json").read_text()) for one in (first, run)]
    (folder / "cost.json").write_text(json.dumps({**costs[1], "cpu_seconds": sum(one["cpu_seconds"] for one in costs)}))
    (folder / "metrics.jsonl").write_text("".join((one / "metrics.jsonl").read_text() for one in (first, run)))
    (folder / ABOUT).write_text(json.dumps({"recipe": WHOLE, "overrides": changes, "commit": commit()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("systems", nargs="*")
    training.add_argument("--weights")
    probing = commands.add_parser("probe")
    probing.add_argument("run", type=Path)
    probing.add_argument("--head")
    commands.add_parser("table")
    commands.add_parser("zoo").add_argument("run", type=Path)
    given = parser.parse_args()
    if given.command == "train":
        train(given.systems, given.weights)
    elif given.command == "probe":
        probe(given.run, given.head)
    elif given.command == "zoo":
        to_zoo(given.run)
    else:
        table()


if __name__ == "__main__":
    main()
