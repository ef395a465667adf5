"""`robustvit analyze`."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from robustvit.cli.options import HeadName, ModelArgument, ThreatOptions, optional, with_options

ALL = "all"


@with_options
def analyze(
    reference: ModelArgument,
    options: ThreatOptions,
    what: Annotated[
        str, typer.Option(help="Such as attention_scores,input_gradients (see robustvit list), or all that fit.")
    ],
    compare: Annotated[
        list[str] | None, optional("--compare", metavar="MODEL", help="Another model in the same pictures; repeatable.")
    ] = None,
    on: Annotated[
        list[str] | None,
        optional("--on", metavar="SUITE", help="On adversarial images of each model, such as pgd-20, or clean (the "
                 "default); given several times, all in the same pictures."),
    ] = None,
    eps: Annotated[str | None, optional(help="Such as 8/255; default: the run's.")] = None,
    head: HeadName = None,
    images: Annotated[int, typer.Option(help="At most so many, a seeded random subset.")] = 256,
    plan_only: Annotated[bool, typer.Option("--plan", help="Only print what would be computed, and its cost.")] = False,
) -> None:  # fmt: skip
    """Look into a model; findings go into the run folder, for the report. Stopped, the same command resumes.

    Example: robustvit analyze runs/digits-trades --what attention_scores --on clean --on pgd-20
    """
    from robustvit.analysis import analyze as run
    from robustvit.cli.given import open_given
    from robustvit.cli.launch import launched_world
    from robustvit.cli.table import print_findings
    from robustvit.core.component import registered
    from robustvit.core.errors import UserError

    world = launched_world(options.device)
    known, kinds = registered("analysis"), on or ["clean"]
    settings, others = _settings(what, options.override or [], known)
    is_all = settings.pop(ALL, None) is not None
    if world.size > 1:
        if is_all:
            raise UserError("--what all: with torchrun, name the analyses; each process takes some of them")
        settings = dict(list(settings.items())[world.rank :: world.size])
        if not settings:
            return
    options = replace(options, override=others)
    attacks = any("threat" in known[name].__dataclass_fields__ for name in settings if name in known and not is_all)
    needs_eps = attacks or any(kind != "clean" for kind in kinds)
    ref, threats, alike, _ = open_given(reference, options, eps, eps_needed=needs_eps)
    if len(threats) > 1:
        raise UserError("--eps: an analysis takes one")
    threat = threats[0] if threats[0].eps or needs_eps else None
    wanted = [*([ALL] if is_all else []), *settings.values()]
    findings = run(
        ref, what=wanted, compare=compare or [], on=kinds, threat=threat, head=head, images=images, device=world.device,
        plan_only=plan_only, **alike,
    )  # fmt: skip
    if not plan_only:
        print_findings(findings)
        typer.echo(f"{alike['run']}/analysis; robustvit report {alike['run']} shows it")


def _settings(what: str, overrides: Sequence[str], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """The analyses that are named with their settings, and the changes of other things than analyses."""
    from robustvit.core.config import apply_overrides
    from robustvit.core.errors import UserError

    names = list(dict.fromkeys(name.strip() for name in what.split(",") if name.strip()))
    mine = {change: change.partition(".")[0] for change in overrides if change.partition(".")[0] in {*known, *names}}
    for change, name in mine.items():
        if name not in names and ALL not in names:
            raise UserError(f"-o {change}: {name} is not among the analyses; add it: --what {','.join((*names, name))}")
    tree = {name: {"name": name} for name in (*names, *mine.values())}
    return apply_overrides(tree, list(mine)), [change for change in overrides if change not in mine]
