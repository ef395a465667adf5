"""Threat models: Lp balls around an image, cut with the box [0, 1]."""

import math
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, ValidationInfo, field_validator
from torch import Tensor

from robustvit.core.component import settings
from robustvit.core.numbers import Number, format_fraction
from robustvit.core.streams import SampleStreams

_NORM_SPELLINGS = {"inf": "inf", "linf": "inf", "2": "2", "2.0": "2", "l2": "2", "1": "1", "1.0": "1", "l1": "1"}


def _norm(value: object) -> str:
    text = str(value).lower()
    if text not in _NORM_SPELLINGS:
        raise ValueError(f"the norm is 'inf', '2' or '1', not {value!r}")
    return _NORM_SPELLINGS[text]


Norm = Annotated[Literal["inf", "2", "1"], BeforeValidator(_norm)]


@settings
class LpBall:
    """All images within `eps` of the given one in the Lp norm, in pixels of [0, 1]."""

    norm: Norm
    """Of the change."""
    eps: Number
    """Its largest size, for pixels in [0, 1]."""

    @field_validator("eps")
    @classmethod
    def _check_eps(cls, eps: float, info: ValidationInfo) -> float:
        norm = info.data.get("norm", "")
        if eps < 0:
            raise ValueError(f"eps must be 0 or more, not {eps:g}")
        if eps > {"inf": 1, "2": 1e4, "1": 1e8}.get(norm, eps):
            hint = f"; did you mean {eps:g}/255?" if norm == "inf" else ""
            raise ValueError(f"an L{norm} eps of {eps:g} covers every image, as pixels are in [0, 1]{hint}")
        return eps

    def __str__(self) -> str:
        return f"L{self.norm} {format_fraction(self.eps)}"

    def __repr__(self) -> str:
        return f"LpBall('{self.norm}', {format_fraction(self.eps)})"

    def scaled(self, factor: float) -> "LpBall":
        return LpBall(norm=self.norm, eps=self.eps * factor)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """Nearest allowed image to x_adv around x (L2: nearest in the ball, then in the box)."""
        if self.norm == "inf":
            return torch.clamp(x_adv, min=x - self.eps, max=x + self.eps).clamp(0, 1)
        delta = x_adv - x
        if self.norm == "1":
            return (x + _shortened(delta, torch.where(delta > 0, 1 - x, x), self.eps)).clamp(0, 1)
        # the box only moves pixels towards x, so it can't leave the ball again
        return (x + delta * (self.eps / _length(delta).clamp_min(1e-12)).clamp_max(1)).clamp(0, 1)

    def distance(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) distances, in float64."""
        delta = (_float64(x_adv) - _float64(x)).flatten(1)
        return delta.abs().amax(1) if self.norm == "inf" else delta.norm(p=int(self.norm), dim=1)

    def contains(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) whether each image is allowed, up to what float32 rounds."""
        inside_box = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)  # NaN compares false
        return inside_box & (self.distance(x, x_adv) <= self._limit).to(x.device)

    @property
    def _limit(self) -> float:
        return self.eps + 1e-6 if self.norm == "inf" else self.eps * (1 + 1e-5) + 1e-9

    def quantized(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """x_adv in steps of 1/255, as pictures are stored, where the ball holds such an image; elsewhere x itself.

        Pixels give way toward x where the ball would be left.
        """
        nearest = (x_adv * 255).round()
        if self.norm == "inf":
            origin, limit = _float64(x), self._limit - 1e-7  # float32 holds a level to 3e-8
            low, high = ((origin - limit) * 255).ceil(), ((origin + limit) * 255).floor()
            levels = nearest.clamp(low.to(nearest), high.to(nearest))
        else:
            towards = torch.where(x_adv > x, (x_adv * 255 + 1e-3).floor(), (x_adv * 255 - 1e-3).ceil())
            levels = torch.where(self._holds(x, nearest), nearest, towards)
        held = self._holds(x, levels)
        if self.norm != "inf" and not bool(held.all()):  # only around an x that is off the grid
            levels = torch.where(held, levels, self._shrunk_levels(x, x_adv))
            held = self._holds(x, levels)
        return torch.where(held, levels.clamp(0, 255) / 255, x)

    def _holds(self, x: Tensor, levels: Tensor) -> Tensor:
        return self.contains(x, levels.clamp(0, 255) / 255).view(-1, 1, 1, 1)

    def _shrunk_levels(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """Of the way from x to x_adv, as much as keeps its rounded end in the ball."""
        levels, part = (x * 255).round(), torch.zeros_like(x[:, :1, :1, :1])
        for bit in range(1, 9):
            longer = part + 0.5**bit
            tried = ((x + longer * (x_adv - x)) * 255).round()
            fits = self._holds(x, tried)
            levels, part = torch.where(fits, tried, levels), torch.where(fits, longer, part)
        return levels

    def random_start(self, x: Tensor, random: SampleStreams) -> Tensor:
        """An allowed image, uniform over the ball before the box cuts it."""
        shape = x.shape[1:]
        if self.norm == "inf":
            delta = (2 * random.uniform(shape, at="start", dtype=x.dtype) - 1) * self.eps
        elif self.norm == "1":  # uniform over the simplex, whose last coordinate is dropped
            sizes = -random.uniform((shape.numel() + 1,), at="start", dtype=x.dtype).log()
            signs = torch.where(random.uniform(shape, at="signs", dtype=x.dtype) > 0.5, self.eps, -self.eps)
            delta = (sizes[:, :-1] / sizes.sum(1, keepdim=True)).view_as(x) * signs
        else:
            direction = random.normal(shape, at="start", dtype=x.dtype)
            radius = random.uniform((), at="radius", dtype=x.dtype) ** (1.0 / shape.numel())
            delta = direction / _length(direction) * self.eps * radius.view(-1, 1, 1, 1)
        return self.project(x, x + delta)

    def steepest(self, gradient: Tensor, at: Tensor | None = None) -> Tensor:
        """The step of length 1 in this norm along which a linear function rises fastest.

        In L1 that is one pixel, which soon meets the box: the hundredth with the largest gradients divide the step, of
        those that can still move from `at` (Tramer and Boneh 2019).
        """
        if self.norm == "inf":
            return gradient.sign()
        if self.norm == "1":
            if at is not None:
                gradient = torch.where(torch.where(gradient > 0, at < 1, at > 0), gradient, 0)
            flat = gradient.flatten(1)
            chosen = flat.abs().topk(math.ceil(flat.shape[1] / 100), dim=1).indices
            signs = torch.zeros_like(flat).scatter(1, chosen, flat.gather(1, chosen).sign())
            return (signs / signs.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)
        return gradient / _length(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)

    def slope(self, gradient: Tensor) -> Tensor:
        """(B,) how fast a linear function with this gradient can rise along a step of length 1: the dual norm."""
        if self.norm == "1":
            return gradient.abs().flatten(1).amax(1)
        return (gradient * self.steepest(gradient)).flatten(1).sum(1)


def lp_norm(flat: Tensor, norm: str) -> Tensor:
    """Over the last dimension, by the plain formulas of the attacks' reference implementations."""
    if norm == "inf":
        return flat.abs().amax(-1)
    return flat.abs().sum(-1) if norm == "1" else (flat**2).sum(-1).sqrt()


def _float64(x: Tensor) -> Tensor:
    """On the CPU where the device has no float64."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def _shortened(delta: Tensor, slack: Tensor, length: float) -> Tensor:
    """The point nearest to delta whose entries keep to their `slack` and sum, in size, to `length` at most.

    Each entry loses the same `cut`, then is held to its slack: what is left sums to a function of the cut that falls in
    straight lines between the sizes and the sizes less their slack.
    """
    size, slack = _float64(delta.abs().flatten(1)), _float64(slack.flatten(1))  # sums of many
    corner, order = torch.cat([size, (size - slack).clamp_min(0)], 1).sort(dim=1, descending=True)
    weight = torch.where(order < size.shape[1], 1.0, -1.0).double()
    lines, total = weight.cumsum(1), (weight * corner).cumsum(1)
    sums = total - corner * lines  # at each corner, rising
    index = (torch.searchsorted(sums, torch.full_like(sums[:, :1], length), right=True) - 1).clamp_min(0)
    cut = (total.gather(1, index) - length) / lines.gather(1, index).clamp_min(1)
    cut = torch.where(total[:, -1:] <= length, 0, cut).clamp_min(0)
    return (size - cut).clamp_min(0).minimum(slack).to(delta.dtype).to(delta.device).view_as(delta) * delta.sign()


def _length(delta: Tensor) -> Tensor:
    # scaled by the largest entry first: squares of small gradients underflow in float32
    largest = delta.abs().flatten(1).amax(1).clamp_min(torch.finfo(delta.dtype).tiny).view(-1, 1, 1, 1)
    length: Tensor = (delta / largest).flatten(1).norm(dim=1).view(-1, 1, 1, 1) * largest
    return length
