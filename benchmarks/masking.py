"""Does scaled attention find what plain attacks miss? ViTs as trained, and with their queries multiplied.

Writes docs/attention-masking.md, with a section for each run folder given (default: digits/trades, trained below
runs/bench):  python benchmarks/masking.py RUN:IMAGES:TIMES+TIMES ...  Outcomes are kept next to each run, so that a
second call resumes.
"""

import copy
import sys
import warnings
from pathlib import Path

import torch
from measure import table, trained, write_page
from torch import nn

import robustvit as rv
from robustvit.core.run import RunFolder
from robustvit.data import as_pixels
from robustvit.data.open import images_from
from robustvit.models.attention_probe import attention_blocks, probing
from robustvit.training import recipe_from

PLAIN = "pgd-100:step=eps/4"
FACTORS = (10.0, 0.1, 0.01, 0.001)
ABOUT = f"""\
Robust accuracy in percent of all images under PGD with 100 steps (step eps/4), alone and with scaled attention, judged
on the original model. Queries are multiplied until the softmax underflows: `softmax zero` is the fraction of entries
that are exactly 0 in float32, `no gradient` the fraction of images whose input gradient is exactly zero (64 images).
`+ random` uses random factors instead of searched ones; `+ AAS, original` compares with the model itself instead of
the previous factors; `+ one factor` is the best of {", ".join(f"{factor:g}" for factor in FACTORS)}. `or`: an image is
robust if it is robust under both; `any` is all attacks to the left of it.
"""
HEAD = [
    "queries x", "clean", "softmax zero", "no gradient", "PGD-100", "+ AAS", "+ random", "+ AAS, original",
    "+ one factor", "PGD or AAS", "PGD or any", "AutoAttack", "AutoAttack or AAS",
]  # fmt: skip


def multiplied(model: nn.Module, times: float) -> nn.Module:
    """The same model with every query of its self-attention so many times as long."""
    hard = copy.deepcopy(model)
    for block in attention_blocks(hard).values():
        norm = block.get_submodule("q_norm")
        with torch.no_grad():
            if isinstance(norm, nn.Identity):
                rows = slice(block.qkv.out_features // 3)  # type: ignore[union-attr, operator, arg-type]
                block.qkv.weight[rows] *= times  # type: ignore[union-attr, index]
                if block.qkv.bias is not None:  # type: ignore[union-attr]
                    block.qkv.bias[rows] *= times  # type: ignore[union-attr, index]
            else:
                for parameter in norm.parameters():
                    parameter *= times
    return hard


def lost(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """The fraction of softmax entries that are exactly 0 in float32, and of images whose gradient is."""
    zeros: list[float] = []

    def look(block: int, scores: torch.Tensor) -> torch.Tensor:
        zeros.append(float((scores.softmax(-1) == 0).float().mean()))
        return scores

    point = x.clone().requires_grad_()
    with probing(model, look):
        loss = nn.functional.cross_entropy(model(point), y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, point)
    return sum(zeros) / len(zeros), float((gradient.flatten(1).abs().amax(1) == 0).float().mean())


def row(run: RunFolder, times: float, images: int) -> list[str]:
    recipe = recipe_from(run.recipe)
    model = multiplied(rv.load_model(run.checkpoints / "last.safetensors").eval(), times)
    folder = run.path.parent / f"{run.path.name}-masking" / f"x{times:g}"

    def under(suite: str) -> rv.Result:
        return rv.evaluate(
            model, recipe.data, suite=suite, threat=recipe.threat, images=images, run=folder, checks=False
        )

    plain, searched, from_original = (
        under(suite) for suite in (PLAIN, f"aas-{PLAIN}", f"aas-{PLAIN},search_reference=original")
    )
    by_factor = {factor: under(f"aas-{PLAIN},factors={factor}") for factor in FACTORS}
    best = min(by_factor, key=lambda factor: by_factor[factor].robust_accuracy)
    full = under("autoattack")
    x, y = images_from(recipe.data, "test").take(torch.arange(64))
    zero, no_gradient = lost(model, as_pixels(x), y)
    worst = plain.is_robust & searched.is_robust
    whole = worst & from_original.is_robust
    for result in by_factor.values():
        whole = whole & result.is_robust
    assert searched.control_result is not None
    by_chance = searched.control_result.robust_accuracy
    fractions = [
        zero, no_gradient, plain.robust_accuracy, searched.robust_accuracy, by_chance,
        from_original.robust_accuracy, by_factor[best].robust_accuracy, worst.mean(), whole.mean(),
        full.robust_accuracy, (full.is_robust & searched.is_robust).mean(),
    ]  # fmt: skip
    figures = [f"{100 * float(fraction):.1f}" for fraction in fractions]
    figures[6] += f" ({best:g})"
    print(run.path.name, times, plain.clean_accuracy, figures, flush=True)
    return [f"{times:g}", f"{100 * plain.clean_accuracy:.1f}", *figures]


def section(given: str) -> list[str]:
    where, images, factors = given.split(":")
    run = RunFolder(Path(where)) if where else trained("digits/trades")
    recipe = recipe_from(run.recipe)
    epochs = sum(phase.epochs for phase in recipe.phases)
    lines = [f"## {recipe.name}", "", f"{images} test images, {recipe.threat}, trained for {epochs} epochs.", ""]
    return lines + table(HEAD, [row(run, float(times), int(images)) for times in factors.split("+")])


def main(given: list[str]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    lines = ["# Attention scaling and masked gradients", "", ABOUT]
    for each in given:
        lines += section(each)
        write_page("attention-masking.md", lines)


if __name__ == "__main__":
    main(sys.argv[1:] or [":200:1+100+10000"])
