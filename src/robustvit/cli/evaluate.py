"""`robustvit evaluate`."""

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


def evaluate(
    what: What,
    suite: Annotated[
        str, typer.Option(help="Attacks: clean, fgsm, pgd-20, pgd-50x5, pgd-40:loss=cw,step=2/255 ...")
    ] = "pgd-20",
    data: Data = None,
    split: SplitName = "test",
    norm: NormName = None,
    eps: Annotated[
        str | None,
        typer.Option(help="Such as 8/255, or several: 1/255,2/255,4/255; default: the run's.", show_default=False),
    ] = None,
    images: ImageCount = None,
    batch_size: BatchSize = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="So many processes of one thread each share the images.")] = 1,
    save_images: Annotated[
        bool, typer.Option("--save-images", help="Keep every adversarial image; see robustvit verify.")
    ] = False,
    quantized: Annotated[
        bool, typer.Option("--quantized", help="Adversarial pixels in steps of 1/255, as pictures are stored.")
    ] = False,
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
    """Attack a model and judge it; stopped or killed, the same command goes on.

    Example: robustvit evaluate runs/digits-trades --suite pgd-50x5 --eps 0.1
    """
    from robustvit.cli.given import Given
    from robustvit.cli.launch import launched_world
    from robustvit.cli.table import print_results
    from robustvit.evaluation import evaluate_curve

    given = Given(
        data=data, split=split, norm=norm, eps=eps, overrides=override or [], model=model, num_classes=num_classes,
        img_size=img_size, mean=mean, std=std, random_weights=random_weights, checkpoint=checkpoint,
        weights_key=weights_key,
    )  # fmt: skip
    found, dataset, threats, notes = given.opened(what, eps_needed=suite != "clean")
    world = launched_world(device)
    results = evaluate_curve(
        found.module(),
        dataset,
        suite=suite,
        threats=threats,
        batch_size=batch_size,
        seed=seed,
        run=run if run is not None else found.folder,
        split=given.wanted_split,
        images=images,
        device=world.device,
        processes=processes,
        save_images=save_images,
        quantized=quantized,
        checkpoint=found.checkpoint,
        notes=notes,
        world=world,
    )
    if world.is_first:
        print_results([result.to_dict() for result in results])
        for result in results:
            typer.echo(f"{result.folder}/result.json")
