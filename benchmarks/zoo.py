"""Trains the models of the zoo and writes their entries; both commands resume.

    python benchmarks/zoo.py train NAME   # its recipe, into runs/zoo/NAME
    python benchmarks/zoo.py keep NAME    # what was trained -> benchmarks/trained/NAME, for another machine to add
    python benchmarks/zoo.py add NAME     # half-precision weights, AutoAttack on them, card -> src/robustvit/zoo/NAME

CIFAR-10 is found as everywhere (ROBUSTVIT_DATA). What is evaluated is the file that ships, so the figures are those of
half precision.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import yaml
from measure import ROOT

import robustvit as rv
from robustvit.core.component import to_dict
from robustvit.core.result_files import write_result
from robustvit.core.run import RunFolder
from robustvit.models import load_checkpoint, model_cost, save_model
from robustvit.models.normalize import backbone_of
from robustvit.models.zoo import CARD, WEIGHTS, ZOO, Card

RUNS, TRAINED = ROOT / "runs" / "zoo", ROOT / "benchmarks" / "trained"
IMAGES = 1_000
LICENSE = "Apache 2.0, as the package; trained on CIFAR-10 (Krizhevsky 2009)"
LIMITS = (
    "Made for research on 32 pixel images of ten classes, from {seconds:,.0f} core-seconds of training: far below what "
    "published models of this data reach, and robust, if at all, to {threat} alone."
)
ENTRIES = {"speedrun": "cifar10/speedrun"}
"""Recipes of the entries that are not zoo/NAME."""
ABOUT = "zoo.json"
"""In the run folder of an entry: its recipe, overrides and the commit of the sources."""


def commit() -> str:
    changed = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, text=True).stdout
    if changed.strip():
        sys.exit("commit the sources first: the card names the commit that trained the model")
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def train(name: str, overrides: list[str]) -> None:
    run = RUNS / name
    run.mkdir(parents=True, exist_ok=True)
    about = run / ABOUT
    if not about.exists():
        recipe = ENTRIES.get(name, f"zoo/{name}")
        about.write_text(json.dumps({"recipe": recipe, "overrides": overrides, "commit": commit()}))
    known = json.loads(about.read_text())
    rv.train(known["recipe"], run=run, overrides=known["overrides"])


def keep(name: str) -> None:
    run = RunFolder(RUNS / name)
    for path in (run.recipe, run.checkpoint(), *(run.path / file for file in (ABOUT, "cost.json", "metrics.jsonl"))):
        copy = TRAINED / name / path.relative_to(run.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def add(name: str, images: int) -> None:
    if not (RUNS / name).exists() and (TRAINED / name).exists():
        shutil.copytree(TRAINED / name, RUNS / name)
    run, entry = RunFolder(RUNS / name), ZOO / name
    known = json.loads((run.path / ABOUT).read_text())
    cost = json.loads((run.path / "cost.json").read_text())
    recipe = run.read_recipe()
    model = load_checkpoint(run.checkpoint())
    backbone_of(model).half()
    save_model(model, entry / WEIGHTS, recipe=recipe)
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
        sha256=hashlib.sha256((entry / WEIGHTS).read_bytes()).hexdigest(),
        limits=LIMITS.format(seconds=cost["cpu_seconds"], threat=result.threat),
        license=LICENSE,
    )
    (entry / CARD).write_text(yaml.safe_dump(to_dict(card), sort_keys=False, width=110))
    write_result(entry, portable(result, f"zoo:{name}"))
    print(result.summary())


def portable(result: rv.Result, model: str) -> rv.Result:
    """Without the paths of the machine that it was made on."""
    about = result.provenance
    data = (
        f"{about.data.partition(' of ')[0]}{' (' + about.data.rpartition(' (')[2] if about.data.endswith(')') else ''}"
    )
    checkpoint = {**about.checkpoint, "path": model}
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
    if options.what == "train":
        train(options.name, options.overrides)
    elif options.what == "keep":
        keep(options.name)
    else:
        add(options.name, options.images)


if __name__ == "__main__":
    main()
