"""Trains the models of the zoo and writes their entries; both commands resume.

    python benchmarks/zoo.py train NAME   # its recipe, into runs/zoo/NAME
    python benchmarks/zoo.py keep NAME    # what was trained and judged so far -> benchmarks/trained/NAME, where another
                                          # machine goes on
    python benchmarks/zoo.py add NAME     # half-precision weights, AutoAttack on them, card -> src/robustvit/zoo/NAME

CIFAR-10 is found as everywhere (ROBUSTVIT_DATA). What is evaluated is the file that ships, so the figures are those of
half precision.
"""

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from measure import ROOT

import robustvit as rv
from robustvit.core.component import to_dict
from robustvit.core.numbers import counted
from robustvit.core.result import NOT_PUBLISHED
from robustvit.core.result_files import write_result
from robustvit.core.run import RunFolder
from robustvit.data.cifar import Cifar10
from robustvit.models import load_checkpoint, model_cost, save_model
from robustvit.models.normalize import backbone_of
from robustvit.models.weights import load_facts
from robustvit.models.zoo import CARD, WEIGHTS, ZOO, Card, zoo_card
from robustvit.training.recipe import recipe_from

RUNS, TRAINED = ROOT / "runs" / "zoo", ROOT / "benchmarks" / "trained"
IMAGES = 1_000
LICENSE = "Apache 2.0, as the package; trained on CIFAR-10 (Krizhevsky 2009)"
LIMITS = (
    "Made for research on 32 pixel images of ten classes, from {cost}: far below what published models of this data "
    "reach, and robust, if at all, to {threat} alone."
)
ENTRIES = {"speedrun": "cifar10/speedrun", "speedrun_2h": "cifar10/speedrun_2h", "tora": "cifar10/tora"}
"""Recipes of the entries that are not zoo/NAME."""
FACTS = ("rule", "epoch", "phase")
"""Of the checkpoint that ships."""
BUDGETS = {"speedrun": 3_600, "speedrun_2h": 14_400}
"""Core-seconds within which a run counts as a record of the speedrun."""
UNREAD = ("zoo", "reproduce", "reporting", "cards", "sharing", "playground", "cli")
"""Parts of the sources that no training reads, so that one goes on where they change, as by another entry."""
UNFINISHED = "not finished"
"""In the rule of a checkpoint whose training goes on."""
ABOUT = "zoo.json"
"""In the run folder of an entry: its recipe, overrides and the commit of the sources."""


def commit() -> str:
    changed = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, text=True).stdout
    if changed.strip():
        sys.exit("commit the sources first: the card names the commit that trained the model")
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def insist_on_published() -> None:
    """Models and records are compared with published tables, which pixels that were coded again don't allow."""
    for split in ("train", "test"):
        if NOT_PUBLISHED in (title := Cifar10().open(split).title):
            sys.exit(f"{title}; ROBUSTVIT_DATA must name a folder with the published CIFAR-10")


def train(name: str, overrides: list[str]) -> None:
    insist_on_published()
    run = RUNS / name
    about = run / ABOUT
    if not about.exists():
        recipe = ENTRIES.get(name, f"zoo/{name}")
        recipe_from(recipe, overrides)
        run.mkdir(parents=True, exist_ok=True)
        about.write_text(json.dumps({"recipe": recipe, "overrides": overrides, "commit": commit()}))
    known = json.loads(about.read_text())
    if known["overrides"] != overrides:
        sys.exit(f"{run}: begun with the overrides {known['overrides']}; give the same, or remove it")
    read = ["src", *(f":(exclude)src/robustvit/{part}" for part in UNREAD)]
    if subprocess.run(["git", "diff", "--quiet", known["commit"], "--", *read], cwd=ROOT).returncode:
        sys.exit(f"{run}: begun by the sources of {known['commit']}, and they differ; check these out, or remove it")
    rv.train(known["recipe"], run=run, overrides=known["overrides"])


def keep(name: str) -> None:
    run = RunFolder(RUNS / name)
    save_half(run, TRAINED / name / run.checkpoint().relative_to(run.path))
    for path in (run.recipe, *(run.path / file for file in (ABOUT, "cost.json", "metrics.jsonl"))):
        copy = TRAINED / name / path.relative_to(run.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    if run.evaluations.exists():
        copy, locks = TRAINED / name / run.evaluations.name, shutil.ignore_patterns(".*")
        shutil.copytree(run.evaluations, copy, ignore=locks, dirs_exist_ok=True)


def save_half(run: RunFolder, path: Path) -> None:
    """The weights that the run selects, in half precision."""
    model, facts = load_checkpoint(run.checkpoint()), load_facts(run.checkpoint())
    if UNFINISHED in facts["rule"]:
        sys.exit(f"{run.path}: {facts['rule']}; train it to the end first")
    backbone_of(model).half()
    save_model(model, path, recipe=run.read_recipe(), **{key: facts[key] for key in FACTS if key in facts})


def add(name: str, images: int) -> None:
    insist_on_published()
    if not (RUNS / name).exists() and (TRAINED / name).exists():
        shutil.copytree(TRAINED / name, RUNS / name)
    run = RunFolder(RUNS / name)
    entry = run.path / "entry"  # the package gets it whole, or not at all
    known = json.loads((run.path / ABOUT).read_text())
    cost = json.loads((run.path / "cost.json").read_text())
    recipe = run.read_recipe()
    if cost["cpu_seconds"] > BUDGETS.get(name, math.inf):
        sys.exit(f"{run.path}: took {cost['cpu_seconds']:,.0f} core-seconds, more than its budget of {BUDGETS[name]:,}")
    save_half(run, entry / WEIGHTS)
    model = load_checkpoint(entry / WEIGHTS)
    result = rv.evaluate(entry / WEIGHTS, suite="autoattack", images=images, run=run.path)
    size = model_cost(model, 32)
    card = Card(
        about=recipe["info"]["about"],
        recipe=known["recipe"],
        overrides=tuple(known["overrides"]),
        commit=known["commit"],
        seed=recipe["seed"],
        cpu_seconds=cost["cpu_seconds"],
        processor=cost["processor"],
        parameters=size.parameters,
        multiply_adds=size.multiply_adds,
        search=" and ".join(dict.fromkeys(searches(recipe["phases"]))) or "none",
        sha256=hashlib.sha256((entry / WEIGHTS).read_bytes()).hexdigest(),
        limits=LIMITS.format(cost=cost_text(cost["cpu_seconds"], recipe), threat=result.threat),
        license=LICENSE,
    )
    (entry / CARD).write_text(yaml.safe_dump(to_dict(card), sort_keys=False, width=110))
    write_result(entry, portable(result, f"zoo:{name}"))
    made = ZOO / f".{name}"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(entry, made)
    shutil.rmtree(ZOO / name, ignore_errors=True)
    made.rename(ZOO / name)
    print(result.summary())


def cost_text(seconds: float, recipe: dict[str, Any]) -> str:
    """With that of the model of the zoo that it began from."""
    text, weights = f"{seconds:,.0f} core-seconds of training", (recipe["start"] or {}).get("weights") or ""
    if not weights.startswith("zoo:"):
        return text
    return f"{text} after {zoo_card(weights).cpu_seconds:,.0f} of {weights}"


def searches(tree: Any) -> Iterator[str]:
    """How the objectives of phases attack."""
    if isinstance(tree, list):
        for one in tree:
            yield from searches(one)
    if isinstance(tree, dict):
        if tree.get("name") == "n_fgsm":
            yield "n_fgsm, 1 step"
        if isinstance(attack := tree.get("attack"), dict):
            yield f"{attack['name']}, {counted(attack.get('steps', 1), 'step')}"
        for one in tree.values():
            yield from searches(one)


def portable(result: rv.Result, model: str) -> rv.Result:
    """Without the paths of the machine that it was made on."""
    about = result.provenance
    data = (
        f"{about.data.partition(' of ')[0]}{' (' + about.data.rpartition(' (')[2] if about.data.endswith(')') else ''}"
    )
    checkpoint = {**about.checkpoint, "path": model, "name": model}
    eps = str(result.threat).rpartition(" ")[2]
    options = f"--data cifar10 --suite {result.title} --eps {eps} --images {about.num_images}"
    command = f"robustvit evaluate {model} {options}"
    return replace(result, folder=None, provenance=replace(about, data=data, checkpoint=checkpoint, command=command))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "keep", "add"])
    parser.add_argument("name")
    parser.add_argument("-o", dest="overrides", action="append", default=[])
    parser.add_argument("--images", type=int, default=IMAGES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "train":
        train(options.name, options.overrides)
    elif options.what == "keep":
        keep(options.name)
    else:
        add(options.name, options.images)


if __name__ == "__main__":
    main()
