"""Where an evaluation or analysis is kept: a folder by the hash of the question, a lock, a ledger, its sessions."""

import json
import math
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from robustvit.core.checksum import read_json_with_checksum, with_checksum
from robustvit.core.errors import UserError
from robustvit.core.files import hash8, locked, write_json
from robustvit.core.journal import Journal
from robustvit.core.result import ResultWarning
from robustvit.core.world import World
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.subject import Subject, json_numbers, logits_spread

IDENTITY, SESSIONS = "identity.json", "sessions.jsonl"
SEEN_SECONDS = 5.0
"""After which a file that another machine has written counts as not there."""
TOLERANCE = 1e-3
"""Of the logits' spread: what two machines may differ by in the same model."""


@dataclass(frozen=True)
class Store:
    """One evaluation or analysis; without a folder it is kept in memory only."""

    folder: Path | None
    world: World = field(default_factory=World)
    identity: Any = None
    exchanges: bool = False
    """Whether machines have folders of their own, so that processes tell each other their rows."""

    @classmethod
    def open(cls, root: Path | None, title: str, identity: dict[str, Any], subject: Subject, world: World) -> "Store":
        """The folder below `root` for this question about this subject."""
        if root is None:
            return cls(None, world)
        whole = {
            "model": subject.fingerprint(),
            "behavior": subject.behavior,
            "data": subject.data_sha256,
            "seed": subject.seed,
            **identity,
        }
        whole = json.loads(json.dumps(whole))  # as it is read back: a tuple is a list there
        logits = subject.probe_logits
        words = re.sub(r"[^A-Za-z0-9.=+-]+", "_", title)[:80]
        folder = root / world.broadcast(_folder(root / f"{words}-{hash8(whole)}", logits).name)
        return cls(folder, world, {**whole, "logits": [json_numbers(row) for row in logits]})

    @contextmanager
    def lock(self, activity: str, wait: bool = False) -> Iterator["Store"]:
        """The first process holds the lock, checks the identity and repairs the ledgers; the others wait for it.

        A process that doesn't see the folder of the first one does so in its own. `wait`: for another command that
        holds the lock, in place of an error.
        """
        if self.folder is None:
            self.world.barrier()
            yield self
            return
        with locked(self.folder / ".lock", activity, wait) if self.world.is_first else nullcontext():
            if self.world.is_first:
                self._check_in()
            is_seen = is_shared(self.folder, self.world)
            if not is_seen:
                self._check_in()
            everyone = self.world.gather(is_seen)
            yield replace(self, exchanges=not all(everyone))

    def _check_in(self) -> None:
        assert self.folder is not None
        self._check_identity()
        Ledger.repair(self.folder)

    def ledger(self) -> Ledger:
        return Ledger(self.folder, self.world.rank, self.exchanges)

    def note_session(self, session: dict[str, Any]) -> list[ResultWarning]:
        """Remember what computes here; a warning if others before did so in another way."""
        if self.folder is None:
            return []
        return self.world.broadcast(self._noted(self.folder, session) if self.world.is_first else [])

    def _noted(self, folder: Path, session: dict[str, Any]) -> list[ResultWarning]:
        journal = Journal(folder / SESSIONS)
        before = journal.repair()
        journal.append([session])
        other = [key for key in ("threads", "versions") if any(row.get(key) != session[key] for row in before)]
        if not other:
            return []
        observation = f"made in several sessions that differ in {' and '.join(other)}; see {SESSIONS}"
        return [ResultWarning("sessions-differ", observation, "for numbers to publish, evaluate anew in one session")]

    def _check_identity(self) -> None:
        assert self.folder is not None
        path = self.folder / IDENTITY
        if not path.exists():
            write_json(path, with_checksum(self.identity))
            return
        if differs := differing(read_identity(path), self.identity):
            raise UserError(
                f"{self.folder}: holds an evaluation with another {', '.join(differs)}; choose another run folder"
            )


def is_shared(folder: Path, world: World) -> bool:
    """Whether this process sees what the first one writes there; a network file system may take some seconds."""
    if world.size == 1:
        return True
    path = folder / f".seen-{world.broadcast(uuid.uuid4().hex)}"
    if world.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    world.barrier()
    deadline = time.monotonic() + SEEN_SECONDS
    while not (seen := path.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    world.barrier()
    if world.is_first:
        path.unlink()
    return seen


def require_shared(folder: Path, world: World, why: str) -> None:
    """Refuse a folder that a process of another machine does not see."""
    for is_seen, host in world.gather((is_shared(folder, world), socket.gethostname())):
        if not is_seen:
            raise UserError(f"{folder}: {host} can't see it, and {why}; choose a --run folder that all machines share")


def _folder(base: Path, logits: Tensor) -> Path:
    """The first folder of this name that is free, or whose model gave these logits: hashes are coarse on purpose."""
    folder, number = base, 1
    while (folder / IDENTITY).exists() and not _is_near(read_identity(folder / IDENTITY), logits):
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


class _Identity(TypedDict):
    """What tells a question from others; its further keys are compared as they are."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    logits: NotRequired[list[list[float | None]]]


_IDENTITY: TypeAdapter[_Identity] = TypeAdapter(_Identity)


def read_identity(path: Path) -> Any:
    remedy = f"remove {path.parent} to compute it anew"
    return read_json_with_checksum(path, _IDENTITY, "whole identity of an evaluation", remedy)


def differing(stored: Any, identity: Any) -> list[str]:
    """Keys in which two questions differ; logits may by rounding."""
    return [key for key in identity if key != "logits" and stored.get(key) != identity[key]]


def _is_near(identity: Any, logits: Tensor) -> bool:
    stored = identity.get("logits")
    if stored is None or len({len(row) for row in stored}) != 1:
        return True  # the other keys are compared
    other = torch.tensor([[math.nan if v is None else v for v in row] for row in stored], dtype=torch.float64)
    known = logits.masked_fill(~torch.isfinite(logits), math.nan)
    limit = TOLERANCE * float(logits_spread(logits))
    return other.shape == known.shape and torch.allclose(other, known, rtol=0, atol=limit, equal_nan=True)
