"""`robustvit list`."""

import importlib
from typing import Annotated

import typer

from robustvit.core.errors import UserError, nearest

KINDS = (
    "analyses",
    "attacks",
    "augmentations",
    "data",
    "events",
    "loggers",
    "models",
    "objectives",
    "optimizers",
    "recipes",
    "schedules",
    "step_wrappers",
    "suites",
    "sweeps",
    "tasks",
)


def listing(
    kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}.", show_default=False)] = None,
    match: Annotated[
        str | None, typer.Option("--match", help="Models: all of timm's like 'xcit*'; default: the papers'.")
    ] = None,
) -> None:
    """List what there is, with one line about each.

    Example: robustvit list attacks
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"list: no kind '{kind}'{nearest(kind, list(KINDS))}")
    wanted = [kind] if kind else [name for name in KINDS if name not in ("models", "optimizers")]
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


def _rows(kind: str, match: str | None) -> list[tuple[str, str]]:
    if kind == "recipes":
        from robustvit.core.config import shipped_recipes

        return [(name, _first_comment(path.read_text())) for name, path in shipped_recipes().items()]
    if kind == "sweeps":
        from robustvit.core.config import shipped_sweeps

        return [(name, _first_comment(path.read_text())) for name, path in shipped_sweeps().items()]
    if kind == "models":
        return _timm_models(match or "*")
    if kind == "optimizers":
        from timm.optim import list_optimizers

        return [(str(name), "") for name in list_optimizers()]
    if kind == "suites":
        from robustvit.evaluation.suites import PATTERNS

        return [(family.form, family.about) for family in PATTERNS]
    from robustvit.core.component import registered

    for package in ("analysis", "training"):  # which register every component
        importlib.import_module(f"robustvit.{package}")
    singular = {"data": "data", "analyses": "analysis"}.get(kind, kind.removesuffix("s"))
    return [(name, (made.__doc__ or "").splitlines()[0]) for name, made in registered(singular).items()]


def _timm_models(match: str) -> list[tuple[str, str]]:
    import timm

    from robustvit.models import registered  # noqa: F401 - the papers' models beside timm's own

    return [(name, "") for name in timm.list_models(match)]


def _echo_paper_models() -> None:
    """Counted here, beside what the papers print; each as soon as it is counted, which takes a while for all."""
    from robustvit.models.papers import PAPER_MODELS

    typer.echo(
        "  parameters and multiply-adds of a forward pass: matrix products and convolutions, as printed / counted"
    )
    width = max(len(model.title) for models in PAPER_MODELS.values() for model in models)
    for paper, models in PAPER_MODELS.items():
        typer.echo(f"  {paper}")
        for model in models:
            cost, patch = model.cost(), f", patch_size {model.patch_size}" if model.patch_size else ""
            printed = [
                f"{'-' if value is None else f'{value:g}'} / {count:.2f} {unit}"
                for value, count, unit in (
                    (model.parameters, cost.parameters / 1e6, "M"),
                    (model.multiply_adds, cost.multiply_adds / 1e9, "G"),
                )
            ]
            note = f" ({model.note})" if model.note else ""
            told = f"{', '.join(printed)}{note}: {model.name}, {model.img_size} px{patch}"
            typer.echo(f"    {model.title:<{width}}  {told}")


def _first_comment(text: str) -> str:
    first = text.splitlines()[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
