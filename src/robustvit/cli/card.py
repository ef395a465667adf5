"""`robustvit card`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustvit.cli.options import HeadName, ModelsArgument, ThreatOptions, optional, with_options
from robustvit.core.errors import UserError, check_counts
from robustvit.core.progress import say

if TYPE_CHECKING:
    from robustvit.cards import CardPlan, Preset


@with_options
def card(
    references: ModelsArgument,
    options: ThreatOptions,
    preset: Annotated[
        str | None, optional(help="A name (robustvit list presets) or a YAML file; default: quick.")
    ] = None,
    head: HeadName = None,
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
    from robustvit.cli.launch import launched_world
    from robustvit.cli.table import print_card
    from robustvit.core.card import FILE
    from robustvit.reporting import open_card

    check_counts(images=1 if images is None else images, processes=1 if processes is None else processes)
    world, wanted = launched_world(options.device), fail_under or []
    if any(Path(reference).name == FILE for reference in references):
        if len(references) > 1:
            raise UserError(f"{FILE}: one card is read at a time; name one file, or the models of a new card")
        given = {"preset": preset, "head": head, "eps": eps, "path": path, "images": images, "processes": processes}
        _refuse_ignored(options, **given, plan=plan_only or None)
        made = open_card(Path(references[0]))
        limits = parse_limits(wanted, [line.name for line in made.lines])
    else:
        preset = preset or "quick"
        limits = parse_limits(wanted, load_preset(preset).lines)
        more = {"images": images, "processes": processes, "device": world.device}
        plan = _planned(references, options, preset, head, eps, path or [], **more)
        if world.is_first:
            say(plan.text())
        check_planned(limits, plan)
        if plan_only or (computed := make_card(plan, world)) is None:
            return
        made = computed
    for limit in limits:
        if 0 < limit.percent < 1:
            say(f"robustvit: --fail-under {limit.name}={limit.percent:g} means {limit}; limits are in percent")
    print_card(made)
    typer.echo(str(made.page))
    under, unsure = under_limit(made, limits)
    for text in unsure:
        say(f"robustvit: {text}")
    if under:
        say(f"robustvit: {'; '.join(under)}")
        raise typer.Exit(1)


def _planned(
    references: list[str],
    options: ThreatOptions,
    preset: str,
    head: str | None,
    eps: str | None,
    paths: list[str],
    **more: Any,
) -> "CardPlan":
    """What the command line says about models and images, opened."""
    from robustvit.cards.make import candidate
    from robustvit.cards.opening import plan_card, with_names
    from robustvit.cards.plan import Options
    from robustvit.cards.preset import load_preset
    from robustvit.cli.given import open_given

    chosen = load_preset(preset)
    _refuse_replaced(options, preset, chosen)
    candidates, given = [], None
    alike: dict[str, Any] = {}
    for reference in references:
        ref, threats, alike, warnings = open_given(reference, options, eps, eps_needed=False)
        if len(threats) > 1:
            raise UserError("--eps: a card takes one")
        if options.has_threat(eps):
            given = threats[0]
            if not given.eps:
                raise UserError("--eps 0: allows no change at all; leave it out")
        threat = threats[0] if threats[0].eps else None
        candidates.append(candidate(ref, alike["data"], threat, options.run, head, warnings))
    same = {name: alike[name] for name in ("split", "seed", "batch_size")}
    how = Options(paths=dict(map(_place, paths)), threat=given, **same, **more)
    return plan_card(with_names(candidates), Path(preset).stem, chosen, how)


def _refuse_ignored(options: ThreatOptions, **given: Any) -> None:
    """A card that is read from its file takes limits alone."""
    from robustvit.core.card import FILE

    usual = ThreatOptions()
    given |= {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    ignored = next((name for name, value in given.items() if value != getattr(usual, name, None)), None)
    if ignored is not None:
        name = "-o" if ignored == "override" else f"--{ignored.replace('_', '-')}"
        raise UserError(f"{name}: {FILE} is read as it is; leave the option out, or name the models")


def _refuse_replaced(options: ThreatOptions, name: str, preset: "Preset") -> None:
    """Settings of the data that a preset sets itself."""
    keys = {*preset.data, *(key for row in preset.rows for key in row.data)}
    for change in options.override or []:
        path = change.partition("=")[0].strip().split(".")
        if path[0] == "data" and (len(path) == 1 or path[1] in keys) and keys:
            raise UserError(
                f"-o {change}: preset '{name}' sets data.{', data.'.join(sorted(keys))} itself; leave it out"
            )


def _place(text: str) -> tuple[str, Path]:
    suite, equals, folder = text.partition("=")
    if not (suite and equals and folder):
        raise UserError(f"--path {text}: expected SUITE=FOLDER, such as imagenet-r=data/imagenet-r")
    return suite, Path(folder)
