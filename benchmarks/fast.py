"""The suite `fast` against AutoAttack: passes, time, and whether AutoAttack's value lies inside the bound.

Writes docs/benchmarks-fast.md. Outcomes are kept below runs/bench, so a second call goes on where the first was
stopped; seconds are those of the batches, summed, as the ledger keeps them. Other models than those of the recipes:

    python benchmarks/fast.py weights.safetensors=inf:0.1 ...
"""

import os
import sys
import warnings
from collections.abc import Sequence

import torch
from measure import ROOT, table, write_page
from torch import nn

import robustvit as rv
from robustvit.attacks import APGD
from robustvit.evaluation import Stage, Suite
from robustvit.evaluation.result import AttackResult
from robustvit.evaluation.sampling import choose_sample
from robustvit.evaluation.suites import FAST_TARGETS
from robustvit.training import train

IMAGES = 200
LARGE = 10_000
RECIPES = [
    ("digits/trades", rv.LpBall("inf", 0.15)),
    ("digits/pgd-at", rv.LpBall("inf", 0.15)),
    ("digits/standard", rv.LpBall("inf", 0.05)),
    ("digits/trades", rv.LpBall("2", 1.0)),
]
BENCH = ROOT / "runs" / "bench"


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


def row(name: str, model: nn.Module, threat: rv.LpBall) -> tuple[list[str], list[str]]:
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
    named: list[tuple[str, nn.Module, rv.LpBall]] = []
    for argument in sys.argv[1:]:
        path, _, size = argument.partition("=")
        norm, _, eps = size.partition(":")
        named.append((path, rv.load_model(path).eval(), rv.LpBall(norm, eps)))  # type: ignore[arg-type]
    for recipe, threat in RECIPES if not named else ():
        run = train(recipe, run=BENCH / recipe.rpartition("/")[2])
        named.append((recipe, rv.load_model(run.checkpoints / "last.safetensors").eval(), threat))
    rows = [row(*one) for one in named]
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
