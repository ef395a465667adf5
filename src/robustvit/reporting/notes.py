"""What must be said beside a robust accuracy: bounds, protocols, controls."""

from collections.abc import Iterator
from typing import Any


def notes_beside(told: dict[str, Any]) -> tuple[str, ...]:
    """Of a result in the form of its `result.json`."""
    return (*_of_bound(told.get("bound") or {}), *_of_attention(told.get("attention") or {}))


def _of_bound(bound: dict[str, Any]) -> Iterator[str]:
    if bound:
        sure = "" if bound["confidence"] == 1 else f" ({100 * float(bound['confidence']):.0f} % sure)"
        yield (
            f"AutoAttack would leave at least {_percent(max(0.0, float(bound['robust_accuracy_at_least'])))}{sure}: "
            f"it took {bound['fell']} of {bound['sampled']} sampled out of {bound['survivors']} survivors"
        )


def _of_attention(attention: dict[str, Any]) -> Iterator[str]:
    if attention.get("protocol") == "paper":
        yield (
            "judged on the model with scaled attention, not on the model as it is, whose clean accuracy is "
            f"{_percent(attention['original_clean_accuracy'])}"
        )
    if control := attention.get("control"):
        low, high = control["interval"]
        clean = f", clean {_percent(control['clean_accuracy'])}" if attention.get("protocol") == "paper" else ""
        yield (
            f"with random factors in place of searched ones: {_percent(control['robust_accuracy'])} "
            f"({100 * float(low):.1f} to {100 * float(high):.1f}){clean}"
        )
    for entry in attention.get("searches", ()):
        if entry["search"].get("steps"):
            yield f"attention factors found: {_factors_text([float(factor) for factor in entry['factors']])}"


def _factors_text(factors: list[float]) -> str:
    if all(abs(factor - 1) < 0.01 for factor in factors):
        return "all 1, so that this is the attack without scaling"
    return ", ".join(f"{factor:.2g}" for factor in factors)


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"
