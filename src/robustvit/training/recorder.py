"""What a run writes and says: metrics, loggers, checkpoints, messages."""

import hashlib
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustvit.core.config import Tree
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder, sync_folder, write_atomic, write_json
from robustvit.core.journal import Row
from robustvit.core.progress import say
from robustvit.core.readers import read_bytes
from robustvit.core.result import ResultWarning
from robustvit.core.run import RunFolder
from robustvit.models import save_model
from robustvit.training.loggers import Logger, Write, values_of
from robustvit.training.state_parts import PARTS, damaged_part
from robustvit.training.task import Position, State

_STATE_NAME = re.compile(r"state-(\d{9})-([0-9a-f]{16})\.(pt|parts)")
_GROWING = ".state.parts"
"""The folder whose parts are being written."""
_REST = "state.pt"
"""In a folder of parts, what is not in them."""


@dataclass
class Recorder:
    """Writes into a run folder."""

    folder: RunFolder
    recipe: Tree
    quiet: bool = False
    _writers: list[Write] = field(default_factory=list)

    @contextmanager
    def opened(self, loggers: Sequence[Logger], step: int) -> Iterator[None]:
        """Inside, rows also go to the loggers."""
        with ExitStack() as stack:
            self._writers = [stack.enter_context(logger.open(self.folder, self.recipe, step)) for logger in loggers]
            yield

    def message(self, text: str) -> None:
        if not self.quiet:
            say(f"{self.folder.path}: {text}")

    def warn(self, position: Position, warning: ResultWarning) -> None:
        """A row of the metrics, and a message even where the run is quiet."""
        self.log(position, {"kind": "warning", **asdict(warning)})
        say(f"warning: {warning}")

    def log(self, position: Position, row: Row) -> None:
        """A row of the metrics."""
        place = {
            "total_step": position.total_step,
            "phase": position.phase_name,
            "step": position.step,
            "epoch": round(position.step / position.steps_per_epoch, 4),
        }
        self.folder.metrics.append([{**place, **row}])
        if values := values_of({**place, **row}):
            for write in self._writers:
                write(position.total_step, values)

    def cut_metrics(self, total_step: int) -> None:
        """Remove rows that were written after the last saved state: they will be written again."""
        rows = self.folder.metrics.repair()
        kept = [row for row in rows if row["total_step"] <= total_step]
        if len(kept) < len(rows):
            self.folder.metrics.rewrite(kept)

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.folder.path / name, value)

    def has_weights(self, name: str) -> bool:
        return is_file(self._weights(name))

    def save_weights(self, name: str, model: nn.Module, facts: Row) -> None:
        save_model(model, self._weights(name), **facts, recipe=self.recipe)

    def begin_parts(self) -> Path:
        """A new folder for the parts of a state that is spread over processes."""
        folder = self.folder.checkpoints / _GROWING
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{folder}: could not be made ({error.strerror})") from error
        return folder

    def save_state(self, number: int, state: State) -> None:
        """The newest two are kept; the name holds a digest of the content, with parts that of each part's digest."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getbuffer()
        name = self.folder.checkpoints / f"state-{number:09d}-{_digest(data)}"
        if parts := _parts(state):
            write_atomic(Path(parts["folder"]) / _REST, lambda file: file.write(data))
            if not is_folder(name.with_suffix(".parts")):
                Path(parts["folder"]).rename(name.with_suffix(".parts"))
            sync_folder(self.folder.checkpoints)
        else:
            write_atomic(name.with_suffix(".pt"), lambda file: file.write(data))
        shutil.rmtree(self.folder.checkpoints / _GROWING, ignore_errors=True)  # what a killed process had begun
        for path in state_paths(self.folder)[2:]:
            shutil.rmtree(path) if is_folder(path) else path.unlink()

    def load_state(self) -> State | None:
        """The newest intact state; a damaged one is reported and renamed."""
        for path in state_paths(self.folder):
            state, damaged = _read(path)
            if state is not None:
                return {**state, "path": str(path)}
            renamed = path.with_suffix(".damaged")
            path.rename(renamed)  # so that it no longer counts among the newest
            problem = "damaged (its content isn't what was written)"
            say(f"{damaged}: {problem}; {path.name} is now {renamed.name}, trying the previous one")
        return None

    def _weights(self, name: str) -> Path:
        return self.folder.checkpoints / f"{name}.safetensors"


def state_paths(folder: RunFolder) -> list[Path]:
    """Of training states, newest first: files, or folders of parts."""
    paths = folder.checkpoints.glob("state-*")
    return sorted((path for path in paths if _STATE_NAME.fullmatch(path.name)), reverse=True)


def _read(path: Path) -> tuple[State | None, Path]:
    """A state that is intact; else the file of it that isn't."""
    file = path / _REST if is_folder(path) else path
    with suppress(Exception):  # whatever torch runs into that didn't write it
        data = read_bytes(file, None)
        if _digest(data) == path.stem.rpartition("-")[2]:
            state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            parts = _parts(state)
            if parts and (name := damaged_part(path, parts["sha256"])):
                return None, path / name
            if parts:
                parts["folder"] = str(path)
            return state, path
    return None, file


def _parts(state: State) -> dict[str, Any]:
    task = state.get("task")
    return task.get(PARTS, {}) if isinstance(task, dict) else {}


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class NullRecorder:
    """Records nothing: for all processes but the first."""

    quiet = True

    def opened(self, loggers: Sequence[Logger], step: int) -> AbstractContextManager[None]:
        return nullcontext()

    def has_weights(self, name: str) -> bool:
        return True

    def load_state(self) -> State | None:
        return None

    def begin_parts(self) -> Path:
        raise AssertionError("only the first process makes folders")

    def _do_nothing(self, *arguments: Any) -> None: ...

    message = warn = log = cut_metrics = write_json = save_weights = save_state = _do_nothing


AnyRecorder = Recorder | NullRecorder
