"""Generated images by a classifier's confidence in their label, and by their distance to the training images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import is_file, write_atomic
from robustvit.core.progress import Progress
from robustvit.core.world import resolve_device
from robustvit.data.base import Images, as_pixels, check_labels, data_fingerprint
from robustvit.data.generated import GeneratedImages
from robustvit.data.open import images_from
from robustvit.data.scores import (
    Description,
    ImageFile,
    Kind,
    description_path,
    numbers_path,
    read_description,
    read_numbers,
)
from robustvit.evaluation.subject import checked_logits
from robustvit.models.modes import eval_mode
from robustvit.models.reference import resolve_model

Measure = Callable[[Tensor, Tensor], Tensor]
"""Images and labels to a number for each."""
_BLOCK = 4096
"""Training images compared at once."""


@dataclass(frozen=True)
class Scored:
    """What is known of the images of a folder or file now."""

    labels: np.ndarray
    scores: np.ndarray
    """(N,) probability of the label."""
    distances: np.ndarray | None
    """(N,) root mean square over the pixels in [0, 1], to the nearest training image."""


def score(
    path: str | Path,
    model: Any,
    *,
    reference: Any = None,
    batch_size: int = 256,
    device: str = "auto",
    quiet: bool = False,
) -> Scored:
    """Write the scores of generated images next to them, where `{name: generated, top_fraction: 0.2}` finds them.

    `model` is what `resolve_model` takes; with a `reference`, such as "cifar10", also the distance of each image to the
    nearest of its training images. What is there is not computed again, unless the images were replaced.
    """
    check_counts(batch_size=batch_size)
    data, ref = GeneratedImages(path=Path(path)), resolve_model(model)
    place, device = Path(path), resolve_device(device)
    files = [data.open_file(name) for name in data.files()]
    real = None if reference is None else images_from(reference, "train")
    scores = _open(place, files, "scores", f"{ref.title} {ref.digest}")
    if real is not None:
        digest = data_fingerprint(real, torch.arange(len(real)))[:8]
        distances = _open(place, files, "distances", f"{real.title} {digest}")
    with eval_mode(module := ref.module().to(device)):
        _write(place, files, "scores", scores, _Confidence(module, ref.title, device), batch_size, quiet)
    if real is not None:
        _write(place, files, "distances", distances, Nearest(real, device), batch_size, quiet)
    labels = np.concatenate([np.asarray(file.images.labels) for file in files])
    near = read_numbers(place, files, "distances") if real is not None else None
    return Scored(labels, read_numbers(place, files, "scores"), near)


def _open(path: Path, files: list[ImageFile], kind: Kind, by: str) -> Description:
    """Refuse to mix numbers of two models or two data sets."""
    known = read_description(path, kind)
    if known is None or not any(is_file(numbers_path(file.path, kind)) for file in files):
        return Description(by)
    if known.by != by:
        about = description_path(path, kind)
        remedy = f"remove {about.name} and the files with {kind} to compute them anew"
        raise UserError(f"{about}: these {kind} are by '{known.by}', not '{by}'; {remedy}")
    return known


def _write(
    path: Path,
    files: list[ImageFile],
    kind: Kind,
    known: Description,
    measure: Measure,
    batch_size: int,
    quiet: bool,
) -> None:
    """The numbers that are missing, or of images that are not there any more."""
    about = description_path(path, kind)
    with Progress(kind, sum(len(file.images) for file in files), quiet=quiet) as progress:
        for file in files:
            target, part = numbers_path(file.path, kind), file.images
            if is_file(target) and len(map_array(target)) == len(part) and known.holds(file):
                progress.advance(len(part))
                continue
            known.images.pop(file.path.name, None)
            known.write(about)  # a kill leaves numbers of unknown images, which are computed again
            known.add(file)
            numbers = []
            for rows in torch.split(torch.arange(len(part)), batch_size):
                numbers.append(measure(*part.take(rows)))
                progress.advance(len(rows))
            values = torch.cat(numbers).to(torch.float32).numpy()
            write_atomic(target, partial(np.save, arr=values))
            known.write(about)


class _Confidence:
    """A classifier's probability of the label."""

    def __init__(self, module: torch.nn.Module, title: str, device: str) -> None:
        self.module, self.title, self.device = module, title, device

    @torch.no_grad()
    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = checked_logits(self.module, as_pixels(images).to(self.device)).double().cpu()
        check_labels(labels, logits.shape[1], "generated images")
        confidence = logits.softmax(1)[torch.arange(len(labels)), labels]
        if not confidence.isfinite().all():
            raise UserError(f"{self.title}: gives logits that are not finite for some of the generated images")
        return confidence


class Nearest:
    """The distance to the nearest of some images: root mean square over the pixels in [0, 1]."""

    def __init__(self, real: Images, device: str = "cpu") -> None:
        self.real, self.device = real, device
        blocks = [real.take(rows)[0] for rows in torch.split(torch.arange(len(real)), _BLOCK)]
        self.pixels = torch.cat([as_pixels(block).flatten(1) for block in blocks]).to(device)
        self.squares = self.pixels.square().sum(1)

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        x = as_pixels(images).flatten(1).to(self.device)
        if x.shape[1] != self.pixels.shape[1]:
            raise UserError(f"{self.real.title}: has images of another size than the generated ones")
        best = torch.full((len(x),), torch.inf, device=self.device)
        where = torch.zeros(len(x), dtype=torch.long, device=self.device)
        for begin in range(0, len(self.pixels), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            least, rows = (self.squares[block] - 2 * x @ self.pixels[block].T).min(1)
            better = least < best
            best, where = torch.where(better, least, best), torch.where(better, rows + begin, where)
        # the expanded square loses all digits of a small distance
        exact = (x.double() - self.pixels[where].double()).square().mean(1).sqrt()
        return exact.cpu()
