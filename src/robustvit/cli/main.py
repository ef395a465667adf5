"""`robustvit`: its sub-commands, and how errors are reported."""

import functools
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from robustvit import __version__
from robustvit.cli import (
    analyze,
    attack,
    card,
    check,
    convert,
    evaluate,
    export,
    generate,
    leaderboard,
    listing,
    merge,
    plan,
    playground,
    push,
    quality,
    quickstart,
    report,
    reproduce,
    score,
    sweep,
    train,
    verify,
)
from robustvit.cli.launch import say_once
from robustvit.core.component import explain
from robustvit.core.errors import UserError
from robustvit.core.files import check_system

app = typer.Typer(name="robustvit", no_args_is_help=True, pretty_exceptions_enable=False)


def _reporting_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Errors of the user exit with 2 and one message, Ctrl-C with 130."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        before = signal.signal(signal.SIGTERM, _terminate)
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal can't show is no reason to end
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            check_system()
            command(*args, **kwargs)
        except (UserError, ValidationError) as error:
            say_once(f"robustvit: {error if isinstance(error, UserError) else explain(error, 'settings')}")
            sys.exit(2)
        except OSError as error:
            if error.filename is None:
                raise
            say_once(f"robustvit: {error.filename}: {error.strerror}")
            sys.exit(2)
        except RuntimeError as error:
            if not _is_other_process(error):
                raise
            sys.exit(1)
        except KeyboardInterrupt as interrupt:
            say_once("robustvit: stopped; the same command resumes from what was saved last")
            sys.exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
        finally:
            signal.signal(signal.SIGTERM, before)

    return run


def _is_other_process(error: RuntimeError) -> bool:
    """A collective that failed because another process of the launch is gone, and has said why; or waits no longer."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from robustvit.core.world import is_disconnected, is_overdue

    if is_overdue(error):
        say_once("robustvit: the other processes did not answer in time; ROBUSTVIT_TIMEOUT=SECONDS waits longer")
    return is_disconnected(error)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends like Ctrl-C."""
    raise KeyboardInterrupt(number)


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {
        "quickstart": quickstart.quickstart,
        "list": listing.listing,
    },
    "Train": {
        "train": train.train,
        "sweep": sweep.sweep,
        "check": check.check,
        "plan": plan.plan,
        "generate": generate.generate,
        "score": score.score,
        "quality": quality.quality,
    },
    "Attack and evaluate": {
        "attack": attack.attack,
        "evaluate": evaluate.evaluate,
        "merge": merge.merge,
        "verify": verify.verify,
        "card": card.card,
    },
    "Understand": {
        "analyze": analyze.analyze,
        "playground": playground.playground,
        "report": report.report,
        "reproduce": reproduce.reproduce,
    },
    "Share": {
        "leaderboard": leaderboard.leaderboard,
        "export": export.export,
        "convert": convert.convert,
        "push": push.push,
    },
}
"""By what they are for, as `--help` and the documentation group them."""
for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_group)(_reporting_errors(_command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"robustvit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Train, attack, evaluate and understand adversarially robust vision transformers.

    Example: robustvit quickstart
    """


main = app
