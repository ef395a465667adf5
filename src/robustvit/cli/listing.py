"""`robustvit list`."""

import importlib
from typing import Annotated

import typer

from robustvit.cli.options import optional
from robustvit.core.errors import UserError, nearest

OTHERS = ("models", "optimizers", "presets", "recipes", "suites", "sweeps", "zoo")
"""What can be listed in addition to the registered components."""


def listing(
    kind: Annotated[
        str | None, typer.Argument(help=f"Such as attacks, objectives, {', '.join(OTHERS)}.", show_default=False)
    ] = None,
    match: Annotated[str | None, optional(help="Models: all of timm's like 'xcit*'; default: the papers'.")] = None,
) -> None:
    """List what there is, with one line about each.

    Example: robustvit list attacks
    """
    known = [kind] if kind in OTHERS else sorted({*OTHERS, *component_kinds()})
    if kind is not None and kind not in known:
        raise UserError(f"list: no kind '{kind}'{nearest(kind, known)}")
    wanted = [kind] if kind else [name for name in known if name not in ("models", "optimizers")]
    for number, name in enumerate(wanted):
        if len(wanted) > 1:
            typer.echo(f"{'' if number == 0 else chr(10)}{name}")
        if name == "models" and match is None:
            _echo_paper_models()
            continue
        rows = _rows(name, match)
        width = max((len(row[0]) for row in rows), default=0)
        for left, right in rows:
            typer.echo(f"  {left:<{width}}  {right}".rstrip())
    if kind is None:
        typer.echo("\nmodels, optimizers: all of timm's; robustvit list models --match 'xcit*'")


def component_kinds() -> dict[str, str]:
    """Every registered kind of component by its plural, which the command line takes."""
    from robustvit.core.component import kinds

    for package in ("analysis", "training"):  # which register every component of robustvit
        importlib.import_module(f"robustvit.{package}")
    return {_plural(kind): kind for kind in kinds()}


def _plural(kind: str) -> str:
    if kind.endswith("is"):
        return f"{kind[:-2]}es"
    if kind.endswith(("a", "s")):  # data, adapters
        return kind
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _rows(kind: str, match: str | None) -> list[tuple[str, str]]:
    if kind in ("recipes", "sweeps"):
        from robustvit.core.config import load_recipe, load_sweep, shipped_recipes, shipped_sweeps
        from robustvit.core.recipe_info import info_of

        names, load = (shipped_recipes(), load_recipe) if kind == "recipes" else (shipped_sweeps(), load_sweep)
        infos = [(name, info_of(load(name))) for name in names]
        return [(name, "; ".join(filter(None, (info.about, info.headline)))) for name, info in infos]
    if kind == "models":
        from robustvit.models.registered import timm

        return [(name, "") for name in timm.list_models(match or "*")]
    if kind == "optimizers":
        from timm.optim import list_optimizers

        return [(str(name), "") for name in list_optimizers()]
    if kind == "zoo":
        from robustvit.core.summary import headline_text
        from robustvit.models.zoo import PREFIX, zoo_card, zoo_names, zoo_result

        return [
            (f"{PREFIX}{name}", f"{zoo_card(name).about}; {headline_text(zoo_result(name))}") for name in zoo_names()
        ]
    if kind == "presets":
        from robustvit.cards.preset import load_preset, shipped_presets

        return [(name, load_preset(name).about) for name in shipped_presets()]
    if kind == "suites":
        from robustvit.evaluation.suite_names import SHORT_FORMS

        short = [(family.form, family.about) for family in SHORT_FORMS]
        suites = [(f"{{name: {name}}}", about) for name, about in _components("suite")]
        return [*short, *suites, *_evaluators()]
    return _components(component_kinds()[kind])


def _evaluators() -> list[tuple[str, str]]:
    """Those that can be named as a suite, with the settings that they need: `imagenet-r:path=...`."""
    from dataclasses import MISSING, fields

    from robustvit.core.component import registered

    rows = []
    for name, about in _components("evaluator"):
        needed = [one for one in fields(registered("evaluator")[name]) if one.default is one.default_factory is MISSING]
        if not any(one.name == "threat" for one in needed):  # whose suites are listed themselves
            settings = ",".join(f"{one.name}=..." for one in needed)
            rows.append((f"{name}:{settings}" if settings else name, about))
    return rows


def _components(kind: str) -> list[tuple[str, str]]:
    from robustvit.core.component import registered

    return [(name, (made.__doc__ or "").splitlines()[0]) for name, made in registered(kind).items()]


def _echo_paper_models() -> None:
    """The papers' counts next to ours."""
    from robustvit.models.papers import NOTES, paper_models

    typer.echo("  parameters and multiply-adds of a forward pass (matrix products, convolutions), as printed / counted")
    width = max(len(model.title) for models in paper_models().values() for model in models)
    for paper, models in paper_models().items():
        typer.echo(f"  {paper}")
        for model in models:
            cost, patch = model.cost, f", patch_size {model.patch_size}" if model.patch_size else ""
            parameters = f"{_printed(model.parameters)} / {cost.parameters / 1e6:.2f} M"
            multiply_adds = f"{_printed(model.multiply_adds)} / {cost.multiply_adds / 1e9:.2f} G"
            note = f" ({NOTES[model.note]})" if model.note else ""
            costs = f"{parameters}, {multiply_adds}{note}: {model.name}, {model.img_size} px{patch}"
            typer.echo(f"    {model.title:<{width}}  {costs}")


def _printed(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
