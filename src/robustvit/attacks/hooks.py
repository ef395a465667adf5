"""Methods that an attack may have in addition to its call, each called on an attack and on every attack inside it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from robustvit.attacks.base import Attack, AttackSubject, Classifier
from robustvit.attacks.nested import attacks_inside, mapped


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
