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
    card,
    check,
    evaluate,
    export,
    generate,
    listing,
    plan,
    quality,
    quickstart,
    report,
    reproduce,
    score,
    sweep,
    train,
    verify,
)
from robustvit.core.component import explain
from robustvit.core.errors import UserError
from robustvit.core.files import check_system
from robustvit.core.progress import say

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
            say(f"robustvit: {error if isinstance(error, UserError) else explain(error, 'settings')}")
            sys.exit(2)
        except OSError as error:
            if error.filename is None:
                raise
            say(f"robustvit: {error.filename}: {error.strerror}")
            sys.exit(2)
        except RuntimeError as error:
            if not _is_other_process(error):
                raise
            sys.exit(1)  # another process has ended, and has said why
        except KeyboardInterrupt as interrupt:
            say("robustvit: stopped; the same command resumes from what was saved last")
            sys.exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
        finally:
            signal.signal(signal.SIGTERM, before)

    return run


def _is_other_process(error: RuntimeError) -> bool:
    """A collective that failed because another process of the launch is gone."""
    if "WORLD_SIZE" not in os.environ:
        return False
    from robustvit.core.world import is_disconnected

    return is_disconnected(error)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends like Ctrl-C."""
    raise KeyboardInterrupt(number)


_COMMANDS: dict[str, Callable[..., None]] = {
    "quickstart": quickstart.quickstart, "train": train.train, "sweep": sweep.sweep, "evaluate": evaluate.evaluate,
    "card": card.card, "verify": verify.verify, "analyze": analyze.analyze, "report": report.report,
    "generate": generate.generate, "score": score.score, "quality": quality.quality,
    "export": export.export, "list": listing.listing, "check": check.check, "plan": plan.plan,
    "reproduce": reproduce.reproduce,
}  # fmt: skip
for _name, _command in _COMMANDS.items():
    app.command(_name)(_reporting_errors(_command))


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
