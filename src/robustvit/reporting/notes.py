"""What must be said beside a robust accuracy: bounds, protocols, controls."""

from collections.abc import Iterator
from typing import Any


def notes_beside(told: dict[str, Any]) -> tuple[str, ...]:
    """Of a result in the form of its `result.json`."""
    return (*_of_bound(told.get("bound") or {}), *_of_attention(told.get("attention") or {}, told["attacks"]))


def _of_bound(bound: dict[str, Any]) -> Iterator[str]:
    if bound:
        sure = "" if bound["confidence"] == 1 else f" ({100 * float(bound['confidence']):.0f} % sure)"
        yield (
            f"AutoAttack would leave at least {_percent(max(0.0, float(bound['robust_accuracy_at_least'])))}{sure}: "
            f"it took {bound['fell']} of {bound['sampled']} sampled out of {bound['survivors']} survivors"
        )


def _of_attention(attention: dict[str, Any], attacks: list[dict[str, Any]]) -> Iterator[str]:
    if attention.get("protocol") == "paper":
        yield (
            "judged on the model with scaled attention, not on the model as it is, whose clean accuracy is "
            f"{_percent(attention['original_clean_accuracy'])}"
        )
        if control := attention.get("control"):
            robust, clean = (_percent(control[key]) for key in ("robust_accuracy", "clean_accuracy"))
            yield f"with random factors: {robust}, clean {clean}"
    for place, attack in enumerate(attacks):
        if attack.get("control"):
            how = "alone" if place == 0 else "in place of it"  # after what the attacks before it took
            yield f"{attack['name']} {how} would leave {_percent(attack['robust_accuracy'])}"
    for entry in attention.get("searches", ()):
        if entry["search"].get("steps"):
            yield f"attention factors found: {', '.join(f'{float(factor):.2g}' for factor in entry['factors'])}"


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"
