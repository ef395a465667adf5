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

from robustvit.attacks.base import Classifier, Search, attack_loss, check_call, check_pixels
from robustvit.attacks.hooks import BLACK_BOX, Suspect
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.core.streams import SampleStreams
from robustvit.threats import LpBall, lp_norm

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
    """Forward passes of an image at most."""
    p_init: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Fraction of the image that the first squares cover."""

    @property
    def passes(self) -> int:
        return self.queries + 1

    @torch.no_grad()
    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        check_pixels(x)
        x = x.detach()
        loss, random = attack_loss("cw", y, search.target), search.streams(x)
        begin, propose = (_stripes, _propose_square) if threat.norm == "inf" else (_tiles, _propose_window)
        best = begin(x, threat, random)
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


def _propose_square(x: Tensor, best: Tensor, side: int, draws: Tensor, threat: LpBall) -> Tensor:
    """Every channel of one square pushed to a border of the ball."""
    across, along = _edges(draws[:, :2], side, x)
    step = 2 * threat.eps * _signs(draws[:, 5:, None, None])
    moved = torch.addcmul(best, step * across, along)  # (n, C, H, 1) and (n, 1, 1, W)
    return torch.clamp(moved, min=x - threat.eps, max=x + threat.eps).clamp_(0, 1)


def _propose_window(x: Tensor, best: Tensor, side: int, draws: Tensor, threat: LpBall) -> Tensor:
    """The budget of a second window moved into a first, where a bump is added to what is there; in L2 and L1."""
    in_l2, channels = threat.norm == "2", x.shape[1]
    power, root = (2, 0.5) if in_l2 else (1, 1)
    delta = best - x
    here, there = _window(draws[:, :2], side, x), _window(draws[:, 2:4], side, x)
    size = delta.abs() ** power  # in L2 squared, as are the sums below
    in_window = (size * here).sum((2, 3), keepdim=True)  # (n, C, 1, 1)
    in_windows = (size * torch.maximum(here, there)).sum((2, 3), keepdim=True)
    bump = _bump_at(draws[:, :2], draws[:, 4] > 0.5, side, x, threat)
    new = (bump * _signs(draws[:, 5:, None, None]) + delta / (1e-12 + in_window**root)) * here
    unspent = (threat.eps**power - size.sum((1, 2, 3), keepdim=True)).clamp_min(0)
    budget = (unspent / channels + in_windows).sqrt() if in_l2 else unspent + in_windows * channels
    new = new / (1e-12 + (new.abs() ** power).sum((2, 3), keepdim=True) ** root) * budget
    return _inside(x, torch.where(here > 0, new, delta * (1 - there)), threat)


def _tiles(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Bumps of random sign, five to a side."""
    channels, height, width = x.shape[1:]
    side = max(1, height // 5)
    first = (height - 5 * side) // 2
    tiles = (-(-(height - first) // side), -(-(width - first) // side))
    draws = random.uniform((channels + 1, *tiles), at="tiles", dtype=x.dtype)
    i, j = (torch.arange(length, device=x.device) - first for length in (height, width))
    # whole tiles only: what is left of the last rows and columns stays as it is, as in the reference
    in_rows, in_columns = ((k >= 0) & (k < len(k) // side * side) for k in (i, j))
    inside = (in_rows[:, None] & in_columns[None]).to(x.dtype)
    tile_i, tile_j = (index.clamp_min(0) // side for index in (i, j))
    table = _bump(side, x, threat)
    upright, lying = (bump[(i % side)[:, None], (j % side)[None]] for bump in (table, table.T))  # (H, W)
    chosen = draws[:, :, tile_i][:, :, :, tile_j]  # (n, C + 1, H, W)
    bumps = torch.where(chosen[:, channels:] > 0.5, lying, upright)
    return _inside(x, bumps * _signs(chosen[:, :channels]) * inside, threat)


def _inside(x: Tensor, delta: Tensor, threat: LpBall) -> Tensor:
    """At the border of the L2 ball; in L1 the nearest image of the ball."""
    if threat.norm == "1":  # the authors leave a millionth of eps to rounding
        return threat.scaled(1 - 1e-6).project(x, x + delta)
    length = (delta**2).sum((1, 2, 3), keepdim=True).sqrt()
    return (x + delta / (length + 1e-12) * threat.eps).clamp(0, 1)


def _window(draws: Tensor, side: int, x: Tensor) -> Tensor:
    """(n, 1, H, W) ones inside each image's square."""
    across, along = _edges(draws, side, x)
    return across * along


def _edges(draws: Tensor, side: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 1, H, 1) and (n, 1, 1, W), whose product is one inside each image's square."""
    i, j = (((offset >= 0) & (offset < side)).to(x.dtype) for offset in _offsets(draws, side, x))
    return i[:, None, :, None], j[:, None, None, :]


def _bump_at(draws: Tensor, turned: Tensor, side: int, x: Tensor, threat: LpBall) -> Tensor:
    """(n, 1, H, W) the bump at each image's window; arbitrary outside it."""
    i, j = (offset.clamp(0, side - 1) for offset in _offsets(draws, side, x))
    table = _bump(side, x, threat)
    upright, lying = (bump[i[:, :, None], j[:, None, :]] for bump in (table, table.T))
    return torch.where(turned.view(-1, 1, 1), lying, upright).unsqueeze(1)


def _offsets(draws: Tensor, side: int, x: Tensor) -> list[Tensor]:
    """(n, H) and (n, W): rows and columns counted from the corner of each image's square; draws: (n, 2)."""
    # the authors' draw leaves the last position out; so do we
    places = zip(draws.unbind(1), x.shape[2:], strict=True)
    return [torch.arange(size, device=x.device) - (draw * (size - side)).long().view(-1, 1) for draw, size in places]


def _bump(side: int, like: Tensor, threat: LpBall) -> Tensor:
    """(side, side) of length 1: a hill above a valley."""
    both = torch.cat([_hill(side // 2, side, like, threat), -_hill(side - side // 2, side, like, threat)])
    return both / lp_norm(both.flatten(), threat.norm)


def _hill(height: int, width: int, like: Tensor, threat: LpBall) -> Tensor:
    """Sum of 1/k**2 (L1: 1/k**4) over centered squares that grow with k, of length 1."""
    if height == 0:
        return torch.zeros(0, width, device=like.device, dtype=like.dtype)
    rings = max(height // 2, width // 2) + 1
    power = 2 if threat.norm == "2" else 4
    heights = 1.0 / torch.arange(1, rings + 1, device=like.device, dtype=like.dtype) ** power
    from_ring = heights.flip(0).cumsum(0).flip(0)
    i, j = ((torch.arange(length, device=like.device) - length // 2).abs() for length in (height, width))
    hill = from_ring[torch.maximum(i[:, None], j[None])]
    return hill / lp_norm(hill.flatten(), threat.norm)


def _signs(draws: Tensor) -> Tensor:
    return torch.where(draws > 0.5, 1.0, -1.0).to(draws.dtype)
