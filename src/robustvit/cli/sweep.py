"""`robustvit sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import optional


def sweep(
    what: Annotated[str, typer.Argument(help="A sweep file, a sweep's name, or a recipe.", metavar="FILE|RECIPE")],
    override: Annotated[
        list[str] | None, optional("-o", "--override", metavar="PATH=VALUE,VALUE", help="What changes.")
    ] = None,
    suite: Annotated[str | None, optional(help="What judges; default: pgd-20.")] = None,
    images: Annotated[int | None, optional(help="So many test images.")] = None,
    run: Annotated[
        Path | None, optional("--run", help="The folder around the runs; default: runs/NAME or runs/RECIPE-sweep.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Only print each run's command, for a cluster.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Only say what the trainings take, see plan.")] = False,
    hardware: Annotated[str | None, optional(help="With --plan: such as a100-80gb:8; default: this machine.")] = None,
    training_images: Annotated[
        int | None, optional(help="With --plan: so many training images, where the data are elsewhere.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="So many of one thread each take runs; torchrun spreads them over machines.")
    ] = 1,
) -> None:
    """Train and judge a grid of recipes; stopped or killed, the same command resumes.

    Example: robustvit sweep digits/trades -o objective.beta=1,3,6 --suite pgd-20
    """
    from robustvit.cli.launch import launched_world
    from robustvit.cli.table import print_results
    from robustvit.core.errors import UserError, check_counts, some_failed
    from robustvit.reporting import report
    from robustvit.training.sweep import check_sweep, run_sweep, sweep_commands
    from robustvit.training.sweep_grid import sweep_from

    check_counts(processes=processes)
    world = launched_world()
    if processes > 1 and world.size > 1:
        raise UserError("--processes: torchrun has started several already; leave it out")
    if hardware is not None and not plan_only:
        raise UserError("--hardware: goes with --plan; recipes name their device")
    if training_images is not None and not plan_only:
        raise UserError("--training-images: goes with --plan; trainings take all images of their data")
    wanted = sweep_from(what, override or [], suite, images)
    root = run or Path("runs") / wanted.name
    if print_only:
        check_sweep(wanted)
        for text in sweep_commands(wanted, root):
            typer.echo(text)
        return
    if plan_only:
        from robustvit.planning import plan_sweep, sweep_text

        typer.echo(sweep_text(plan_sweep(wanted, hardware, training_images)))
        return
    results = run_sweep(wanted, root, processes=processes, world=world)
    if not world.is_first:
        return
    done = [(point, outcome) for point, outcome in results if isinstance(outcome, tuple)]
    if done:
        print_results([result for _, outcome in done for result in outcome])
        typer.echo(str(report([root / point.folder for point, _ in done], root / "report.html")))
    failed = [f"{point.folder}: {outcome}" for point, outcome in results if isinstance(outcome, UserError)]
    if failed:
        raise some_failed(f"{len(failed)} of {len(results)} runs", failed)
