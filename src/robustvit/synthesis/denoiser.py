"""EDM (Karras et al. 2022): preconditioning, noise levels and loss of a denoiser, and its weights on disk.

Images are in [-1, 1] here, as in the published checkpoints; data and shards hold pixels.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import explaining, settings
from robustvit.core.config import validated
from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.numbers import Count, Number, Positive
from robustvit.core.streams import SampleStreams
from robustvit.models.foreign import misfits
from robustvit.models.weights import HANDLERS, Handler, load_state
from robustvit.synthesis.network import AnyNetwork, DdpmPlusPlus

KEY = "denoiser"
"""In the metadata of weights."""


@settings
class DenoiserSettings:
    """All that it takes to build a denoiser again: stored with its weights."""

    img_size: Count
    """Side of the images in pixels."""
    num_classes: Count
    """That the images are generated for."""
    network: AnyNetwork = DdpmPlusPlus()
    """The network inside."""
    augment_labels: Annotated[int, Field(ge=0, le=64)] = 0
    """Numbers that describe the augmentation of a training image; 0: none."""
    sigma_data: Positive = 0.5
    """Standard deviation of the images in [-1, 1]."""

    def build(self) -> "Denoiser":
        denoiser = Denoiser(self.network.build(self.img_size, self.num_classes, self.augment_labels), self.sigma_data)
        denoiser.settings = self
        return denoiser


class Coefficients(NamedTuple):
    """Of the preconditioning, as functions of sigma: D(x) = skip * x + out * F(scale * x, noise)."""

    skip: Tensor
    out: Tensor
    scale: Tensor
    noise: Tensor


def coefficients(sigma: Tensor, sigma_data: float) -> Coefficients:
    """Table 1 of the paper, last column: input and target of the network have variance 1 at every sigma."""
    variance = sigma**2 + sigma_data**2
    out = sigma * sigma_data / variance.sqrt()
    return Coefficients(sigma_data**2 / variance, out, variance.rsqrt(), sigma.log() / 4)


def loss_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """What makes the network's own error count equally at every sigma: 1 / out**2."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


class Denoiser(nn.Module):
    """The expected image, given the noisy one: `denoiser(x, sigma, labels)` with sigma (B,) and labels (B,)."""

    settings: DenoiserSettings | None = None

    def __init__(self, model: nn.Module, sigma_data: float = 0.5) -> None:
        super().__init__()
        self.model = model
        self.sigma_data = sigma_data

    def forward(self, x: Tensor, sigma: Tensor, labels: Tensor, augment_labels: Tensor | None = None) -> Tensor:
        """In the precision of the network, whatever that of x."""
        dtype = next((parameter.dtype for parameter in self.parameters()), x.dtype)
        x, sigma = x.to(dtype), sigma.to(dtype)
        by = coefficients(sigma.view(-1, 1, 1, 1), self.sigma_data)
        out: Tensor = self.model(by.scale * x, by.noise.flatten(), self._one_hot(labels, dtype), augment_labels)
        return by.skip * x + by.out * out

    def _one_hot(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        known = self.settings.num_classes if self.settings is not None else int(labels.max()) + 1
        return F.one_hot(labels, known).to(dtype)


@settings
class NoiseLevels:
    """ln(sigma) of training images is normal."""

    mean: Number = -1.2
    """Of ln(sigma)."""
    std: Positive = 1.2
    """Of ln(sigma)."""

    def draw(self, random: SampleStreams, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B,) one for each image."""
        normal = random.normal((1,), at="sigma", dtype=dtype).squeeze(1)
        return (normal * self.std + self.mean).exp()


def denoising_losses(
    denoiser: Denoiser, x: Tensor, labels: Tensor, sigma: Tensor, noise: Tensor, augment_labels: Tensor | None = None
) -> Tensor:
    """(B,) weighted squared errors, averaged over the pixels of each image."""
    denoised: Tensor = denoiser(x + sigma.view(-1, 1, 1, 1) * noise, sigma, labels, augment_labels)
    return loss_weight(sigma, denoiser.sigma_data) * (denoised - x).square().flatten(1).mean(1)


def to_unit(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the denoiser takes them, in [-1, 1]."""
    return 2 * pixels - 1


def to_levels(x: Tensor) -> Tensor:
    """Images in [-1, 1], or a little outside, as uint8: the nearest of 256 levels."""
    return (x * 127.5 + 128).clamp(0, 255).to(torch.uint8)


def load_denoiser(path: Path) -> Denoiser:
    """From weights that a training of this project saved, in eval mode."""
    state, facts = load_state(path)
    if KEY not in facts:
        raise UserError(f"{path}: not the weights of a denoiser; train one, such as robustvit train digits/edm")
    made: DenoiserSettings = validated(DenoiserSettings, facts[KEY], f"{path} (metadata)")
    return filled(made, state, path)


def filled(made: DenoiserSettings, state: dict[str, Tensor], path: Path) -> Denoiser:
    """A denoiser with these weights, in eval mode."""
    try:  # first without memory, as a small file may name a large network
        with explaining(f"{path} (network)"), torch.device("meta"):
            shapes = made.build()
    except (RuntimeError, OverflowError) as error:  # sizes that no integer holds
        raise UserError(f"{path}: names a network that can't be built ({shortened(first_line(error))})") from None
    problems = misfits(state, shapes)
    if problems:
        raise UserError(f"{path}: its weights don't fit the network that it names: {problems}")
    denoiser = made.build()
    denoiser.load_state_dict(state)
    return denoiser.eval().requires_grad_(False)


def _described(model: nn.Module) -> Any:
    from robustvit.core.component import to_dict

    return to_dict(model.settings) if isinstance(model, Denoiser) and model.settings is not None else None


HANDLERS[KEY] = Handler(get=_described, set=lambda model, value: None, fold=lambda model: None)
