"""`robustvit analyze`."""

from dataclasses import replace
from typing import Annotated

import typer

from robustvit.cli.options import HeadName, ImageCount, ModelArgument, ThreatOptions, optional, with_options


@with_options
def analyze(
    reference: ModelArgument,
    options: ThreatOptions,
    what: Annotated[str, typer.Option(help="Such as attention_scores,input_gradients; see robustvit list.")],
    eps: Annotated[str | None, optional(help="Such as 8/255; default: the run's.")] = None,
    head: HeadName = None,
    images: ImageCount = 256,
) -> None:
    """Look into a model: what it finds goes into the run folder, where the report shows it.

    Example: robustvit analyze runs/digits-trades --what attention_scores
    """
    from robustvit.analysis import analyze as run
    from robustvit.cli.given import open_given
    from robustvit.cli.launch import one_process
    from robustvit.cli.table import print_findings
    from robustvit.core.component import registered
    from robustvit.core.config import apply_overrides
    from robustvit.core.errors import UserError

    device = one_process("analyze", options.device).device
    known = registered("analysis")
    names = [name.strip() for name in what.split(",") if name.strip()]
    overrides = options.override or []
    mine = [change for change in overrides if change.partition(".")[0] in names]
    options = replace(options, override=[change for change in overrides if change not in mine])
    settings = apply_overrides({name: {"name": name} for name in names}, mine)
    attacks = any("threat" in known[name].__dataclass_fields__ for name in names if name in known)
    ref, threats, alike, _ = open_given(reference, options, eps, eps_needed=attacks)
    if len(threats) > 1:
        raise UserError("--eps: an analysis takes one")
    wanted = list(settings.values())
    print_findings(run(ref.module(), what=wanted, threat=threats[0], head=head, images=images, device=device, **alike))
    typer.echo(f"{alike['run']}/analysis; robustvit report {alike['run']} shows it")
