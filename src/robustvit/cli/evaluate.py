"""`robustvit evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import Overrides, RunOption


def evaluate(
    what: Annotated[
        str,
        typer.Argument(
            help="A run folder, a checkpoint (.safetensors, .pt), a timm model's name, hf_hub:OWNER/NAME, or "
            "module:function (file.py:function) that returns an nn.Module on pixels in [0, 1]."
        ),
    ],
    suite: Annotated[
        str, typer.Option(help="Attacks: clean, fgsm, pgd-20, pgd-50x5, pgd-40:loss=cw,step=2/255 ...")
    ] = "pgd-20",
    data: Annotated[
        str | None,
        typer.Option(
            help="A name, a folder, an .npz or .npy file, shards 'x-*.tar'; default: the run's.", show_default=False
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    norm: Annotated[
        str | None, typer.Option(help="inf, 2 or 1; default: the run's, else inf.", show_default=False)
    ] = None,
    eps: Annotated[
        str | None,
        typer.Option(help="Such as 8/255, or several: 1/255,2/255,4/255; default: the run's.", show_default=False),
    ] = None,
    images: Annotated[int | None, typer.Option(help="A seeded random subset of so many.", show_default=False)] = None,
    batch_size: Annotated[int, typer.Option()] = 128,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option()] = "cpu",
    processes: Annotated[int, typer.Option(help="So many processes of one thread each share the images.")] = 1,
    save_images: Annotated[
        bool, typer.Option("--save-images", help="Keep every adversarial image; see robustvit verify.")
    ] = False,
    quantized: Annotated[
        bool, typer.Option("--quantized", help="Adversarial pixels in steps of 1/255, as pictures are stored.")
    ] = False,
    run: RunOption = None,
    override: Overrides = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Of a run: best, last or an epoch's; default: its rule.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The timm model that a bare checkpoint belongs to.", show_default=False)
    ] = None,
    num_classes: Annotated[int | None, typer.Option(show_default=False)] = None,
    img_size: Annotated[int | None, typer.Option(show_default=False)] = None,
    mean: Annotated[str | None, typer.Option(help="Such as 0.49,0.48,0.45.", show_default=False)] = None,
    std: Annotated[str | None, typer.Option(show_default=False)] = None,
    weights_key: Annotated[
        str | None,
        typer.Option(help="The entry of a checkpoint that holds the weights, if several do.", show_default=False),
    ] = None,
    random_weights: Annotated[bool, typer.Option("--random-weights", help="A timm model without its weights.")] = False,
) -> None:
    """Attack a model and judge it; stopped or killed, the same command goes on.

    Example: robustvit evaluate runs/digits-trades --suite pgd-50x5 --eps 0.1
    """
    from robustvit.cli.table import print_results
    from robustvit.cli.what import Hints, find_subject, numbers
    from robustvit.core.component import to_dict
    from robustvit.core.config import apply_overrides, validated
    from robustvit.core.distributed import launched
    from robustvit.core.errors import UserError
    from robustvit.data.base import AnyDataset, Split
    from robustvit.data.open import dataset_by_name
    from robustvit.evaluation import evaluate_curve
    from robustvit.threats import LpBall, Norm

    of_model = [change for change in override or [] if change.startswith("model.")]
    others = [change for change in override or [] if change not in of_model]
    hints = Hints(
        model=model,
        num_classes=num_classes,
        img_size=img_size,
        mean=numbers(mean, "--mean"),
        std=numbers(std, "--std"),
        random_weights=random_weights,
        checkpoint=checkpoint,
        weights_key=weights_key,
        overrides=[change.removeprefix("model.") for change in of_model],
    )
    found = find_subject(what, hints)
    wanted_split = validated(Split, split, "--split")
    wanted_data = dataset_by_name(data) if data is not None else found.data
    if wanted_data is None:
        raise UserError(
            "--data: which images? a name (see robustvit list data), a folder, an .npz or .npy file, tar shards"
        )
    stored = {"norm": "inf", "eps": 0 if suite == "clean" else None, **(to_dict(found.threat) if found.threat else {})}
    if norm is not None and eps is None and found.threat and validated(Norm, norm, "--norm") != found.threat.norm:
        raise UserError(f"--norm {norm}: another norm than the run's needs an --eps of its own")
    wanted_threat = {"norm": stored["norm"] if norm is None else norm, "eps": stored["eps"] if eps is None else eps}
    tree = apply_overrides({"data": to_dict(wanted_data), "threat": wanted_threat}, others)
    if set(tree) != {"data", "threat"}:
        raise UserError(f"-o {others[-1]}: an evaluation has settings below data., threat. and model.")
    if tree["threat"].get("eps") is None:
        raise UserError("--eps: how large a change is allowed? such as 8/255")
    sizes = str(tree["threat"]["eps"]).split(",")
    threats = [validated(LpBall, {**tree["threat"], "eps": size}, "threat") for size in sizes]
    dataset = validated(AnyDataset, tree["data"], "data")
    notes = []
    if data is None and not dataset.has_splits:
        notes.append("the data of this run has no test split: these are images that it was trained on")
    results = evaluate_curve(
        found.model,
        dataset,
        suite=suite,
        threats=threats,
        batch_size=batch_size,
        seed=seed,
        run=run if run is not None else found.run or Path("runs") / found.name,
        split=wanted_split,
        images=images,
        device=device,
        processes=processes,
        save_images=save_images,
        quantized=quantized,
        checkpoint=found.checkpoint,
        notes=notes,
    )
    if launched().rank == 0:
        print_results([result.to_dict() for result in results])
        for result in results:
            typer.echo(f"{result.folder}/result.json")
