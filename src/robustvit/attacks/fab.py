"""FAB: walk along the decision boundary to its point nearest to the image (Croce and Hein 2020b).

A loop of its own: it minimizes the distance instead of ascending a loss, and its iterates leave the ball. Follows the
authors' implementation on the same start; the projections onto a hyperplane inside the box solve one piecewise linear
equation, where theirs search by bisection.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import (
    Classifier,
    Search,
    check_call,
    check_pixels,
    gradient_to,
    logits_with_gradient,
    start_noise,
)
from robustvit.attacks.hooks import BLACK_BOX, Suspect
from robustvit.core.component import component
from robustvit.core.numbers import Count, UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.threats import LpBall, lp_norm


@component("attack", "fab")
class FAB:
    """Fast adaptive boundary attack (Croce and Hein 2020b); with a target, its targeted form FAB-T."""

    suspect: ClassVar[Suspect] = BLACK_BOX

    steps: Count = 100
    """Of the search."""
    alpha_max: UnitInterval = 0.1
    """Largest pull back towards the image."""
    eta: Annotated[float, Field(ge=1)] = 1.05
    """How far beyond the boundary a step lands."""
    beta: UnitInterval = 0.9
    """What is kept of the way from the image after a success."""

    @property
    def passes(self) -> int:
        """Towards a target; without one, each step takes a gradient for every class."""
        return 3 * self.steps

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        check_pixels(x)
        result = x.detach().clone()
        nearest = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        rows = torch.arange(len(x), device=x.device)
        point = self._start(result, threat, search.streams(x))
        origin, label = x.detach(), y  # of the samples still searched for, as are rows and point
        for number in range(self.steps):
            target = None if search.target is None else search.target[rows]
            gap, slope = _boundary(model, point, label, target, threat)
            point = self._step(origin, point, gap, slope, threat)
            with torch.no_grad():
                logits = model(point)
            length = lp_norm((point - origin).flatten(1), threat.norm)
            if search.observe is not None:
                search.observe(number, rows, point, length, logits)
            wrong = logits.argmax(1) != label
            closer = wrong & (length < nearest[rows])
            nearest[rows[closer]] = length[closer]
            kept = closer & (length <= threat.eps)
            going = torch.ones_like(kept)
            if bool(kept.any()):
                result[rows[kept]] = point[kept]
                if search.done is not None:
                    going[kept] = ~search.done(point[kept], logits[kept], rows[kept])
            point = torch.where(wrong.view(-1, 1, 1, 1), origin + (point - origin) * self.beta, point)
            if not bool(going.all()):
                rows, point, origin, label = rows[going], point[going], origin[going], label[going]
            if len(rows) == 0:
                break
        return result

    def _start(self, x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
        """The image; from the second restart on, noise of half the radius around it."""
        if random.restart == 0:
            return x
        noise = start_noise(x, threat, random)
        length = lp_norm(noise.flatten(1), threat.norm).view(-1, 1, 1, 1)
        return (x + 0.5 * threat.eps * noise / length).clamp(0, 1)

    def _step(self, x: Tensor, point: Tensor, gap: Tensor, slope: Tensor, threat: LpBall) -> Tensor:
        """Towards the boundary, linearized at the point, as seen from the point and from the image."""
        offset = (slope * point).flatten(1).sum(1) - gap
        twice = torch.cat([slope, slope]), torch.cat([offset, offset])
        ahead, across = to_hyperplane(torch.cat([point, x]), *twice, threat).chunk(2)
        lengths = [lp_norm(delta.flatten(1), threat.norm).clamp_min(1e-8) for delta in (ahead, across)]
        alpha = (lengths[0] / (lengths[0] + lengths[1])).clamp(0, self.alpha_max).view(-1, 1, 1, 1)
        return ((point + self.eta * ahead) * (1 - alpha) + (x + self.eta * across) * alpha).clamp(0, 1)


def to_hyperplane(x: Tensor, slope: Tensor, offset: Tensor, threat: LpBall) -> Tensor:
    """The shortest change, in the threat's norm, that brings x onto {z: slope . z = offset} inside the box.

    Along the best direction pixel i moves by its speed until it meets the box at time `limit`: what the inner product
    gains by time t is sum(gain * min(t, limit)), which is solved for the gain that is needed.
    """
    w, flat = slope.flatten(1), x.flatten(1)
    needed = (w * flat).sum(1) - offset
    w = torch.where(needed >= 0, 1.0, -1.0).to(w.dtype)[:, None] * w
    needed = needed.abs()
    size = w.abs()
    slack = torch.where(w > 0, flat, 1 - flat)
    if threat.norm == "1":
        return (_steepest_first(size, slack, needed) * -w.sign()).view_as(x)
    moves = size > (0 if threat.norm == "inf" else 1e-8)
    speed = torch.ones_like(size) if threat.norm == "inf" else size
    gain = torch.where(moves, size * speed, 0)
    limit = torch.where(moves, slack / speed.clamp_min(1e-30), 0)
    time = _meeting_time(gain, limit, needed)
    change = torch.minimum(time[:, None], limit) * speed * -w.sign()
    return torch.where(moves, change, 0).view_as(x)


def _steepest_first(size: Tensor, slack: Tensor, needed: Tensor) -> Tensor:
    """How far each pixel goes in L1, where the steepest goes as far as it can before the next one moves."""
    size, order = size.sort(dim=1, descending=True)
    gain = size * slack.gather(1, order)
    missing = needed[:, None] - (gain.cumsum(1) - gain)  # when a pixel's turn comes
    change = torch.where(size > 1e-8, missing / size.clamp_min(1e-30), 0).clamp_min(0).minimum(slack.gather(1, order))
    return torch.zeros_like(change).scatter(1, order, change)


def _meeting_time(gain: Tensor, limit: Tensor, needed: Tensor) -> Tensor:
    """The t at which sum(gain * min(t, limit)) = needed; infinite where it never is."""
    limit, order = limit.sort(dim=1)
    gain = gain.gather(1, order)
    spent = (gain * limit).cumsum(1)  # by those that have stopped
    left = gain.sum(1, keepdim=True) - gain.cumsum(1)  # speed of those that still move
    reached = spent + left * limit  # (B, D), rising
    index = torch.searchsorted(reached.contiguous(), needed[:, None].contiguous())  # stopped before the meeting
    before = (index - 1).clamp_min(0)
    spent_before = torch.where(index > 0, spent.gather(1, before), 0)
    left_before = torch.where(index > 0, left.gather(1, before), gain.sum(1, keepdim=True))
    time = (needed[:, None] - spent_before) / left_before
    return torch.where(index < limit.shape[1], time, torch.inf).squeeze(1)


def _boundary(
    model: Classifier, point: Tensor, y: Tensor, target: Tensor | None, threat: LpBall
) -> tuple[Tensor, Tensor]:
    """The other class's lead and its gradient; without a target, of the class that is linearly nearest."""
    at = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_with_gradient(model, at)
        leads = logits - logits.gather(1, y[:, None])  # (B, K)
        if target is not None:
            lead = leads.gather(1, target[:, None]).squeeze(1)
            return lead.detach(), gradient_to(at, lead.sum())
        gradients = [gradient_to(at, leads[:, k].sum(), retain_graph=True) for k in range(leads.shape[1])]
    every = torch.stack(gradients, dim=1).detach()  # (B, K, 3, H, W)
    dual_norm = {"inf": "1", "2": "2", "1": "inf"}[threat.norm]
    distance = leads.detach().abs() / (1e-12 + lp_norm(every.flatten(2), dual_norm))
    chosen = distance.scatter(1, y[:, None], torch.inf).argmin(1)
    rows = torch.arange(len(y), device=y.device)
    return leads.detach()[rows, chosen], every[rows, chosen]


def nearest_boundaries(model: Classifier, x: Tensor, y: Tensor, threat: LpBall, candidates: int = 9) -> Tensor:
    """(B, n) the classes in MALT's order (Melamed et al. 2024), of the `candidates` with the largest logits but y.

    By the logit gap divided by the norm of its gradient: the distance to the boundary if the model were linear, hence
    the norm that belongs to the threat's. One forward pass and a backward pass for each candidate.
    """
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(point)
        leads = logits - logits.gather(1, y[:, None])  # (B, K)
        others = leads.detach().scatter(1, y[:, None], -torch.inf)
        chosen = others.topk(min(candidates, leads.shape[1] - 1), dim=1).indices  # (B, n)
        distances = []
        for k in chosen.unbind(1):
            lead = leads.gather(1, k[:, None]).squeeze(1)
            (gradient,) = torch.autograd.grad(lead.sum(), point, retain_graph=True)
            steepness = threat.slope(gradient).clamp_min(torch.finfo(x.dtype).tiny)
            distances.append(-lead.detach() / steepness)
    return chosen.gather(1, torch.stack(distances, 1).argsort(dim=1, stable=True))
