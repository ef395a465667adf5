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
from robustvit.evaluation.autoattack import FAST_TARGETS
from robustvit.evaluation.result import AttackResult

import robustvit as rv
from robustvit.attacks import APGD
from robustvit.evaluation import Stage, Suite
from robustvit.evaluation.sampling import choose_sample

IMAGES = 200
LARGE = 10_000
BENCH = ROOT / "runs" / "bench"
SUBJECTS: list[tuple[str, Any, rv.LpBall]] = [
    ("digits/trades", "digits/trades", rv.LpBall("inf", 0.15)),
    ("digits/pgd-at", "digits/pgd-at", rv.LpBall("inf", 0.15)),
    ("digits/standard", "digits/standard", rv.LpBall("inf", 0.05)),
]


def nine_targets() -> Suite:
    """The gradient stages of `fast` with all targets, to see what each is worth."""
    towards = (Stage(f"apgd-malt/{i + 1}", APGD(loss="dlr"), i + 2, "nearest") for i in range(9))
    return Suite("nine-targets", (Stage("apgd-pm", APGD(loss="pm")), *towards))


def passes(stages: Sequence[AttackResult]) -> float:
    return sum(stage.passes for stage in stages)


def at_large(result: rv.EvalResult) -> float:
    """Passes of `fast` at 10,000 images from those measured: a stage's grow with the images, the sample hardly."""
    assert result.bound is not None
    whole = [stage for stage in result.attacks if not stage.name.startswith("sample: ")]
    sampled = [stage for stage in result.attacks if stage.name.startswith("sample: ")]
    survivors = round(LARGE * result.robust_accuracy)
    size = len(choose_sample(list(range(survivors)), LARGE, 0, None).images)
    return passes(whole) * LARGE / result.num_images + passes(sampled) / result.bound["sampled"] * size


def row(name: str, recipe: Any, threat: rv.LpBall) -> tuple[list[str], list[str]]:
    run = trained(recipe)
    model = rv.load_model(run.checkpoints / "last.safetensors").eval()
    options = {"threat": threat, "images": IMAGES, "run": BENCH / "fast"}
    quick = rv.evaluate(model, "digits", suite="fast", **options)
    gains = rv.evaluate(model, "digits", suite=nine_targets(), **options)
    full = rv.evaluate(model, "digits", suite="autoattack", **options)
    assert quick.bound is not None
    low = quick.bound["robust_accuracy_at_least"]
    gained = int((~quick.is_robust & full.is_robust).sum())
    missed = int((quick.is_robust & ~full.is_robust).sum())
    seconds = [sum(stage.seconds for stage in result.attacks) for result in (quick, full)]
    title = f"{name}, {threat}"
    figures = [
        f"{passes(quick.attacks) / passes(full.attacks):.2f}",
        f"{seconds[0] / seconds[1]:.2f}",
        f"{at_large(quick) / (passes(full.attacks) * LARGE / full.num_images):.3f}",
        f"{100 * quick.robust_accuracy:.1f}",
        f"{quick.bound['fell']} of {quick.bound['sampled']} of {quick.bound['survivors']}",
        f"{100 * low:.1f}",
        f"{100 * full.robust_accuracy:.1f}",
        "yes" if full.robust_accuracy >= low else "no",
        f"{gained} / {missed}",
    ]
    print(title, figures, [stage.fell for stage in gains.attacks], flush=True)
    return [title, *figures], [title, *(str(stage.fell) for stage in gains.attacks)]


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    load = f"The machine's load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    rows = [row(*subject) for subject in SUBJECTS]
    lines = ["# The suite `fast` against AutoAttack", ""]
    lines += [
        f"{IMAGES} images of the digits, one thread (`python benchmarks/fast.py`). {load}",
        "Passes and seconds are summed over the stages and shown as ratios to AutoAttack's;",
        f"those at {LARGE:,} images are computed: a stage's grow with the images, the sample as the precision needs.",
        "Robust accuracies in percent.",
        "",
    ]
    head = ["model", "passes", "time", f"passes at {LARGE:,}", "robust, fast", "sample fell", "AutoAttack at least"]
    lines += table([*head, "AutoAttack", "inside", "only fast / only AutoAttack"], [first for first, _ in rows])
    lines += [
        f"Images that each stage takes, with nine targets where `fast` has {FAST_TARGETS}:",
        "",
    ]
    lines += table(["model", "apgd-pm", *(f"malt/{i}" for i in range(1, 10))], [second for _, second in rows])
    write_page("benchmarks-fast.md", lines)


if __name__ == "__main__":
    main()
