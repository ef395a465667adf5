"""Published data sets as torchvision unpacks them: read from disk, or downloaded where that is asked for."""

import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar

from robustvit.core.component import settings
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_folder, locked
from robustvit.data.select import Selection


@settings
class Published:
    """Abstract: the settings and the search that they have in common."""

    root: Path | None = None
    """The folder that holds its files; default: its name below ROBUSTVIT_DATA."""
    download: bool = False
    select: Selection | None = None
    has_splits: ClassVar[bool] = True
    name: ClassVar[str]
    folder: ClassVar[str]
    """Where torchvision puts its files, below the folder that it downloads into."""
    megabytes: ClassVar[int]
    torchvision_name: ClassVar[str]

    def homes(self) -> list[Path]:
        """Folders that may hold it: the one given, else its own below ROBUSTVIT_DATA (default: data) and that."""
        base = Path(os.environ.get("ROBUSTVIT_DATA") or "data")
        return [base / self.name, base] if self.root is None else [self.root]

    def candidates(self) -> list[Path]:
        inner = Path(self.folder).name
        places = [[home] if home.name == inner else [home / self.folder, home / inner] for home in self.homes()]
        return list(dict.fromkeys(chain(*places)))

    def find(self) -> Path | None:
        return next(filter(is_folder, self.candidates()), None)

    def find_or_fetch(self, also: Sequence[str] = ()) -> Path:
        """The folder with its files; `also`: other places that were searched, for the message."""
        folder = self.find()
        if folder is not None:
            return folder
        first, *others = self.candidates()
        if not self.download:
            there = ", ".join(f"'{place}'" for place in (first, *others, *also))
            raise UserError(
                f"{self.name}: not there (looked for {there}); put it there, name another folder with data.root or "
                f"ROBUSTVIT_DATA, or have torchvision download it ({self.megabytes} MB): data.download=true"
            )
        from torchvision import datasets

        home = first.parents[len(Path(self.folder).parts) - 1]
        with (
            locked(home / ".download.lock", f"downloading {self.name}", wait=True),
            contextlib.redirect_stdout(sys.stderr),  # results alone go to standard output
        ):
            try:
                getattr(datasets, self.torchvision_name)(home, download=True)  # which checks the archives' checksums
            except (OSError, RuntimeError, ImportError) as error:
                raise UserError(f"{self.name}: can't be downloaded into '{home}' ({first_line(error)})") from error
        return first
