"""Fractions that are near zero unless a model masks its gradients, by a few passes over some images.

A further probe is one function and one line of PROBES.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.attacks.base import Classifier, gradient_to, logits_with_gradient
from robustvit.core.result import ResultWarning
from robustvit.core.streams import SampleStreams, sample_streams
from robustvit.evaluation import attention_rows
from robustvit.evaluation.subject import Subject
from robustvit.models.precision import matrix_products
from robustvit.threats import LpBall

ROWS_IMAGES = 16
"""Images whose attention is looked at: without fused kernels it takes more memory."""
SLOPE_IMAGES = 32
SLOPE_STEPS = (1 / 510, 1 / 2040)
"""In pixels, toward both sides: the larger one stands out from the rounding of float32, the smaller one meets fewer
kinks of a ReLU network."""
SLOPE_SIDE = 32
"""Larger images take smaller steps, of the length in L2 that they have at this side."""
OTHER_SLOPE = 0.2
"""A gradient that is further off from the slope of either step is wrong."""
SAME_MARGIN = 0.01
"""Margins this near to their median are equal."""
LEAST_IMAGES = 8
"""With fewer, a fraction means nothing."""


@dataclass(frozen=True)
class Probed:
    """What a probe sees: a model and some of its images."""

    subject: Subject
    threat: LpBall
    x: Tensor
    y: Tensor
    logits: Tensor
    """Of x."""
    is_random: bool


Measured = tuple[float, str]
"""A fraction, and the observation to report if it is too large."""


@dataclass(frozen=True)
class Probe:
    """A warning of this name, if the fraction that `measure` finds is above the limit."""

    name: str
    measure: Callable[[Probed], Measured | None]
    """None: nothing to measure."""
    limit: float
    advice: str


def one_hot_attention(probed: Probed) -> Measured | None:
    model = probed.subject.model
    fraction = attention_rows.one_hot_rows(model, probed.x[:ROWS_IMAGES]) if isinstance(model, nn.Module) else None
    if fraction is None:
        return None
    rows = f"{100 * fraction:.0f} % of the attention rows (queries) put more than {attention_rows.ONE_HOT}"
    return fraction, f"{rows} of their weight on one key"


def wrong_slopes(probed: Probed) -> Measured | None:
    """Where the lead of the first class over the second rises otherwise than the gradient says."""
    if probed.is_random:
        return None
    with matrix_products():
        known, wrong = compared_slopes(probed)
    if known.sum() < LEAST_IMAGES:
        return None
    off, count = int(wrong.sum()), int(known.sum())
    return off / count, (
        f"for {off} of {count} images the gradient differs by more than {100 * OTHER_SLOPE:.0f} % from the slope that "
        "small steps along a random direction find"
    )


def compared_slopes(probed: Probed) -> tuple[Tensor, Tensor]:
    """For each image: whether its slope along a random direction is known, and whether the gradient gives another."""
    model, x = probed.subject.model, probed.x[:SLOPE_IMAGES]
    streams = sample_streams(probed.subject.seed, range(len(x))).to(x.device).child("slope")
    point = _search_points(model, x, probed.threat, streams)
    direction = (streams.uniform(x.shape[1:], at="direction", dtype=x.dtype) - 0.5).sign()
    logits, classes, gradient = _lead_gradient(model, point)
    expected, average = (gradient * direction).double().flatten(1).sum(1), gradient.double().flatten(1).norm(dim=1)
    rounding = 50 * torch.finfo(logits.dtype).eps * logits.gather(1, classes).abs().amax(1)
    known, wrong = torch.zeros_like(expected, dtype=torch.bool), torch.ones_like(expected, dtype=torch.bool)
    for step in slope_steps(x):
        with torch.no_grad():
            ahead, behind = (_lead(model(point + side * direction), classes) for side in (step, -step))
        slope = (ahead - behind) / (2 * step)
        scale = torch.maximum(average, slope.abs())  # the slope of one direction may be zero by chance
        resolved = scale * step > rounding
        known |= resolved
        wrong &= ~resolved | ((slope - expected).abs() > OTHER_SLOPE * scale)
    return known, known & wrong


def slope_steps(x: Tensor) -> tuple[float, ...]:
    """For images of this size: all pixels move, so that more of them cross more kinks."""
    shrink = min(1.0, SLOPE_SIDE / (x.shape[2] * x.shape[3]) ** 0.5)
    return tuple(step * shrink for step in SLOPE_STEPS)


def _search_points(model: Classifier, x: Tensor, threat: LpBall, streams: SampleStreams) -> Tensor:
    """Where attacks begin and, for every second image, where a step across the whole ball takes them.

    Steps from there don't leave [0, 1], where a model may clamp.
    """
    start = threat.random_start(x, streams)
    gradient = _lead_gradient(model, start)[2]
    end = threat.project(x, start - threat.eps * threat.steepest(gradient))
    begins = (torch.arange(len(x), device=x.device) % 2 == 0).view(-1, 1, 1, 1)
    far = max(slope_steps(x))
    return torch.where(begins, start, end).clamp(far, 1 - far)


def _lead_gradient(model: Classifier, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, the first two classes, and the gradient of the first one's lead."""
    point = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_with_gradient(model, point)
        classes = logits.detach().topk(2, dim=1).indices
        return logits.detach(), classes, gradient_to(point, _lead(logits, classes).sum())


def _lead(logits: Tensor, classes: Tensor) -> Tensor:
    """Of the first class over the second: smooth where the model is, and never saturated, unlike a cross-entropy."""
    first, second = logits.double().gather(1, classes).unbind(1)
    return first - second


def equal_margins(probed: Probed) -> Measured | None:
    logits = probed.logits[torch.isfinite(probed.logits).all(1)]
    answers = logits.argmax(1)
    if len(logits) < LEAST_IMAGES or bool((answers == answers[0]).all()):  # a constant model has equal margins, too
        return None
    first, second = logits.topk(2, dim=1).values.unbind(1)
    margins = first - second
    near = int(((margins - margins.median()).abs() <= SAME_MARGIN * margins.median()).sum())
    same = f"the first class leads the second by {float(margins.median()):.3g}"
    return near / len(logits), f"{same}, to {100 * SAME_MARGIN:.0f} %, on {near} of {len(logits)} images"


PROBES = (
    Probe("one-hot-attention", one_hot_attention, 0.25, attention_rows.ADVICE),
    Probe(
        "wrong-gradients",
        wrong_slopes,
        0.15,
        "a part of the model passes none or another gradient (detach, rounding, a backward of its own): attacks that "
        "follow it search the wrong way; repair it, or attack a differentiable form of the model",
    ),
    Probe(
        "equal-margins",
        equal_margins,
        0.5,
        "the outputs saturate (argmax, clamp, a bounded head): attacks see no slope until the class changes; return "
        "the logits before that",
    ),
)
"""In the order of their warnings."""


def probe_warnings(probed: Probed, begin: Callable[[str], None] = lambda name: None) -> Iterator[ResultWarning]:
    """`begin` is called with the name of each probe."""
    for probe in PROBES:
        begin(probe.name)
        measured = probe.measure(probed)
        if measured is not None and measured[0] > probe.limit:
            yield ResultWarning(probe.name, measured[1], probe.advice, inflates=True)
