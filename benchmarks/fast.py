"""The suite `fast` against AutoAttack: passes, time, and whether AutoAttack's value lies inside the bound.

Writes docs/benchmarks-fast.md. Outcomes are kept below runs/bench, so a second call goes on where the first was
stopped; seconds are those of the batches, summed, as the ledger keeps them.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from measure import ROOT, table, trained, write_page

import robustvit as rv
from robustvit.attacks import APGD
from robustvit.core.result import StageResult
from robustvit.evaluation import Plan, Stage
from robustvit.evaluation.sampling import choose_sample
from robustvit.evaluation.suite import FAST_TARGETS

IMAGES = 200
LARGE = 10_000
BENCH = ROOT / "runs" / "bench"
SUBJECTS: list[tuple[str, Any, rv.LpBall]] = [
    ("digits/trades", "digits/trades", rv.LpBall("inf", 0.15)),
    ("digits/pgd_at", "digits/pgd_at", rv.LpBall("inf", 0.15)),
    ("digits/standard", "digits/standard", rv.LpBall("inf", 0.05)),
]


def nine_targets() -> Plan:
    """The gradient stages of `fast` with all targets, to see what each is worth."""
    towards = (Stage(f"apgd-malt/{i + 1}", APGD(loss="dlr"), i + 2, "nearest") for i in range(9))
    return Plan("nine-targets", (Stage("apgd-pm", APGD(loss="pm")), *towards))


def passes(stages: Sequence[StageResult]) -> float:
    return sum(stage.passes for stage in stages)


def at_large(result: rv.Result) -> float:
    """Passes of `fast` at 10,000 images from those measured: a stage's grow with the images, the sample hardly."""
    whole = [stage for stage in result.stages if not stage.is_sampled]
    sampled = [stage for stage in result.stages if stage.is_sampled]
    survivors = round(LARGE * result.details["bound"]["survivors"] / result.num_images)
    size = len(choose_sample(list(range(survivors)), LARGE, 0, None).images)
    return passes(whole) * LARGE / result.num_images + passes(sampled) / result.details["bound"]["sampled"] * size


def row(name: str, recipe: Any, threat: rv.LpBall) -> tuple[list[str], list[str]]:
    run = trained(recipe)
    model = rv.load_model(run.checkpoints / "last.safetensors").eval()
    options = {"threat": threat, "images": IMAGES, "run": BENCH / "fast"}
    quick = rv.evaluate(model, "digits", suite="fast", **options)
    gains = rv.evaluate(model, "digits", suite=nine_targets(), **options)
    full = rv.evaluate(model, "digits", suite="autoattack", **options)
    bound = quick.details["bound"]
    low = bound["robust_accuracy_at_least"]
    gained = int((~quick.is_robust & full.is_robust).sum())
    missed = int((quick.is_robust & ~full.is_robust).sum())
    seconds = [sum(stage.seconds for stage in result.stages) for result in (quick, full)]
    title = f"{name}, {threat}"
    figures = [
        f"{passes(quick.stages) / passes(full.stages):.2f}",
        f"{seconds[0] / seconds[1]:.2f}",
        f"{at_large(quick) / (passes(full.stages) * LARGE / full.num_images):.3f}",
        f"{100 * quick.robust_accuracy:.1f}",
        f"{bound['fooled']} of {bound['sampled']} of {bound['survivors']}",
        f"{100 * low:.1f}",
        f"{100 * full.robust_accuracy:.1f}",
        "yes" if full.robust_accuracy >= low else "no",
        f"{gained} / {missed}",
    ]
    print(title, figures, [stage.num_fooled for stage in gains.stages], flush=True)
    return [title, *figures], [title, *(str(stage.num_fooled) for stage in gains.stages)]


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    load = f"Load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    rows = [row(*subject) for subject in SUBJECTS]
    lines = ["# The suite `fast` against AutoAttack", ""]
    lines += [
        f"{IMAGES} images of the digits, one thread (`python benchmarks/fast.py`). {load}",
        "Passes and seconds are summed over the stages and shown as ratios to AutoAttack's;",
        f"those at {LARGE:,} images are computed: a stage scales with the images, the sample with the precision.",
        "Robust accuracies in percent.",
        "",
    ]
    head = [
        "model",
        "passes",
        "time",
        f"passes at {LARGE:,}",
        "robust, fast",
        "fooled in sample",
        "AutoAttack at least",
    ]
    lines += table([*head, "AutoAttack", "inside", "only fast / only AutoAttack"], [first for first, _ in rows])
    lines += [
        f"Images that each stage fools, with nine targets where `fast` has {FAST_TARGETS}:",
        "",
    ]
    lines += table(["model", "apgd-pm", *(f"malt/{i}" for i in range(1, 10))], [second for _, second in rows])
    write_page("benchmarks-fast.md", lines)


if __name__ == "__main__":
    main()
