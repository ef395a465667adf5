"""Published data sets as torchvision unpacks them: read from disk, or downloaded where that is asked for."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_folder, locked


@dataclass(frozen=True)
class Published:
    name: str
    folder: str
    """Where torchvision puts its files, below the folder that it downloads into."""
    megabytes: int
    torchvision_name: str

    def homes(self, root: Path | None) -> list[Path]:
        """Folders that may hold it: the one given, else its own below ROBUSTVIT_DATA (default: data) and that."""
        if root is not None:
            return [root]
        base = Path(os.environ.get("ROBUSTVIT_DATA") or "data")
        return [base / self.name, base]

    def candidates(self, root: Path | None) -> list[Path]:
        inner = Path(self.folder).name
        places = [
            place
            for home in self.homes(root)
            for place in ([home] if home.name == inner else [home / self.folder, home / inner])
        ]
        return list(dict.fromkeys(places))

    def find(self, root: Path | None) -> Path | None:
        return next((folder for folder in self.candidates(root) if is_folder(folder)), None)

    def find_or_fetch(self, root: Path | None, download: bool, also: Sequence[str] = ()) -> Path:
        """The folder with its files; `also`: other places that were searched, for the message."""
        folder = self.find(root)
        if folder is not None:
            return folder
        first, *others = self.candidates(root)
        if not download:
            there = ", ".join(f"'{place}'" for place in (first, *others, *also))
            raise UserError(
                f"{self.name}: not there (looked for {there}); put it there, name another folder with data.root or "
                f"ROBUSTVIT_DATA, or have torchvision download it ({self.megabytes} MB): data.download=true"
            )
        self._fetch(first.parents[len(Path(self.folder).parts) - 1])
        return first

    def _fetch(self, home: Path) -> None:
        """torchvision checks the archives' checksums."""
        from torchvision import datasets

        with (
            locked(home / ".download.lock", f"downloading {self.name}", wait=True),
            contextlib.redirect_stdout(sys.stderr),  # results alone go to standard output
        ):
            try:
                getattr(datasets, self.torchvision_name)(home, download=True)
            except (OSError, RuntimeError, ImportError) as error:
                raise UserError(f"{self.name}: can't be downloaded into '{home}' ({first_line(error)})") from error
