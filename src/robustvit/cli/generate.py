"""`robustvit generate`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import optional


def generate(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A run folder of a denoiser, its .safetensors, or a .pkl of NVlabs.")
    ],
    images: Annotated[int, typer.Option(help="So many in all.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the images.")],
    steps: Annotated[int, typer.Option(help="Noise levels: 18, 20 (CIFAR-10) or 25 (CIFAR-100).")] = 18,
    seed: Annotated[int, typer.Option()] = 0,
    classes: Annotated[str | None, optional(help="Such as 3,5; default: all in turn.")] = None,
    processes: Annotated[
        int | None, optional(help="So many processes of one thread each share the work on a CPU; default: all cores.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 100,
    shard_size: Annotated[int, typer.Option(help="Images of a file.")] = 1000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    override: Annotated[
        list[str] | None,
        optional("-o", "--override", metavar="NAME=VALUE", help="Change a setting of the sampler, such as churn=40."),
    ] = None,
) -> None:
    """Generate labeled images with a denoiser; stopped or killed, the same command resumes.

    Example: robustvit generate runs/digits-edm --images 5000 --out generated/digits
    """
    from robustvit.cli.launch import launched_world
    from robustvit.core.config import apply_overrides, validated
    from robustvit.core.errors import UserError
    from robustvit.synthesis.generate import generate as run
    from robustvit.synthesis.sampler import Heun

    try:
        wanted = None if classes is None else [int(part) for part in classes.split(",")]
    except ValueError:
        raise UserError(f"--classes {classes}: numbers with commas between, such as 3,5") from None
    world = launched_world(device)
    sampler = validated(Heun, apply_overrides({"steps": steps}, override or []), "sampler")
    alone = 1 if world.size > 1 or not world.device.startswith("cpu") else None
    folder = run(
        source, out, images, sampler=sampler, seed=seed, classes=wanted, batch_size=batch_size, shard_size=shard_size,
        processes=alone if processes is None else processes, world=world,
    )  # fmt: skip
    if world.is_first:
        typer.echo(str(folder))
