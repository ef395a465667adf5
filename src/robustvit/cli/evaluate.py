"""`robustvit evaluate`."""

from typing import Annotated, Any

import typer

from robustvit.cli.options import HeadName, ImageCount, ModelArgument, ThreatOptions, optional, with_options


@with_options
def evaluate(
    reference: ModelArgument,
    options: ThreatOptions,
    suite: Annotated[
        str,
        typer.Option(help="Attacks, or an evaluator: clean, pgd-20, pgd-40:loss=cw,step=2/255; robustvit list suites."),
    ] = "pgd-20",
    eps: Annotated[str | None, optional(help="Such as 8/255, or several: 1/255,2/255; default: the run's.")] = None,
    head: HeadName = None,
    images: ImageCount = None,
    processes: Annotated[
        int | None, optional(help="So many processes of one thread each share the images; default: as many as pay off.")
    ] = None,
    save_images: Annotated[bool, typer.Option("--save-images", help="Keep adversarial images; see verify.")] = False,
    precision: Annotated[
        str, typer.Option(help="bf16: search in bfloat16 first, then survivors in float32, which judges in any case.")
    ] = "float32",
    quantized: Annotated[
        bool, typer.Option("--quantized", help="Adversarial pixels in steps of 1/255, as pictures are stored.")
    ] = False,
) -> None:
    """Attack a model and judge it; stopped or killed, the same command resumes.

    Example: robustvit evaluate runs/digits-trades --suite pgd-50x5 --eps 0.1
    """
    from robustvit.cli.given import open_given
    from robustvit.cli.launch import launched_world
    from robustvit.cli.table import print_results
    from robustvit.core.errors import UserError
    from robustvit.evaluation import evaluate_curve, named_evaluator, needs_threat, own_data
    from robustvit.evaluation.evaluate import suite_name

    if precision not in ("float32", "bf16"):
        raise UserError(f"--precision {precision}: one of float32, bf16")
    wanted: Any = suite
    if precision == "bf16":
        if named_evaluator(suite) is not None or suite == "clean":
            raise UserError(f"--precision bf16: '{suite}' searches for nothing; it goes with suites of attacks")
        wanted = {"name": "bf16_first", "of": suite}
    needs = {"eps_needed": needs_threat(suite), "has_own_data": own_data(suite) is not None}
    if options.has_threat(eps) and named_evaluator(suite) is not None and not needs["eps_needed"]:
        raise UserError(f"--eps, --norm: '{suite_name(suite)}' takes no threat from here; leave them out")
    ref, threats, alike, warnings = open_given(reference, options, eps, **needs)
    world = launched_world(options.device)
    results = evaluate_curve(
        ref.module(), suite=wanted, threats=threats, images=images, processes=processes, save_images=save_images,
        quantized=quantized, head=head, checkpoint=ref.checkpoint, warnings=warnings, world=world, device=world.device,
        **alike,
    )  # fmt: skip
    if world.is_first:
        print_results(results)
        for result in results:
            typer.echo(f"{result.folder}/result.json")
