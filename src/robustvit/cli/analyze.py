"""`robustvit analyze`."""

from typing import Annotated

import typer

from robustvit.cli.options import (
    BatchSize,
    CheckpointName,
    Data,
    Device,
    ImageCount,
    ImageSize,
    Mean,
    ModelName,
    NormName,
    NumClasses,
    Overrides,
    RandomWeights,
    RunOption,
    Seed,
    SplitName,
    Std,
    WeightsKey,
    What,
)


def analyze(
    what: What,
    analyses: Annotated[
        str,
        typer.Option("--what", help="Names with commas between: attention_scores,input_gradients; see robustvit list."),
    ],
    data: Data = None,
    split: SplitName = "test",
    norm: NormName = None,
    eps: Annotated[str | None, typer.Option(help="Such as 8/255; default: the run's.", show_default=False)] = None,
    images: ImageCount = 256,
    batch_size: BatchSize = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    run: RunOption = None,
    override: Overrides = None,
    checkpoint: CheckpointName = None,
    model: ModelName = None,
    num_classes: NumClasses = None,
    img_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    weights_key: WeightsKey = None,
    random_weights: RandomWeights = False,
) -> None:
    """Look into a model: what it finds goes into the run folder, where the report shows it.

    Example: robustvit analyze runs/digits-trades --what attention_scores
    """
    import robustvit.analysis as analysis
    from robustvit.cli.given import Given
    from robustvit.cli.table import print_findings
    from robustvit.core.config import apply_overrides
    from robustvit.core.errors import UserError

    names = [name.strip() for name in analyses.split(",") if name.strip()]
    mine = [change for change in override or [] if change.partition(".")[0] in names]
    given = Given(
        data=data, split=split, norm=norm, eps=eps, overrides=[o for o in override or [] if o not in mine], model=model,
        num_classes=num_classes, img_size=img_size, mean=mean, std=std, random_weights=random_weights,
        checkpoint=checkpoint, weights_key=weights_key,
    )  # fmt: skip
    settings = apply_overrides({name: {"name": name} for name in names}, mine)
    found, dataset, threats, _ = given.opened(what)
    if len(threats) > 1:
        raise UserError("--eps: an analysis takes one")
    folder = run if run is not None else found.folder
    findings = analysis.analyze(
        found.module(), dataset, what=list(settings.values()), threat=threats[0], run=folder, split=given.wanted_split,
        images=images, seed=seed, batch_size=batch_size, device=device,
    )  # fmt: skip
    print_findings(findings)
    typer.echo(f"{folder}/analysis; robustvit report {folder} shows it")
