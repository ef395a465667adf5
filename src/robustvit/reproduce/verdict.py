"""What an interval says about a paper's claim that one thing is above another."""

from typing import Literal

Verdict = Literal["seen", "opposite", "not seen", "too noisy"]
NO_CLAIM = "no claim"
"""In place of a verdict on a difference of which the paper claims neither side."""
OURS = "a control or an addition of this project"
"""What a comparison is whose verdict isn't one on a claim of the paper."""
RULE = (
    "Seen: the 95 % interval of the paired difference, over images and seeds, lies above 0, the paper's side. "
    "Opposite: it lies below 0. Not seen: it holds 0 and excludes the paper's own difference. Too noisy: it holds "
    "both, or the paper prints no difference that it could exclude. No claim: the paper claims neither side."
)


def verdict(interval: tuple[float, float] | None, effect: float | None) -> Verdict:
    """On a difference that the paper has above 0, by `effect` where that is printed."""
    if interval is None:
        return "too noisy"
    low, high = interval
    if low > 0:
        return "seen"
    if high < 0:
        return "opposite"
    return "not seen" if effect is not None and not low <= effect <= high else "too noisy"
