"""What must be said beside a robust accuracy: bounds, protocols, controls."""

from collections.abc import Iterator
from typing import Any

from robustvit.core.finding import percent


def notes_beside(told: dict[str, Any]) -> tuple[str, ...]:
    """Of a result in the form of its `result.json`."""
    return (*_of_bound(told.get("bound") or {}), *_of_attention(told.get("attention") or {}, told["attacks"]))


def _of_bound(bound: dict[str, Any]) -> Iterator[str]:
    if bound:
        sure = "" if bound["confidence"] == 1 else f" ({100 * float(bound['confidence']):.0f} % sure)"
        yield (
            f"AutoAttack would leave at least {percent(max(0.0, float(bound['robust_accuracy_at_least'])))}{sure}: "
            f"it took {bound['fell']} of {bound['sampled']} sampled out of {bound['survivors']} survivors"
        )


def _of_attention(attention: dict[str, Any], attacks: list[dict[str, Any]]) -> Iterator[str]:
    if attention.get("protocol") == "transfer":
        scaled = {_settings(attack).get("where") for attack in attacks} - {None}
        what = " and ".join(sorted(str(where) for where in scaled)) or "attention"
        yield f"aas- attacks follow the model with scaled {what}; the model as it is judges (protocol transfer)"
    if attention.get("protocol") == "paper":
        yield (
            "judged on the model with scaled attention (protocol paper), not on the model as it is, whose clean "
            f"accuracy is {percent(float(attention['original_clean_accuracy']))}"
        )
    if control := attention.get("control"):
        low, high = control["interval"]
        clean = f", clean {percent(float(control['clean_accuracy']))}" if attention.get("protocol") == "paper" else ""
        yield (
            f"with random factors in place of searched ones: {percent(float(control['robust_accuracy']))} "
            f"({100 * float(low):.1f} to {100 * float(high):.1f}){clean}"
        )
    for kind, factors in _factors_of(attention, attacks):
        yield f"attention factors {kind}: {_factors_text(factors)}"


def _factors_of(attention: dict[str, Any], attacks: list[dict[str, Any]]) -> list[tuple[str, list[float]]]:
    """What the attacks used, and whether it was searched for, drawn or given."""
    known = [
        ("found" if entry["search"].get("steps") else "drawn at random", [float(factor) for factor in entry["factors"]])
        for entry in attention.get("searches", ())
    ]
    used = [each for each in known if each[0] == "found"]
    for attack in attacks:
        settings = _settings(attack)
        if attention and isinstance(settings.get("factors"), list | tuple):
            factors = [float(factor) for factor in settings["factors"]]
            told = next((each for each in known if each[1] == factors), ("given", factors))
            used += [] if told in used else [told]
    return used


def _settings(attack: dict[str, Any]) -> dict[str, Any]:
    return attack["settings"] if isinstance(attack["settings"], dict) else {}


def _factors_text(factors: list[float]) -> str:
    if all(abs(factor - 1) < 0.01 for factor in factors):
        return "all 1, so that this is the attack without scaling"
    return ", ".join(f"{factor:.2g}" for factor in factors)
