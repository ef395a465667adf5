"""The optional hooks of attacks (`AttackHooks`), called on an attack and on every attack inside it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from robustvit.attacks.base import Attack, AttackSubject, Classifier
from robustvit.attacks.nested import inner_attacks, mapped


def check_attack(attack: Attack, subject: AttackSubject) -> None:
    for check in _hooks(attack, "check"):
        check(subject)


def prepare_attacks(attacks: Sequence[Attack], subject: AttackSubject, folder: Path | None) -> tuple[Attack, ...]:
    """All attacks of an evaluation; without a folder, what one searches for is still not searched for by the next."""

    def prepare(attack: Attack) -> Attack:
        hook = getattr(attack, "prepare", None)
        prepared: Attack = attack if hook is None else hook(subject, folder)
        return prepared

    if folder is not None:
        return tuple(mapped(attack, prepare) for attack in attacks)
    with TemporaryDirectory() as temporary:
        return prepare_attacks(attacks, subject, Path(temporary))


def control_of(attack: Attack) -> Attack | None:
    """None if nothing in the attack is searched for."""

    def control(one: Attack) -> Attack:
        hook = getattr(one, "control", None)
        return one if hook is None else hook() or one

    by_chance = mapped(attack, control)
    return None if by_chance == attack else by_chance


@contextmanager
def judged_model(attack: Attack, model: Classifier) -> Iterator[None]:
    with ExitStack() as stack:
        for hook in _hooks(attack, "judged_model"):
            stack.enter_context(hook(model))
        yield


def attack_facts(attack: Attack) -> list[dict[str, Any]]:
    """Of every attack that has some, the outermost first."""
    return [facts() for facts in _hooks(attack, "facts")]


def attack_notes(attack: Attack) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for notes in _hooks(attack, "notes") for note in notes()))


def _hooks(attack: Attack, name: str) -> Iterator[Any]:
    hook = getattr(attack, name, None)
    if hook is not None:
        yield hook
    for inner in inner_attacks(attack):
        yield from _hooks(inner, name)
