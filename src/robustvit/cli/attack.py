"""`robustvit attack`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from robustvit.cli.options import CheckpointName, HeadName, optional
from robustvit.core.errors import UserError, check_counts
from robustvit.core.progress import Progress

if TYPE_CHECKING:
    from robustvit.evaluation.one_picture import AttackedPicture, Seen
    from robustvit.evaluation.picture_model import PictureModel


def attack(
    picture: Annotated[
        str, typer.Argument(help="A picture file, or sample:0 to sample:99, photographs of the package.")
    ],
    model: Annotated[
        str, typer.Option(help="A run folder, checkpoint, zoo:NAME, timm or hub name, or module:function.")
    ],
    attack: Annotated[
        str, typer.Option("--attack", help="As evaluate's --suite: pgd-20, apgd-ce, square, autoattack ...")
    ] = "pgd-20",
    head: HeadName = None,
    norm: Annotated[str | None, optional(help="inf, 2 or 1; default: the run's, else inf.")] = None,
    eps: Annotated[str | None, optional(help="Such as 8/255; default: the run's.")] = None,
    label: Annotated[
        str | None,
        optional(help="The right class, by name or number; default: a sample's own, else what the model says."),
    ] = None,
    target: Annotated[str | None, optional(help="The class to make it, by name or number; default: any other.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for the pictures.")] = Path(),
    size: Annotated[int | None, optional(help="Side that the picture is brought to; default: the model's.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")] = "auto",
    checkpoint: CheckpointName = None,
) -> None:
    """Attack one picture: the adversarial picture and the change as files, and what the model says before and after.

    Example: robustvit attack sample:30 --model zoo:speedrun --attack pgd-20 --eps 8/255
    """
    from robustvit.cli.given import threat_of
    from robustvit.core.readers import read_bytes
    from robustvit.data.picture import MOST_BYTES
    from robustvit.evaluation.one_picture import attack_picture
    from robustvit.evaluation.picture_model import PictureModel, is_sample
    from robustvit.models.hints import ModelHints
    from robustvit.models.reference import resolve_model

    check_counts(size=1 if size is None else size)
    if out.exists() and not out.is_dir():  # before the work, which would be lost
        raise UserError(f"--out {out}: is a file; name a folder")
    data = None if is_sample(picture) else read_bytes(Path(picture), MOST_BYTES)
    ref = resolve_model(model, ModelHints(checkpoint=checkpoint))
    threat = threat_of(ref, norm, eps)
    asked = PictureModel(ref, size, head)
    opened = asked.picture(picture, data)
    typer.echo(opened.resized or f"{picture}: {opened.size[0]} x {opened.size[1]} pixels, as they are")
    given = {name: text for name, text in (("label", label), ("target", target)) if text is not None}
    numbers = {name: asked.class_number(text, asked.num_classes(opened)) for name, text in given.items()}
    if label is None and (known := asked.known_label(opened)) is not None:
        numbers["label"] = known
    with Progress(attack, 1, unit="pictures") as progress:

        def show(seen: "Seen") -> None:
            progress.note(
                step=f"{seen.steps} of {seen.most_steps or '?'}", stage=f"{seen.stage_number} of {seen.stages}"
            )

        how = {"seed": seed, "device": device, "observe": show, **numbers}
        made = attack_picture(asked.module, opened.pixels, attack, threat, **how)  # type: ignore[arg-type]
    typer.echo(report_text(made, asked))
    for path in write_pictures(made, out, Path(picture.replace(":", "-")).stem, bool(opened.how)):
        typer.echo(str(path))


def report_text(made: "AttackedPicture", model: "PictureModel") -> str:
    """Classes before and after, and what the attack came to."""
    from robustvit.core.figures import percent
    from robustvit.core.summary import aligned

    columns = [[(name, percent(value)) for name, value in model.top(one)] for one in (made.before, made.after)]
    rows = [("before", "", "after", ""), *((*one, *other) for one, other in zip(*columns, strict=True))]
    return "\n".join([*aligned(rows, (0, 2)), model.verdict(made)])


def write_pictures(made: "AttackedPicture", folder: Path, stem: str, with_clean: bool) -> list[Path]:
    """PNG files, which keep every level; each is read back and compared."""
    from robustvit.core.files import write_atomic
    from robustvit.core.readers import read_bytes
    from robustvit.data.picture import decode_picture, encoded
    from robustvit.data.preprocess import Preprocess

    pictures = {"clean": made.clean} if with_clean else {}
    pictures |= {"change": made.change()[0], "adversarial": made.adversarial}
    paths = []
    for name, pixels in pictures.items():
        path, content = folder / f"{stem}-{name}.png", encoded(pixels)
        write_atomic(path, partial(_write, content))
        stored = decode_picture(read_bytes(path), str(path), Preprocess()).pixels
        if not (stored == pixels).all():
            raise UserError(f"{path}: doesn't hold the pixels that were written; is the disk damaged?")
        paths.append(path)
    return paths


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)
