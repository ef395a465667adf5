"""The one exception that means "the user can fix this": its message is one line."""

from collections.abc import Sequence


class UserError(ValueError):
    """What is wrong, where, and what would be right; the command line prints it and exits with 2."""


def nearest(name: str, known: list[str], most: int = 16) -> str:
    """`; did you mean 'beta'?`, or the known names, if nothing is close and there are at most so many."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(sorted(known))}" if 0 < len(known) <= most else ""


def check_counts(**counts: object) -> None:
    """Arguments that must be whole numbers above 0."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{name}: a whole number, at least 1, not {value!r}")


def some_failed(which: str, problems: Sequence[str]) -> UserError:
    """Of several runs; each problem has a line of its own."""
    return UserError("\n".join([f"{which} failed; the others are kept, and the same command goes on:", *problems]))


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shortened(text: str, most: int = 200) -> str:
    """For a message, which is one line."""
    return text if len(text) <= most else f"{text[:most]}..."


def short_repr(value: object) -> str:
    """What was given, for a message."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that holds itself
        return f"a {type(value).__name__} that is too large to print"
