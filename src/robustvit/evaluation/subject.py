"""What is evaluated: a model on images, checked once before any number is made from it, in batches that fit."""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.attacks.base import Classifier, check_pixels
from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.core.streams import seeded_globals
from robustvit.core.world import model_device, resolve_device
from robustvit.data.base import Images, Split, as_pixels, check_labels, choose_images, data_fingerprint
from robustvit.data.open import images_from
from robustvit.evaluation.batches import LEAST, batch_size_by_memory
from robustvit.models import eval_mode, fingerprint, normalized
from robustvit.models.heads import network_of
from robustvit.models.linear import fast_linear
from robustvit.models.normalize import logits_of
from robustvit.models.precision import matrix_products

STEADY_ROWS = 8
"""Below this many rows float32 kernels give other bits; with several threads, wherever their parts are uneven."""
PROBE_IMAGES = 16
"""Whose logits tell two models apart that have the same weights."""


@dataclass(frozen=True)
class Subject:
    """A classifier on chosen images; calling it gives logits as the judge sees them."""

    model: Classifier
    images: Images
    indices: Tensor
    seed: int
    batch_size: int
    """0: chosen by memory once the subject is `ready`."""
    device: str
    images_rule: str = ""
    num_classes: int = 0
    """Known once the subject is `ready`."""
    was_training: bool = False
    """Whether the model came in training mode."""
    quiet: bool = False
    """Whether no progress is shown."""
    opened_with: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of `open_subject`, with which another process opens it again: images needn't be copied."""
    run: RunFolder | None = None
    """That the model was named by, whose metrics and other weights an analysis may read."""

    @property
    def dtype(self) -> torch.dtype:
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)

    @property
    def is_ready(self) -> bool:
        return self.num_classes > 0

    @property
    def module(self) -> Classifier:
        """For attacks that need the module itself."""
        return self.model

    def batch(self, indices: Tensor, images: Images | None = None) -> tuple[Tensor, Tensor]:
        """Checked pixels and labels on the device; of other images than its own where these are given."""
        source = self.images if images is None else images
        pixels, y = (part.to(self.device) for part in source.take(indices))
        x = as_pixels(pixels, self.dtype)
        if x.ndim != 4 or x.shape[1] != 3 or x.numel() == 0:
            raise UserError(f"{source.title}: images must have the shape (N, 3, H, W), not {tuple(x.shape)}")
        check_pixels(x)
        if self.num_classes:
            check_labels(y, self.num_classes, source.title)
        return x, y

    def __call__(self, x: Tensor) -> Tensor:
        """Logits; small batches are filled up with copies, so that an image's bits don't depend on its neighbors
        leaving (not when so small a batch size was asked for)."""
        rows = len(x)
        missing = steady_rows(rows, torch.get_num_threads()) - rows
        if missing and self.batch_size >= STEADY_ROWS:
            x = torch.cat([x, x[torch.arange(missing, device=x.device) % rows].detach()])
        return self.model(x)[:rows].to(self.dtype)

    @contextmanager
    def ready(self) -> Iterator["Subject"]:
        """The subject in eval mode with frozen weights, on the device and checked; all is put back afterwards."""
        module = self.model if isinstance(self.model, nn.Module) else nn.Module().eval()
        was_training = any(part.training for part in module.modules())
        before = model_device(module)
        module.to(self.device)
        try:
            with eval_mode(self.model), fast_linear(self.model), matrix_products():
                yield replace(self._opened(), was_training=was_training)
        finally:
            if before is not None:
                module.to(before)

    def _opened(self) -> "Subject":
        """With the number of classes, by one forward pass that finds what can't be evaluated."""
        _check_precision("weights", self.dtype, ": model.float()")
        if torch.is_inference_mode_enabled():
            raise UserError("attacks need gradients: call this outside of torch.inference_mode()")
        x, y = self.batch(self.indices[: self.batch_size or LEAST])
        given = x.clone()
        output = _output(self.model, given)
        model, logits = _returning_logits(self.model, output, self.quiet), _checked(logits_of(output), x)
        if not torch.equal(given, x):
            raise UserError(
                "the model changes its input in place, so that no attack could follow its gradient; clone it first"
            )
        num_classes, known = logits.shape[1], self.images.num_classes
        if known is not None and known != num_classes:
            raise UserError(f"the model has {num_classes} classes, the labels of {self.images.title} are of {known}")
        check_labels(y, num_classes, self.images.title)
        size = self.batch_size or batch_size_by_memory(model, x)
        return replace(self, model=model, num_classes=num_classes, batch_size=size)

    def fingerprint(self) -> str:
        """sha256 of the weights; of a bare callable, of its behavior."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.model) if isinstance(self.model, nn.Module) else self.behavior

    @cached_property
    def data_sha256(self) -> str:
        return data_fingerprint(self.images, self.indices)

    @cached_property
    def probe_logits(self) -> Tensor:
        """(16, K) float64 on images spread over all."""
        spread = torch.linspace(0, len(self.indices) - 1, min(PROBE_IMAGES, len(self.indices)), dtype=torch.float64)
        x, _ = self.batch(self.indices[spread.long()])
        with torch.no_grad(), seeded_globals("behavior"):  # a random model must recognize its ledger
            return self.model(x).cpu().double()

    @cached_property
    def behavior(self) -> str:
        """sha256 of these logits, to a hundredth of their spread, and of the spread: what no weight shows."""
        logits = self.probe_logits
        spread = logits_spread(logits)
        scale = (20 * spread.log2()).round()
        hundredths = torch.nan_to_num(logits / spread * 100, nan=1e9, posinf=1e10, neginf=-1e10)
        rounded = hundredths.clamp(-1e12, 1e12).round().flatten()
        return hashlib.sha256(torch.cat([rounded, scale[None]]).to(torch.int64).numpy().tobytes()).hexdigest()


def open_subject(
    model: Classifier,
    data: Any,
    *,
    split: Split = "test",
    images: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Subject:
    """Data opened, images chosen, the device resolved."""
    arguments = dict(locals())
    opened = images_from(data, split)
    indices, rule = choose_images(opened, images, seed)
    return Subject(
        model, opened, indices, seed, batch_size or 0, resolve_device(device, model), rule, quiet=quiet,
        opened_with=arguments,
    )  # fmt: skip


def checked_logits(model: Classifier, x: Tensor) -> Tensor:
    """What the model says, if it is a classifier's answer."""
    return _checked(logits_of(_output(model, x)), x)


def _output(model: Classifier, x: Tensor) -> Any:
    try:
        with torch.no_grad():
            return model(x)
    except UserError:
        raise
    except Exception as error:  # whatever a foreign model raises
        shape = tuple(x.shape[1:])
        problem = f"the model fails on images of shape {shape}: {first_line(error).rstrip('.')}"
        raise UserError(f"{problem}{_size_advice(model, shape)}") from error


def _size_advice(model: Classifier, shape: tuple[int, ...]) -> str:
    """What to do if images don't have the size that a model of fixed size was made for."""
    patch_embed = getattr(network_of(model), "patch_embed", None) if isinstance(model, nn.Module) else None
    size = getattr(patch_embed, "img_size", None)
    if not isinstance(size, tuple) or size[0] != size[1] or size == shape[1:]:
        return ""
    return f"; `preprocess: {{how: crop, size: {size[0]}}}` of the data or the suite brings pictures to its size"


def _returning_logits(model: Classifier, output: Any, quiet: bool) -> Classifier:
    """The model itself, or one around it where its outputs hold the logits among other things."""
    if logits_of(output) is output:
        return model
    if not quiet:
        say(f"the model returns {type(output).__name__}: its logits are used")
    if isinstance(model, nn.Module):
        return normalized(model, (0.0,), (1.0,))
    return lambda x: logits_of(model(x))


def _checked(logits: Any, x: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"the model must return logits of shape (N, classes), not {got}; wrap it in a function that returns them"
        )
    if not logits.is_floating_point() or logits.shape[1] < 2:
        raise UserError(
            f"the model must return float logits of at least 2 classes, not {logits.dtype} {tuple(logits.shape)}"
        )
    _check_precision("logits", logits.dtype, ", without autocast")
    return logits


def _check_precision(what: str, dtype: torch.dtype, how: str) -> None:
    if dtype in (torch.float16, torch.bfloat16):
        rounding = f"the model's {what} are {dtype}, whose rounding hides gradients"
        raise UserError(f"{rounding}; evaluate it in float32{how}")


class CountedModel:
    """A subject whose passes are counted: forward and backward, each image's."""

    def __init__(self, subject: Subject) -> None:
        self._subject, self._begin = subject, time.perf_counter()
        self.passes = 0

    @property
    def module(self) -> Classifier:
        return self._subject.model

    def __call__(self, x: Tensor) -> Tensor:
        logits = self._subject(x)
        self.passes += len(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.passes += len(gradient)

    def cost_per_image(self, images: int) -> dict[str, float]:
        seconds = (time.perf_counter() - self._begin) / images
        return {"seconds": round(seconds, 6), "passes": round(self.passes / images, 4)}


def json_numbers(values: Tensor) -> list[float | None]:
    """Seven digits; None for what isn't finite."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def spread_of_each(logits: Tensor) -> Tensor:
    """(B,) largest minus smallest logit of each image, without those far below the others, such as a class at -1e9.

    Far is a gap of 100 times the spread above it, below at least half of the classes.
    """
    ordered = logits.sort(dim=1, descending=True).values
    below = ordered[:, :1] - ordered  # (B, K), rising
    is_far = below.diff(dim=1) > 100 * below[:, :-1]
    is_far[:, : max(3, (logits.shape[1] + 1) // 2) - 1] = False
    kept = torch.where(is_far.any(1), is_far.int().argmax(1), logits.shape[1] - 1)
    return below.gather(1, kept[:, None]).squeeze(1)


def logits_spread(logits: Tensor) -> Tensor:
    """Of all images together, where their logits are finite."""
    whole = logits[torch.isfinite(logits).all(1)]
    if len(whole) == 0:
        return torch.ones_like(logits[0, 0])
    lowest = whole.amax(1) - spread_of_each(whole)
    return (whole.amax() - lowest.amin()).clamp_min(1e-12)


def steady_rows(rows: int, threads: int) -> int:
    """How many rows give each image the same bits whatever its neighbors: seen for ViT, XCiT, ConvNeXt and ResNet."""
    if rows == 0:
        return 0
    if threads == 1:
        return max(rows, STEADY_ROWS)
    unit = math.lcm(STEADY_ROWS, threads)
    return -(-rows // unit) * unit
