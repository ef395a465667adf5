"""Does MeanSparse make the zoo's robust ViTs more robust, or does it hide their gradients?

    python benchmarks/mean_sparse.py [NAME ...]

Writes docs/benchmarks-mean-sparse.md. Every evaluation is kept below runs/bench/mean-sparse, and a second call goes on.
"""

import sys

import numpy as np
from measure import ROOT, table, write_page
from torch import nn

import robustvit as rv
from robustvit.core.numbers import mean_interval
from robustvit.models.mean_sparse import mean_sparse

NAMES = ("speedrun", "vit_trades")
ALPHAS = (0.0, 0.2, 0.35)
"""Amini et al. take 0.2 to 0.35 for most of their models; 0 is the model without MeanSparse."""
TRAINING, IMAGES = 10_000, 300
THREAT = rv.LpBall("inf", "8/255")
SUITE = "[apgd-ce, apgd-t, square:queries=1000]"
"""With a search that follows no gradient; on all images, as another sample for each model could not be compared."""
KEPT = ROOT / "runs" / "bench" / "mean-sparse"


def judged(name: str) -> list[list[str]]:
    plain = rv.load_model(f"zoo:{name}").eval().requires_grad_(False)
    training, _ = rv.load_data("cifar10", TRAINING, split="train")
    rows, before = [], np.zeros(0)
    for alpha in ALPHAS:
        sparse = mean_sparse(plain, training, alpha) if alpha else plain
        own = through = carried = robust(sparse, f"{name}-{alpha}-own")
        if alpha:  # without MeanSparse the three are one
            straight = mean_sparse(plain, training, alpha, straight_through=True)
            through = robust(straight, f"{name}-{alpha}-straight")
            carried = robust(sparse, f"{name}-{alpha}-carried", f"transfer:surrogate=zoo:{name}")
        worst = own.is_robust & through.is_robust & carried.is_robust
        before = worst if alpha == 0 else before
        difference = worst.astype(float) - before.astype(float)
        interval = mean_interval(difference, -1.0, 1.0)
        change = "" if interval is None or alpha == 0 else (
            f"{100 * difference.mean():+.1f} ({100 * interval[0]:+.1f} to {100 * interval[1]:+.1f})"
        )  # fmt: skip
        figures = (own.clean, own.headline.value, through.headline.value, carried.headline.value, worst.mean())
        rows.append([f"`zoo:{name}`", f"{alpha:g}", *(f"{100 * float(value):.1f}" for value in figures), change])
    return rows


def robust(model: nn.Module, name: str, suite: str = SUITE) -> rv.Result:
    return rv.evaluate(model, "cifar10", suite=suite, threat=THREAT, images=IMAGES, run=KEPT / name)


def main() -> None:
    rows = [row for name in sys.argv[1:] or NAMES for row in judged(name)]
    head = ["model", "alpha", "clean", "own gradient", "straight-through", "transferred", "worst of three",
            "change of the worst (95 %)"]  # fmt: skip
    write_page(
        "benchmarks-mean-sparse.md",
        [
            "# MeanSparse on vision transformers", "",
            "MeanSparse (Amini et al. 2024) changes a trained model: inputs of its activations within alpha standard",
            "deviations of their channel's mean become that mean (`robustvit.models.mean_sparse`). Does it help robust",
            "ViTs, or does it only hide the gradient, which is zero inside the band?", "",
            f"Accuracy in percent on {IMAGES} test images of CIFAR-10 at {THREAT}, attacked by `{SUITE}`:",
            "along the gradient of the changed model, and along one that passes MeanSparse as if it were not there,",
            "at the same outputs. Transferred images are those of PGD-20 on the model without it. The worst counts.",
            "", *table(head, rows),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
