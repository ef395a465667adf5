"""What attacks declare of themselves, and the optional methods that are called on them and on every attack inside."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from robustvit.attacks.base import Attack, AttackSubject, Classifier
from robustvit.core.component import is_component, to_dict
from robustvit.core.errors import UserError
from robustvit.threats import LpBall


def inner_attacks(attack: Attack) -> tuple[Attack, ...]:
    """Of every field that holds an attack or a tuple of attacks."""
    return tuple(inner for _, held in _fields_with_attacks(attack) for inner in (held if _is_many(held) else (held,)))


def innermost(attack: Attack) -> Attack:
    """The attack inside all wrappers of one attack."""
    held = [value for _, value in _fields_with_attacks(attack)]
    return innermost(held[0]) if len(held) == 1 and not _is_many(held[0]) else attack


def mapped(attack: Attack, change: Callable[[Attack], Attack]) -> Attack:
    """The same attack with `change` applied to it and to every attack inside it."""
    changes = {
        name: tuple(mapped(inner, change) for inner in held) if _is_many(held) else mapped(held, change)
        for name, held in _fields_with_attacks(attack)
    }
    return change(dataclasses.replace(attack, **changes) if changes else attack)  # type: ignore[type-var]


def label(attack: Attack) -> str:
    """A short name that carries every setting that isn't the default."""
    own = getattr(attack, "label", None)
    if isinstance(own, str):
        return own
    settings = to_dict(attack)
    name = settings.pop("name")
    try:
        default = to_dict(type(attack)())
    except ValidationError:  # it has settings without a default
        default = {}
    changed = changed_settings(settings, default)
    return f"{name}:{changed}" if changed else str(name)


def changed_settings(settings: dict[str, Any], default: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in settings.items() if default.get(key) != value)


def follows_gradients(attack: Attack) -> bool:
    """Whether the search ascends the gradient of the very model that is judged."""
    own, inner = getattr(attack, "follows_gradients", None), inner_attacks(attack)
    return bool(own) if own is not None else not inner or any(map(follows_gradients, inner))


def passes_of(attack: Attack) -> int | None:
    """Forward and backward passes of one image at most, as an attack's `passes` declares it; None where it is unknown.

    Without a declaration, a wrapper takes those of the attacks inside it, and a search with `steps` takes a gradient at
    each (`eot` of them for random models) and one more forward pass.
    """
    own, inner = getattr(attack, "passes", None), [passes_of(one) for one in inner_attacks(attack)]
    if own is not None:
        return int(own)
    if inner:
        return None if None in inner else sum(filter(None, inner))
    steps = getattr(attack, "steps", None)
    return None if steps is None else 2 * int(steps) * int(getattr(attack, "eot", 1)) + 1


@dataclasses.dataclass(frozen=True)
class Suspect:
    """What it means if an attack fools images that attacks along gradients had left robust."""

    name: str
    """Of the warning."""
    advice: str
    attack: str = ""
    has_control: bool = False


BLACK_BOX = Suspect(
    "black-box-beats-gradients",
    "gradients hide something or had too few steps: raise the steps, use autoattack, and look for a part of the model "
    "that isn't differentiable",
)


def suspect_of(attack: Attack) -> Suspect | None:
    """What the attack, or the one that it wraps, says of its success; None where success means nothing special."""
    own = getattr(attack, "suspect", None)
    if isinstance(own, Suspect):
        name = str(getattr(attack, "name", type(attack).__name__))
        return dataclasses.replace(own, attack=name, has_control=hasattr(attack, "control"))
    inner = getattr(attack, "inner", None)
    return None if inner is None else suspect_of(inner)


def attacks_inside(attack: Attack) -> tuple[Attack, ...]:
    """The attack itself and every attack inside it."""
    return (attack, *(part for inner in inner_attacks(attack) for part in attacks_inside(inner)))


def judges_changed_model(attack: Attack) -> bool:
    """Whether its images are judged on the model within `judged_model`, and not on the model as it is."""
    return bool(getattr(attack, "judges_changed_model", False))


def check_norms(attack: Attack, threat: LpBall) -> None:
    """A UserError where the attack, or one inside it, doesn't search this norm."""
    for part in attacks_inside(attack):
        norms = getattr(part, "norms", (threat.norm,))
        if threat.norm not in norms:
            name = getattr(part, "name", type(part).__name__)
            raise UserError(f"{name} searches in L{' and L'.join(norms)} alone, not in {threat}")


def _fields_with_attacks(attack: Attack) -> list[tuple[str, Any]]:
    instance: Any = attack  # for mypy a protocol is no dataclass
    fields = dataclasses.fields(instance) if dataclasses.is_dataclass(instance) else ()
    values = [(field.name, getattr(attack, field.name)) for field in fields]
    return [(name, value) for name, value in values if _holds_attacks(value)]


def _holds_attacks(value: Any) -> bool:
    many = value if _is_many(value) else (value,)
    return bool(many) and all(is_component(one, "attack") for one in many)


def _is_many(value: object) -> bool:
    return isinstance(value, tuple | list)


def check_attack(attack: Attack, subject: AttackSubject) -> None:
    """`check(subject)`: a UserError, before any work, if the attack can't search this model."""
    for check in _hooks(attack, "check"):
        check(subject)


def prepare_attacks(attacks: Sequence[Attack], subject: AttackSubject, folder: Path | None) -> tuple[Attack, ...]:
    """`prepare(subject, folder)`: the attack with all that it must search for first, once before a stage.

    The first process comes first and may save to the folder what the others, or a resumed evaluation, then read;
    without a folder, what one attack of an evaluation searches for is still not searched for by the next.
    """
    if folder is None:
        with TemporaryDirectory() as temporary:
            return prepare_attacks(attacks, subject, Path(temporary))

    def prepare(attack: Attack) -> Attack:
        hook = getattr(attack, "prepare", None)
        prepared: Attack = attack if hook is None else hook(subject, folder)
        return prepared

    return tuple(mapped(attack, prepare) for attack in attacks)


def control_of(attack: Attack) -> Attack | None:
    """`control()`: the same attack with chance in place of what is searched for; None if nothing is."""

    def control(one: Attack) -> Attack:
        hook = getattr(one, "control", None)
        return one if hook is None else hook() or one

    by_chance = mapped(attack, control)
    return None if by_chance == attack else by_chance


@contextmanager
def judged_model(attack: Attack, model: Classifier) -> Iterator[None]:
    """`judged_model(model)`: within, `model` is the one that is attacked and judged, where that is a changed one."""
    with ExitStack() as stack:
        for hook in _hooks(attack, "judged_model"):
            stack.enter_context(hook(model))
        yield


def attack_facts(attack: Attack) -> list[dict[str, Any]]:
    """`facts()`: what a result stores about a prepared attack in addition to its settings; the outermost first."""
    return [facts() for facts in _hooks(attack, "facts")]


def attack_notes(attack: Attack) -> tuple[str, ...]:
    """`notes()`: what a reader of the result must know about a prepared attack."""
    return tuple(dict.fromkeys(note for notes in _hooks(attack, "notes") for note in notes()))


def _hooks(attack: Attack, name: str) -> list[Any]:
    return [getattr(part, name) for part in attacks_inside(attack) if hasattr(part, name)]
