"""Tensors that depend on the size of an image or a patch, resampled to another one."""

from collections.abc import Callable
from fnmatch import fnmatch

import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed, resize_rel_pos_bias_table
from torch import Tensor, nn


def resized(name: str, theirs: Tensor, wanted: Tensor, model: nn.Module) -> Tensor | None:
    """A tensor in the shape that `name` has in the model, or None where it can't be resampled."""
    resample = next((resample for pattern, resample in _RESAMPLED.items() if fnmatch(name, pattern)), None)
    changed = None if resample is None else resample(theirs, wanted, model.get_submodule(name.rpartition(".")[0]))
    return changed if changed is not None and changed.shape == wanted.shape else None


def _patches(theirs: Tensor, wanted: Tensor, owner: nn.Module) -> Tensor | None:
    if theirs.ndim != 4 or theirs.shape[:2] != wanted.shape[:2]:
        return None
    changed: Tensor = resample_patch_embed(theirs.float(), list(wanted.shape[2:]))
    return changed.to(theirs.dtype)


def _positions(theirs: Tensor, wanted: Tensor, owner: nn.Module) -> Tensor | None:
    if theirs.ndim != 3 or wanted.ndim != 3 or theirs.shape[-1] != wanted.shape[-1]:
        return None
    without = getattr(owner, "no_embed_class", False)
    prefix = _prefix(wanted.shape[1], 0 if without else getattr(owner, "num_prefix_tokens", 0))
    other = _prefix(theirs.shape[1], prefix or 0)
    if prefix is None or other is None:  # the patches of one form no square
        return None
    if other != prefix:  # tokens that come before the patches in one of them alone
        theirs = theirs[:, other:]
        theirs = torch.cat([theirs.new_zeros(1, prefix, theirs.shape[-1]), theirs], 1)
    side = round((wanted.shape[1] - prefix) ** 0.5)
    changed: Tensor = resample_abs_pos_embed(theirs, new_size=[side, side], num_prefix_tokens=prefix)
    return changed


def _prefix(tokens: int, declared: int) -> int | None:
    """The declared number where the remaining tokens form a square, else the least number with which they do."""
    fit = (extra for extra in (declared, 0, 1, 2) if _is_square(tokens - extra))
    return next(fit, None)


def _is_square(number: int) -> bool:
    return number > 0 and round(number**0.5) ** 2 == number


def _windows(theirs: Tensor, wanted: Tensor, owner: nn.Module) -> Tensor | None:
    squares = all(table.ndim == 2 and _is_square(len(table)) for table in (theirs, wanted))
    if not squares or theirs.shape[-1] != wanted.shape[-1]:
        return None
    window = (round(wanted.shape[0] ** 0.5) + 1) // 2
    shape = (wanted.shape[0], wanted.shape[1])
    changed: Tensor = resize_rel_pos_bias_table(theirs, new_window_size=(window, window), new_bias_shape=shape)
    return changed


_RESAMPLED: dict[str, Callable[[Tensor, Tensor, nn.Module], Tensor | None]] = {
    "*pos_embed": _positions,
    "*patch_embed.proj.weight": _patches,
    "*relative_position_bias_table": _windows,
}
