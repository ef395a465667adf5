"""`robustvit card`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustvit.cli.options import ModelsArgument, ThreatOptions, optional, with_options
from robustvit.core.errors import UserError, check_counts
from robustvit.core.progress import say

if TYPE_CHECKING:
    from robustvit.cards import CardPlan


@with_options
def card(
    references: ModelsArgument,
    options: ThreatOptions,
    preset: Annotated[str, typer.Option(help="A name (robustvit list presets) or a YAML file.")] = "quick",
    eps: Annotated[str | None, optional(help="For rows that follow the run's eps; default: the run's.")] = None,
    path: Annotated[
        list[str] | None, optional("--path", metavar="SUITE=FOLDER", help="Where images such as imagenet-r's are.")
    ] = None,
    images: Annotated[int | None, optional(help="At most so many in each row.")] = None,
    processes: Annotated[
        int | None, optional(help="So many processes of one thread each share the images; default: as many as pay off.")
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Only print rows, images, passes and time.")] = False,
    fail_under: Annotated[
        list[str] | None,
        optional("--fail-under", metavar="NAME=PERCENT", help="Exit with code 1 if this accuracy of a model is lower."),
    ] = None,
) -> None:
    """Evaluate models by a preset and write their robustness card; stopped or killed, the same command resumes.

    Example: robustvit card runs/digits-trades --preset quick --fail-under robust=40
    """
    from robustvit.cards.limits import check_planned, parse_limits, under_limit
    from robustvit.cards.make import make_card
    from robustvit.cards.preset import load_preset
    from robustvit.cli.launch import one_process
    from robustvit.cli.table import print_card
    from robustvit.core.card import FILE
    from robustvit.reporting import open_card

    check_counts(images=1 if images is None else images, processes=1 if processes is None else processes)
    device, wanted = one_process("card", options.device).device, fail_under or []
    if len(references) == 1 and Path(references[0]).name == FILE:
        made = open_card(Path(references[0]))
        limits = parse_limits(wanted, {line.name: "" for line in made.lines})
    else:
        limits = parse_limits(wanted, load_preset(preset).lines)
        more = {"images": images, "processes": processes, "device": device}
        plan = _planned(references, options, preset, eps, path or [], **more)
        say(plan.text())
        check_planned(limits, plan)
        if plan_only:
            return
        made = make_card(plan)
    print_card(made)
    typer.echo(str(made.page))
    under, unsure = under_limit(made, limits)
    for text in unsure:
        say(f"robustvit: {text}")
    if under:
        say(f"robustvit: {'; '.join(under)}")
        raise typer.Exit(1)


def _planned(
    references: list[str], options: ThreatOptions, preset: str, eps: str | None, paths: list[str], **more: Any
) -> "CardPlan":
    """What the command line says about models and images, opened."""
    from robustvit.cards.make import candidate
    from robustvit.cards.opening import plan_card, with_names
    from robustvit.cards.plan import Options
    from robustvit.cards.preset import load_preset
    from robustvit.cli.given import open_given

    candidates = []
    alike: dict[str, Any] = {}
    for reference in references:
        ref, threats, alike, warnings = open_given(reference, options, eps, eps_needed=False)
        if len(threats) > 1:
            raise UserError("--eps: a card takes one")
        threat = threats[0] if threats[0].eps else None
        candidates.append(candidate(ref, alike["data"], threat, options.run, warnings))
    same = {name: alike[name] for name in ("split", "seed", "batch_size")}
    how = Options(paths=dict(map(_place, paths)), **same, **more)
    return plan_card(with_names(candidates), Path(preset).stem, load_preset(preset), how)


def _place(text: str) -> tuple[str, Path]:
    suite, equals, folder = text.partition("=")
    if not (suite and equals and folder):
        raise UserError(f"--path {text}: expected SUITE=FOLDER, such as imagenet-r=data/imagenet-r")
    return suite, Path(folder)
