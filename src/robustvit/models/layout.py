"""Where the features of a layer lie in the image: tokens before the patches, then a grid of positions."""

import math
import re
from dataclasses import dataclass

from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.attention_probe import NoAttentionError, attention_blocks, transformer_blocks
from robustvit.models.heads import network_of

MOST_PREFIX = 8
"""Class tokens, distillation tokens and registers together."""
_BLOCK = re.compile(r"(Block|Bottleneck)$")


@dataclass(frozen=True)
class Layout:
    """Of tokens (B, N, C), or of a map (B, C, H, W) or (B, H, W, C)."""

    prefix: int
    """Tokens without a position in the image, such as the class token; they come first."""
    height: int
    width: int
    channels_last: bool = True

    @property
    def positions(self) -> int:
        return self.height * self.width

    def as_map(self, output: Tensor) -> Tensor:
        """(B, C, height, width); tokens without a position are left out."""
        if output.ndim == 3:
            return output[:, self.prefix :].reshape(len(output), self.height, self.width, -1).permute(0, 3, 1, 2)
        return output.permute(0, 3, 1, 2) if self.channels_last else output

    def prefix_tokens(self, output: Tensor) -> Tensor:
        """(B, prefix, C)."""
        return output[:, : self.prefix] if output.ndim == 3 else output.flatten(2)[:, :0]


def layout_of(model: nn.Module, shape: tuple[int, ...], image: tuple[int, int]) -> Layout | None:
    """Of what a layer of the model puts out for images of this height and width; None where it is no grid of positions.

    The number of tokens before the patches is the model's own where it fits, else the smallest that leaves a grid.
    """
    if len(shape) == 4:
        return _map_layout(model, shape, image)
    if len(shape) != 3:
        return None
    declared = getattr(network_of(model), "num_prefix_tokens", 0)
    for prefix in dict.fromkeys((declared if isinstance(declared, int) else 0, *range(MOST_PREFIX + 1))):
        grid = _grid(shape[1] - prefix, image)
        if grid is not None:
            return Layout(prefix, *grid)
    return None


def _map_layout(model: nn.Module, shape: tuple[int, ...], image: tuple[int, int]) -> Layout | None:
    """Channels come last where the model says so, or where only that has the shape of the image."""
    first, last = (_has_aspect(height, width, image) for height, width in (shape[2:], shape[1:3]))
    if not (first or last):
        return None
    says = str(getattr(network_of(model), "output_fmt", "")).upper() == "NHWC"
    channels_last = last and (says or not first)
    height, width = shape[1:3] if channels_last else shape[2:]
    return Layout(0, height, width, channels_last)


def _grid(positions: int, image: tuple[int, int]) -> tuple[int, int] | None:
    if positions < 1:
        return None
    height = round(math.sqrt(positions * image[0] / image[1]))
    width = positions // max(height, 1)
    return (height, width) if height * width == positions and _has_aspect(height, width, image) else None


def _has_aspect(height: int, width: int, image: tuple[int, int]) -> bool:
    """To the rounding of a stride."""
    return abs(height * image[1] - width * image[0]) < max(image)


class NoBlocksError(UserError):
    """A network has no blocks that are known as such; whoever asked for them says what that means."""


def feature_blocks(model: nn.Module) -> list[str]:
    """The blocks of a network by name: those around each attention, else those called so, as a ResNet's are."""
    try:
        attention_blocks(model)
    except UserError as error:
        named = [name for name, module in model.named_modules() if _BLOCK.search(type(module).__name__)]
        outer = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
        if not outer:
            if not isinstance(error, NoAttentionError):
                raise
            raise NoBlocksError(f"{error} and no module whose name ends with Block or Bottleneck") from None
        return outer
    return transformer_blocks(model)


def short_names(names: list[str]) -> list[str]:
    """Without what all of them begin with, such as `backbone.blocks.`."""
    parts = [name.split(".") for name in names]
    same = 0
    while all(len(part) > same + 1 for part in parts) and len({part[same] for part in parts}) == 1:
        same += 1
    return [".".join(part[same:]) for part in parts]
