"""What is evaluated: a model on images, checked once before any number is made from it."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from robustvit.attacks.base import Classifier, check_pixels
from robustvit.core.devices import model_device
from robustvit.core.errors import UserError, first_line
from robustvit.core.generators import seeded_globals
from robustvit.data.base import Images, as_pixels, check_labels
from robustvit.models import evaluating, fingerprint
from robustvit.threats import LpBall

STEADY_ROWS = 8
"""Below this many rows float32 kernels give other bits; with several threads, wherever their shares are uneven."""


@dataclass
class Subject:
    """A classifier on chosen images under a threat; `logits` is the model as the judge sees it."""

    model: Classifier
    images: Images
    indices: Tensor
    threat: LpBall
    seed: int
    batch_size: int
    device: str
    images_rule: str = ""
    warnings: list[str] = field(default_factory=list)
    passes: int = 0
    num_classes: int = 0
    came_training: bool = False
    quantized: bool = False
    """Adversarial images are judged in steps of 1/255."""
    run: Path | None = None
    """Where an analysis keeps the evaluations that it makes."""
    quiet: bool = False
    """Whether these show their progress."""

    @property
    def dtype(self) -> torch.dtype:
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Checked pixels and labels on the device."""
        images, y = self.images.take(indices)
        x = as_pixels(images.to(self.device), self.dtype)
        y = y.to(self.device)
        if x.ndim != 4 or x.shape[1] != 3 or x.numel() == 0:
            raise UserError(f"{self.images.title}: images must have the shape (N, 3, H, W), not {tuple(x.shape)}")
        check_pixels(x)
        if self.num_classes:
            check_labels(y, self.num_classes, self.images.title)
        return x, y

    @property
    def module(self) -> Classifier:
        """What attacks that look inside the model look into."""
        return self.model

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """The model's output; small batches are filled up with copies, so that an image's bits don't depend on its
        neighbours leaving (not when so small a batch size was asked for)."""
        rows = len(x)
        missing = steady_rows(rows, torch.get_num_threads()) - rows
        if missing and self.batch_size >= STEADY_ROWS:
            x = torch.cat([x, x[torch.arange(missing, device=x.device) % rows].detach()])
        logits = self.model(x)[:rows].to(self.dtype)
        self.passes += rows
        if logits.requires_grad:
            logits.register_hook(self._count_backward)
        return logits

    def check(self) -> None:
        """One forward pass that finds what can't be evaluated, told in a sentence."""
        if self.dtype in (torch.float16, torch.bfloat16):
            raise UserError(
                f"the model's weights are {self.dtype}, whose rounding hides gradients; "
                "evaluate it in float32: model.float()"
            )
        if torch.is_inference_mode_enabled():
            raise UserError("attacks need gradients: call this outside of torch.inference_mode()")
        x, y = self.batch(self.indices[: min(len(self.indices), self.batch_size)])
        shown = x.clone()
        try:
            with torch.no_grad():
                logits = self.model(shown)
        except UserError:
            raise
        except Exception as error:  # whatever a foreign model raises
            shape = tuple(x.shape[1:])
            raise UserError(f"the model fails on images of shape {shape}: {first_line(error)}") from error
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(f"the model must return logits of shape (N, classes), not {got}")
        if not logits.is_floating_point() or logits.shape[1] < 2:
            raise UserError(
                f"the model must return float logits of at least 2 classes, not {logits.dtype} {tuple(logits.shape)}"
            )
        if logits.dtype in (torch.float16, torch.bfloat16):
            raise UserError(
                f"the model's logits are {logits.dtype}, whose rounding hides gradients; evaluate it in float32, "
                "without autocast"
            )
        if not torch.equal(shown, x):
            raise UserError(
                "the model changes its input in place, so that no attack could follow its gradient; clone it first"
            )
        self.num_classes = logits.shape[1]
        known = self.images.num_classes
        if known is not None and known != self.num_classes:
            raise UserError(f"the model has {self.num_classes} classes, {self.images.title} has {known}")
        self.batch(self.indices[: len(y)])  # again, now that the number of classes is known

    def fingerprint(self) -> str:
        """sha256 of the weights; of a bare callable, of what it says."""
        return fingerprint(self.model) if isinstance(self.model, nn.Module) else self.behaviour()

    def behaviour(self) -> str:
        """sha256 of the logits on 8 images, to a hundredth of their spread, and of the spread: what no weight shows."""
        x, _ = self.batch(self.indices[:8])
        with torch.no_grad(), seeded_globals("behaviour"):  # a random model must know its ledger again
            logits = self.model(x).double()
        finite = logits[torch.isfinite(logits)]
        spread = (finite.amax() - finite.amin()).clamp_min(1e-12) if len(finite) else torch.ones_like(logits[0, 0])
        scale = (20 * spread.log2()).round()
        rounded = torch.nan_to_num(logits / spread * 100, nan=1e9, posinf=1e10, neginf=-1e10).round().flatten()
        return hashlib.sha256(torch.cat([rounded, scale[None]]).to(torch.int64).cpu().numpy().tobytes()).hexdigest()

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Eval mode, frozen weights, on the device; everything as before afterwards."""
        if isinstance(self.model, nn.Module) and any(module.training for module in self.model.modules()):
            self.came_training = True
        before = model_device(self.model)
        if isinstance(self.model, nn.Module):
            self.model.to(self.device)
        try:
            with evaluating(self.model):
                yield
        finally:
            if isinstance(self.model, nn.Module) and before is not None:
                self.model.to(before)

    def _count_backward(self, gradient: Tensor) -> None:
        self.passes += len(gradient)


def steady_rows(rows: int, threads: int) -> int:
    """How many rows give each image the same bits whatever its neighbours: seen for ViT, XCiT, ConvNeXt and ResNet."""
    if rows == 0:
        return 0
    if threads == 1:
        return max(rows, STEADY_ROWS)
    unit = math.lcm(STEADY_ROWS, threads)
    return -(-rows // unit) * unit
