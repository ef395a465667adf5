"""Where published data sets lie, how they are fetched, and what is said when they aren't there."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import locked


def homes(name: str, root: Path | None) -> list[Path]:
    """Folders that may hold a data set: the one given, else its own below ROBUSTVIT_DATA (default: data) and that."""
    if root is not None:
        return [root]
    base = Path(os.environ.get("ROBUSTVIT_DATA") or "data")
    return [base / name, base]


def fetch(name: str, home: Path, download: Callable[[Path], object]) -> None:
    """Let torchvision download and unpack; it checks the archives' checksums."""
    with (
        locked(home / ".download.lock", f"downloading {name}", wait=True),
        contextlib.redirect_stdout(sys.stderr),  # results alone go to standard output
    ):
        try:
            download(home)
        except (OSError, RuntimeError, ImportError) as error:
            raise UserError(f"{name}: can't be downloaded into '{home}' ({first_line(error)})") from error


def refuse_missing(name: str, looked_for: Sequence[Path | str], megabytes: int) -> NoReturn:
    there = ", ".join(f"'{place}'" for place in looked_for)
    raise UserError(
        f"{name}: not there (looked for {there}); put it there, name another folder with data.root or ROBUSTVIT_DATA, "
        f"or have torchvision download it ({megabytes} MB): data.download=true"
    )
