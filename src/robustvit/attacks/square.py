"""Square: random search with squares, no gradients (Andriushchenko et al. 2020).

A loop of its own, as it uses logits only. Schedule and squares follow the authors' formulas, set as in AutoAttack;
positions and signs are drawn for each image, where theirs are one draw for the whole batch, so that an image's outcome
doesn't depend on its neighbors.
"""

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import Classifier, Search, attack_loss, check_pixels
from robustvit.attacks.nested import BLACK_BOX, Suspect
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.core.streams import SampleStreams
from robustvit.threats import LpBall

_DRAWN_AT_ONCE = 50
"""Queries whose random numbers are drawn together: a draw costs as much as a small model's forward pass."""
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""After so many queries the fraction of the image that squares cover is halved."""


@component("attack", "square")
class Square:
    """Square attack (Andriushchenko et al. 2020): score-based, for models without useful gradients."""

    follows_gradients: ClassVar[bool] = False
    suspect: ClassVar[Suspect] = BLACK_BOX

    queries: Count = 5000
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of the image that the first squares cover."""

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_pixels(x)
        x = x.detach()
        loss, random = attack_loss("cw", y, search.target), search.streams(x)
        propose = {"inf": _propose_linf, "2": _propose_l2, "1": _propose_l1}[threat.norm]
        best = _stripes(x, threat, random) if threat.norm == "inf" else _tiles(x, threat, random)
        rows = torch.arange(len(x), device=x.device)
        best_loss = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        result = best.clone()
        for number in range(self.queries + 1):  # x, best and best_loss hold those still searched for, in order of rows
            candidate = best
            if number > 0:
                block, within = divmod(number - 1, _DRAWN_AT_ONCE)
                if within == 0:
                    drawn = random[rows].uniform((_DRAWN_AT_ONCE, 5 + x.shape[1]), at=block, dtype=x.dtype)
                side = square_side(self.p_init, number - 1, x.shape[2], x.shape[3], threat)
                candidate = propose(x, best, side, drawn[:, within], threat)
            logits = model(candidate)
            values = loss(logits, rows)
            if search.observe is not None:
                search.observe(number, rows, candidate, values, logits)
            better = values > best_loss
            best = torch.where(better.view(-1, 1, 1, 1), candidate, best)
            best_loss = torch.where(better, values, best_loss)
            left = None if search.done is None else search.done(candidate, logits, rows)
            if left is not None and bool(left.any()):
                result[rows[left]] = candidate[left]
                rows, x, best, best_loss = rows[~left], x[~left], best[~left], best_loss[~left]
                if number > 0:
                    drawn = drawn[~left]
                if len(rows) == 0:
                    return result
        result[rows] = best
        return result


def square_side(p_init: float, query: int, height: int, width: int, threat: LpBall) -> int:
    """How long a square's side is at this query; in L2 it is odd and at least 3."""
    fraction = p_init / 2 ** sum(query > after for after in _HALVINGS)
    side = round(math.sqrt(fraction * height * width))
    side = max(side, 1) if threat.norm == "inf" else max(side, 3) // 2 * 2 + 1
    return min(side, height, width)


def _stripes(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Each column of each channel brightened or darkened by eps."""
    signs = _signs(random.uniform((x.shape[1], 1, x.shape[3]), at="stripes", dtype=x.dtype))
    return (x + threat.eps * signs).clamp(0, 1)


def _propose_linf(x: Tensor, best: Tensor, side: int, draws: Tensor, threat: LpBall) -> Tensor:
    """Every channel of one square pushed to a border of the ball."""
    across, along = _edges(draws[:, :2], side, x)
    step = 2 * threat.eps * _signs(draws[:, 5:, None, None])
    moved = torch.addcmul(best, step * across, along)  # (n, C, H, 1) and (n, 1, 1, W)
    return torch.clamp(moved, min=x - threat.eps, max=x + threat.eps).clamp_(0, 1)


def _propose_l2(x: Tensor, best: Tensor, side: int, draws: Tensor, threat: LpBall) -> Tensor:
    """The budget of a second window moved into a first, where a bump is added to what is there."""
    delta = best - x
    here, there = _window(draws[:, :2], side, x), _window(draws[:, 2:4], side, x)
    whole = (delta**2).sum((1, 2, 3), keepdim=True)  # squared, as all below
    in_window = (delta**2 * here).sum((2, 3), keepdim=True)  # (n, C, 1, 1)
    in_windows = (delta**2 * torch.maximum(here, there)).sum((2, 3), keepdim=True)
    bump = _bump_at(draws[:, 0], draws[:, 1], draws[:, 4] > 0.5, side, x, threat)
    new = (bump * _signs(draws[:, 5:, None, None]) + delta / (1e-12 + in_window.sqrt())) * here
    budget = ((threat.eps**2 - whole).clamp_min(0) / x.shape[1] + in_windows).sqrt()
    new = new / (1e-12 + (new**2).sum((2, 3), keepdim=True).sqrt()) * budget
    delta = torch.where(here > 0, new, delta * (1 - there))
    return _at_distance(x, delta, threat)


def _propose_l1(x: Tensor, best: Tensor, side: int, draws: Tensor, threat: LpBall) -> Tensor:
    """As in L2, by sizes instead of squares; a steeper bump, and the nearest image of the ball."""
    delta = best - x
    here, there = _window(draws[:, :2], side, x), _window(draws[:, 2:4], side, x)
    whole = delta.abs().sum((1, 2, 3), keepdim=True)
    in_window = (delta.abs() * here).sum((2, 3), keepdim=True)
    in_windows = (delta.abs() * torch.maximum(here, there)).sum((2, 3), keepdim=True)
    bump = _bump_at(draws[:, 0], draws[:, 1], draws[:, 4] > 0.5, side, x, threat)
    new = (bump * _signs(draws[:, 5:, None, None]) + delta / (1e-12 + in_window)) * here
    budget = (threat.eps - whole).clamp_min(0) + in_windows * x.shape[1]
    new = new / (1e-12 + new.abs().sum((2, 3), keepdim=True)) * budget
    return _kept_inside(x, torch.where(here > 0, new, delta * (1 - there)), threat)


def _tiles(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Bumps of random sign, five to a side."""
    channels, height, width = x.shape[1:]
    side = max(1, height // 5)
    first = (height - 5 * side) // 2
    tiles = (-(-(height - first) // side), -(-(width - first) // side))
    draws = random.uniform((channels + 1, *tiles), at="tiles", dtype=x.dtype)
    i, j = (torch.arange(length, device=x.device) - first for length in (height, width))
    inside = ((i >= 0)[:, None] & (j >= 0)[None]).to(x.dtype)
    tile_i, tile_j = (index.clamp_min(0) // side for index in (i, j))
    bump = _bump(side, x, threat)[(i % side)[:, None], (j % side)[None]]  # (H, W)
    turned = _bump(side, x, threat).T[(i % side)[:, None], (j % side)[None]]
    chosen = draws[:, :, tile_i][:, :, :, tile_j]  # (n, C + 1, H, W)
    shape = torch.where(chosen[:, channels:] > 0.5, turned, bump)
    delta = shape * _signs(chosen[:, :channels]) * inside
    return _at_distance(x, delta, threat) if threat.norm == "2" else _kept_inside(x, delta, threat)


def _kept_inside(x: Tensor, delta: Tensor, threat: LpBall) -> Tensor:
    # the authors leave a millionth of eps to rounding
    return threat.scaled(1 - 1e-6).project(x, x + delta)


def _at_distance(x: Tensor, delta: Tensor, threat: LpBall) -> Tensor:
    length = (delta**2).sum((1, 2, 3), keepdim=True).sqrt()
    return (x + delta / (length + 1e-12) * threat.eps).clamp(0, 1)


def _corner(draw: Tensor, length: int, side: int) -> Tensor:
    # the authors' draw leaves the last position out; so do we
    return (draw * (length - side)).long().view(-1, 1)


def _window(draws: Tensor, side: int, x: Tensor) -> Tensor:
    """(n, 1, H, W) ones inside each image's square."""
    across, along = _edges(draws, side, x)
    return across * along


def _edges(draws: Tensor, side: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 1, H, 1) and (n, 1, 1, W), whose product is one inside each image's square; draws: (n, 2)."""
    masks = []
    for draw, length in zip(draws.unbind(1), x.shape[2:], strict=True):
        offset = torch.arange(length, device=x.device) - _corner(draw, length, side)
        masks.append(((offset >= 0) & (offset < side)).to(x.dtype))
    return masks[0][:, None, :, None], masks[1][:, None, None, :]


def _bump_at(draw_i: Tensor, draw_j: Tensor, turned: Tensor, side: int, x: Tensor, threat: LpBall) -> Tensor:
    """(n, 1, H, W) the bump at each image's window; arbitrary outside it."""
    i, j = (
        (torch.arange(length, device=x.device) - _corner(draw, length, side)).clamp(0, side - 1)
        for draw, length in ((draw_i, x.shape[2]), (draw_j, x.shape[3]))
    )
    table = _bump(side, x, threat)
    upright = table[i[:, :, None], j[:, None, :]]
    lying = table.T[i[:, :, None], j[:, None, :]]
    return torch.where(turned.view(-1, 1, 1), lying, upright).unsqueeze(1)


def _bump(side: int, like: Tensor, threat: LpBall) -> Tensor:
    """(side, side) of length 1: a hill above a valley."""
    hill, valley = _hill(side // 2, side, like, threat), _hill(side - side // 2, side, like, threat)
    both = torch.cat([hill, -valley])
    return both / _size(both, threat)


def _hill(height: int, width: int, like: Tensor, threat: LpBall) -> Tensor:
    """Sum of 1/k**2 (L1: 1/k**4) over centered squares that grow with k, of length 1."""
    if height == 0:
        return torch.zeros(0, width, device=like.device, dtype=like.dtype)
    rings = max(height // 2, width // 2) + 1
    power = 2 if threat.norm == "2" else 4
    heights = 1.0 / torch.arange(1, rings + 1, device=like.device, dtype=like.dtype) ** power
    from_ring = heights.flip(0).cumsum(0).flip(0)
    i = (torch.arange(height, device=like.device) - height // 2).abs()
    j = (torch.arange(width, device=like.device) - width // 2).abs()
    hill = from_ring[torch.maximum(i[:, None], j[None])]
    return hill / _size(hill, threat)


def _size(values: Tensor, threat: LpBall) -> Tensor:
    return values.square().sum().sqrt() if threat.norm == "2" else values.abs().sum()


def _signs(draws: Tensor) -> Tensor:
    return torch.where(draws > 0.5, 1.0, -1.0).to(draws.dtype)
