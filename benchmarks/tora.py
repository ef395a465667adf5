"""TORA-ViT against its baselines on CIFAR-10, from the zoo's standard ViT; every command resumes.

    python benchmarks/tora.py train [SYSTEM ...]  # sweeps/tora_tuning_cifar10, into runs/tora-tuning-cifar10
    python benchmarks/tora.py table               # results into docs/tora, their table and picture into docs/tora.md
    python benchmarks/tora.py probe RUN           # PGD, AutoAttack and AAS on 200 images: are gradients hidden?
    python benchmarks/tora.py zoo RUN             # a point of TORA into runs/zoo/tora, for benchmarks/zoo.py add tora

CIFAR-10 is found as everywhere (ROBUSTVIT_DATA). The backbone is zoo:vit_standard unless --weights names another.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from measure import ROOT, table as markdown
from zoo import ABOUT, RUNS as ZOO_RUNS, commit, portable

import robustvit as rv
from robustvit.core.files import write_json
from robustvit.core.finding import Finding
from robustvit.core.result_files import FILE as RESULT, read_result, write_result
from robustvit.core.run import RunFolder
from robustvit.models import load_checkpoint, save_model
from robustvit.reporting.export import drawn_alone
from robustvit.training import recipe_from
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_finding import sweep_finding
from robustvit.training.sweep_first import first_folder, first_point
from robustvit.training.sweep_grid import Point, sweep_from

SWEEP = "sweeps/tora_tuning_cifar10"
RUNS = ROOT / "runs" / "tora-tuning-cifar10"
PROBED = 200
SUITES = ("autoattack", "aas-pgd-100:step=eps/4")
WHOLE, WEIGHT, COST = "cifar10/tora", "objective.robust_weight", "cost.json"
SYSTEMS = {
    "head_only": "head only",
    "single_adapter": "single adapter",
    "adapter_fusion": "AdapterFusion",
    "tora": "TORA-ViT",
}
KEPT = ROOT / "docs" / "tora"
PAGE, PICTURE = ROOT / "docs" / "tora.md", ROOT / "docs" / "images" / "tora-cifar10.svg"
BEGIN, END = "<!-- cifar10, made by benchmarks/tora.py -->", "<!-- end of cifar10 -->"


def system_of(settings: Mapping[str, Any]) -> str:
    """One of SYSTEMS."""
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


def keep() -> None:
    """Copies results and costs, those of the first phase included, to where they outlive the runs."""
    sweep = sweep_from(SWEEP, [])
    for point in sweep.points():
        run, first = RUNS / point.folder, first_point(sweep, point)
        name = f"{system_of(point.settings)}-{point.settings[WEIGHT]}"
        for folder in (file.parent for file in sorted(run.glob(f"eval/*/{RESULT}"))):
            result = portable(read_result(folder), f"runs/{RUNS.name}/{name}")
            part = "eval" if result.num_images == sweep.images else "probe"  # of other images, which can't be compared
            write_result(KEPT / name / part / result.title, result)
            runs = [run] if first is None else [first_folder(RUNS, first), run]
            write_json(KEPT / name / COST, joined_cost(runs))


def joined_cost(runs: Sequence[Path]) -> dict[str, Any]:
    costs = [json.loads((run / COST).read_text()) for run in runs]
    return {**costs[-1], "cpu_seconds": sum(one["cpu_seconds"] for one in costs)}


def kept() -> Finding:
    """The sweep's table and picture, from all points that were kept."""
    sweep, outcomes = sweep_from(SWEEP, []), []
    for point in sweep.points():
        system, weight = system_of(point.settings), point.settings[WEIGHT]
        folders = [KEPT / f"{system}-{weight}" / "eval" / str(suite) for suite in sweep.suites]
        if all((folder / RESULT).exists() for folder in folders):
            named = Point({"system": SYSTEMS[system], sweep.curve: weight})
            outcomes.append((named, tuple(map(read_result, folders))))
    return sweep_finding(sweep, outcomes)


def table() -> None:
    if RUNS.exists():
        keep()
    finding = kept()
    ((_, svg),) = drawn_alone(finding.charts[:1], (), finding.arrays)
    PICTURE.write_text(svg)
    shown = finding.tables[0]
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *markdown(shown.columns, shown.rows), f"{END}{after}"]))
    *curves, front = finding.charts[0].lines
    best = set(zip(front.xs, front.ys, strict=True))
    for curve in curves:
        places = list(zip(curve.labels, curve.xs, curve.ys, strict=True))
        words = ", ".join(f"{label}: {100 * x:.1f} / {100 * (y or 0):.1f}" for label, x, y in places)
        print(f"{curve.name}: {words}; {sum((x, y) in best for _, x, y in places)} on the Pareto front")


def to_zoo(run: Path) -> None:
    """Both phases of a point as the run of one recipe, which ends with the same weights (tests/test_trade_off.py)."""
    second = RunFolder(run).read_recipe()
    first = Path(second["start"]["weights"])
    weight = second["phases"][0]["objective"]["robust_weight"]
    changes = [f"objective.robust_weight={weight}"]
    folder = ZOO_RUNS / "tora"
    recipe = recipe_from(WHOLE, changes).resolved("cpu").to_dict()
    weights = RunFolder(run).checkpoint()
    save_model(load_checkpoint(weights), folder / weights.relative_to(run), recipe=recipe)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    write_json(folder / COST, joined_cost([first, run]))
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
