"""Trials for the speedrun: short trainings, one lever changed in each, ranked on images held out of the training set.

    python benchmarks/speedrun.py [--round ROUND] [NAME ...]   # all, or these; killed, the same command resumes

Each trains on one thread into runs/speedrun/NAME-ROUND; what came out is added to docs/speedrun/trials.jsonl, from
which the table of docs/speedrun.md is made. A trial that is there is not run again.
"""

import argparse
import json

import torch
from measure import ROOT, table
from zoo import commit, insist_on_published

import robustvit as rv
from robustvit.core.journal import read_rows

BASE = "cifar10/speedrun"
JUDGE = "pgd-20:loss=cw"
"""PGD on the cross-entropy leaves 9 points more than AutoAttack, on the margin about 4."""
JUDGES = {JUDGE: "PGD-20 on the margin", "pgd-10": "PGD-10"}
_SHORT = {"precision": "bf16", "epochs": 3, "validation.every": 3, "validation.suite": JUDGE}
_TOKENS = {"model.settings.residual": [0, 0], "model.settings.early_depth": 1}
_CONVOLUTIONS = {"model.settings.residual": [1, 1], "model.settings.early_depth": 0}
ROUNDS = {
    "600": {"epochs": 2, "validation.every": 100, "precision": "float32"} | _TOKENS,
    "3": _SHORT | _TOKENS,
    "3-convolutions": _SHORT | _CONVOLUTIONS,
    "28": {"validation.every": 28, "validation.suite": JUDGE},  # as long as the record, where it begins to overfit
}
"""By the number of epochs, what every trial of a round changes in the recipe; later ones add what was best before."""
ADAMW = "{opt: adamw, lr: 2.0e-3, weight_decay: 0.05, betas: [0.9, 0.98]}"
TRADES = "{name: trades, beta: 8, label_smoothing: 0.1, attack: {name: pgd, steps: 2, step: 0.7*eps, start: uniform}}"
LION = "{opt: lion, lr: 3.0e-4, weight_decay: 0.3, betas: [0.9, 0.98]}"
TRIALS: dict[str, tuple[str, list[str]]] = {
    "none": ("nothing else", []),
    "float32": ("float32 instead of bf16", ["precision=float32"]),
    "no-normal-phase": ("attacked from the first step", ["eps_schedule.begin=0.0", "eps_schedule.until=0.2"]),
    "smoothing-0": ("no label smoothing", ["objective.label_smoothing=0.0"]),
    "smoothing-0.4": ("label smoothing 0.4", ["objective.label_smoothing=0.4"]),
    "ema": ("average of the weights, over a tenth of the run", ["ema={decay: 0.987}"]),
    "adamw": ("AdamW for all parameters, rate 2e-3", [f"optimizer={ADAMW}"]),
    "lion": ("Lion for all parameters, rate 3e-4", [f"optimizer={LION}"]),
    "trades": ("TRADES with two steps instead of N-FGSM", [f"objective={TRADES}"]),
    "rate-0.01": ("Muon's rate 0.01", ["optimizer.lr=0.01"]),
    "rate-0.04": ("Muon's rate 0.04", ["optimizer.lr=0.04"]),
    "noise-1": ("noise of 1 eps instead of 2", ["objective.noise=1.0"]),
    "step-1.25": ("a step of 1.25 eps", ["objective.step=1.25"]),
    "batch-64": ("batches of 64", ["batch_size=64"]),
    "batch-256": ("batches of 256", ["batch_size=256"]),
    "class-token": (
        "a class token instead of the mean",
        ["model.settings.class_token=true", "model.settings.global_pool=token"],
    ),
    "decay-0.2": ("weight decay 0.2", ["optimizer.weight_decay=0.2"]),
    "wide": (
        "256 dimensions, 3 blocks",
        ["model.settings.embed_dim=256", "model.settings.depth=3", "model.settings.num_heads=8"],
    ),
    "coarse-convolutions": (
        "two residual convolutions at 8x8 instead of the block there",
        ["model.settings.residual=[0, 1]", "model.settings.early_depth=0"],
    ),
    "convolutions": (
        "two residual convolutions at 16x16 and two at 8x8 instead of the block there",
        ["model.settings.residual=[1, 1]", "model.settings.early_depth=0"],
    ),
    "fine-convolutions": ("two residual convolutions at 16x16 in addition", ["model.settings.residual=[1, 0]"]),
    "crop-4": ("crops from a border of 4 pixels", ["augmentation.pad=4"]),
    "crop-4-step-1.25": (
        "crops from a border of 4 pixels, a step of 1.25 eps",
        ["augmentation.pad=4", "objective.step=1.25"],
    ),
    "cutmix": (
        "crops from a border of 4 pixels, CutMix in half of the batches",
        ["augmentation.pad=4", "mixing={mixup: null, cutmix: 1.0, probability: 0.5}"],
    ),
}
KEPT = ROOT / "docs" / "speedrun" / "trials.jsonl"
PAGE = ROOT / "docs" / "speedrun.md"
BEGIN, END = "<!-- trials, made by benchmarks/speedrun.py -->", "<!-- end of trials -->"


def kept() -> dict[tuple[str, str], dict[str, object]]:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["round"], row["name"]): row for row in rows}


def run(stage: str, name: str) -> None:
    about, overrides = TRIALS[name]
    given = [f"{key}={value}" for key, value in ROUNDS[stage].items()]
    folder = ROOT / "runs" / "speedrun" / f"{name}-{stage}"
    sources = commit()
    rv.train(BASE, run=folder, overrides=[*given, *overrides])
    last = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "validation"][-1]
    cost = json.loads((folder / "cost.json").read_text())
    row = {
        "round": stage, "name": name, "about": about, "overrides": [*given, *overrides], "commit": sources, **cost,
        "epochs": last["epoch"], "clean": last["clean_accuracy"], "robust": last["robust_accuracy"],
        "images": last["images"], "suite": last["suite"],
    }  # fmt: skip
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps(row) + "\n")


def write_table() -> None:
    rows = sorted(kept().values(), key=lambda row: (list(ROUNDS).index(str(row["round"])), -float(str(row["robust"]))))
    cells = [
        [
            str(row["round"]), f"`{row['name']}`", str(row["about"]), f"{float(str(row['epochs'])):g}",
            f"{float(str(row['cpu_seconds'])):,.0f}",
            *(f"{100 * float(str(row[key])):.1f}" for key in ("clean", "robust")), JUDGES[str(row["suite"])],
        ]
        for row in rows
    ]  # fmt: skip
    head = ["round", "trial", "change", "epochs", "core-seconds", "clean", "robust", "by"]
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *table(head, cells), f"{END}{after}"]))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round", choices=list(ROUNDS), default="3")
    parser.add_argument("names", nargs="*", choices=[*TRIALS, []])
    options = parser.parse_args()
    insist_on_published()
    for name in options.names or TRIALS:
        if (options.round, name) not in kept():
            run(options.round, name)
        write_table()


if __name__ == "__main__":
    main()
