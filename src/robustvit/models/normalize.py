"""The normalization belongs to the model, so that eps means one thing everywhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError

LARGEST = 10
"""Of a mean or std, far beyond what pixels in [0, 1] have, and far below those of pixels in 0 to 255."""


class Normalization(NamedTuple):
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return " and ".join(",".join(f"{value:.4g}" for value in values) for values in self)

    def agrees(self, other: "Normalization") -> bool:
        """To what people write down of such numbers; one number means three equal ones."""
        return all(np.allclose(ours, theirs, rtol=0, atol=1e-3) for ours, theirs in zip(self, other, strict=True))


class Normalized(nn.Module):
    """`backbone((x - mean) / std)`; mean 0 and std 1 leave the pixels as they are."""

    backbone: nn.Module
    mean: Tensor
    std: Tensor
    settings: Any = None
    """The `ModelSettings` that `create_model` made it with."""
    has_default_normalization: bool = False
    autocast: Callable[[str], AbstractContextManager[None]] | None = None
    """Within what its network computes on a kind of device, set by `models/precision.py`; None: in float32."""

    def __init__(self, backbone: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.backbone = backbone
        for name, values in (("mean", mean), ("std", std)):
            values = check_channels(name, values)
            # not in the state dict, which keeps the backbone's own keys; they travel in the metadata
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    @property
    def normalization(self) -> Normalization:
        return Normalization(tuple(self.mean.flatten().tolist()), tuple(self.std.flatten().tolist()))

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """`options` of the backbone, such as `head`."""
        x = (x - self.mean) / self.std
        if self.autocast is None:
            return logits_of(self.backbone(x, **options))
        with self.autocast(x.device.type):
            logits = logits_of(self.backbone(x, **options))
        return logits.float()


def logits_of(output: Any) -> Tensor:
    """Some libraries, such as transformers, return the logits among other things."""
    logits: Tensor = output["logits"] if isinstance(output, Mapping) and "logits" in output else output
    return getattr(logits, "logits", logits)


def backbone_of(model: nn.Module) -> nn.Module:
    """The network itself, whose state dict has the architecture's own names."""
    return model.backbone if isinstance(model, Normalized) else model


def parameter_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter with its name in the file that `save_model` writes, such as `head.weight`."""
    yield from backbone_of(model).named_parameters()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns; `*.head.*` also means the `head` that nothing comes before."""
    return any(fnmatch(name, pattern) or fnmatch(f".{name}", pattern) for pattern in patterns)


def normalized(module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> Normalized:
    """Turn a model of normalized images into one of pixels in [0, 1], in the same mode."""
    made = Normalized(module, mean, std)
    made.training = module.training
    return made


def check_channels(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """The numbers as floats, if they can be the mean or std of pixels in [0, 1]."""
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        raise UserError(f"{name}: one number or three in a list, such as [0.49, 0.48, 0.45], not {values!r}") from None
    if len(numbers) not in (1, 3):
        raise UserError(f"{name}: one number or three (red, green, blue), not {len(numbers)}")
    if name == "std" and not all(number > 0 for number in numbers):
        raise UserError(f"std: must be above 0, not {list(numbers)}")
    if not all(abs(number) <= LARGEST for number in numbers):
        raise UserError(
            f"{name}: of pixels in [0, 1], such as 0.49, not {list(numbers)}; divide those of 0 to 255 by 255"
        )
    return numbers
