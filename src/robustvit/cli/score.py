"""`robustvit score`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import optional


def score(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of generated images, or an .npz or .bin file.")],
    model: Annotated[str, typer.Option(help="The classifier: a run folder, a checkpoint, zoo:NAME ...")],
    reference: Annotated[
        str | None, optional(help="Real data, such as cifar10: also the distance to the nearest training image.")
    ] = None,
    near: Annotated[float, typer.Option(help="A smaller distance is a near-duplicate.")] = 0.05,
    top_fraction: Annotated[float, typer.Option(help="Of each class, what --indices has.")] = 0.2,
    indices: Annotated[
        Path | None, optional(help="Write the positions of the best images as .npy, without near-duplicates.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
) -> None:
    """Score generated images by a classifier's confidence in their label, for `top_fraction` of the data `generated`.

    Example: robustvit score generated/digits --model runs/digits-standard --reference digits
    """
    import numpy as np

    from robustvit.cli.launch import one_process
    from robustvit.core.errors import UserError
    from robustvit.core.figures import percent
    from robustvit.core.files import write_atomic
    from robustvit.data.scores import best_of_each_class
    from robustvit.synthesis.score import score as run

    if not 0 < top_fraction <= 1:
        raise UserError(f"--top-fraction {top_fraction}: above 0 and at most 1")
    if not 0 <= near < math.inf:
        raise UserError(f"--near {near}: a distance, at least 0")
    one_process("score", device)
    scored = run(path, model, reference=reference, batch_size=batch_size, device=device)
    typer.echo(f"images      {len(scored.scores)}")
    typer.echo(f"confidence  {percent(float(scored.scores.mean()))} on average, median {np.median(scored.scores):.3f}")
    allowed = np.ones(len(scored.scores), bool)
    if scored.distances is not None:
        allowed = scored.distances >= near
        count, total = int((~allowed).sum()), len(allowed)
        typer.echo(f"near        {count} of {total} are nearer than {near:g} to a training image of {reference}")
        low, middle = scored.distances.min(), np.median(scored.distances)
        typer.echo(f"distance    {low:.3f} at least, median {middle:.3f}")
    if indices is not None:
        if not allowed.any():
            raise UserError(f"--near {near:g}: leaves no image for {indices}; choose a smaller one")
        rows = best_of_each_class(scored.labels, scored.scores, top_fraction, allowed)
        write_atomic(indices, lambda file: np.save(file, rows))
        typer.echo(f"indices     {len(rows)} in {indices}")
