"""Evaluations of one question on machines without a shared folder, joined."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from robustvit.core.errors import UserError
from robustvit.core.files import locked
from robustvit.core.journal import Journal, read_checked, read_rows
from robustvit.core.result_files import FILE as RESULT
from robustvit.core.run import RunFolder
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.saved import PARTS
from robustvit.evaluation.store import IDENTITY, SESSIONS, differing, read_identity


class Joined(NamedTuple):
    """What was added to an evaluation."""

    folder: Path
    rows: int
    has_result: bool
    """Whether its result was written before; the same command writes it anew from all rows."""


def join_evaluations(runs: Sequence[str | Path], into: str | Path) -> list[Joined]:
    """Every evaluation of the runs below the folder `into`: rows that it lacks, sessions and kept images.

    Ledgers of one evaluation must agree on each image they share. Nothing is taken out of the runs.
    """
    sources = [path.parent for run in runs for path in sorted(_evaluations(Path(run)).glob(f"*/{IDENTITY}"))]
    for run in runs:
        if Path(run).resolve() == Path(into).resolve():
            raise UserError(f"{run}: is the folder that the others are joined in; leave it out")
        if not any(folder.is_relative_to(run) for folder in sources):
            raise UserError(f"{run}: holds no evaluation (a run folder with eval/NAME/{IDENTITY})")
    return [_join(folder, _evaluations(Path(into)) / folder.name) for folder in sources]


def _evaluations(run: Path) -> Path:
    return RunFolder(run).evaluations


def _join(source: Path, target: Path) -> Joined:
    identity = read_identity(source / IDENTITY)
    with locked(target / ".lock", "joining"):
        if not (target / IDENTITY).exists():
            shutil.copyfile(source / IDENTITY, target / IDENTITY)
        elif differs := differing(read_identity(target / IDENTITY), identity):
            raise UserError(f"{source}: another {', '.join(differs)} than {target} has; they answer other questions")
        Ledger.repair(target)
        ledger, rows = Ledger(target), 0
        for path in sorted(source.glob("ledger-*.jsonl")):
            content = read_checked(path)
            if content.damaged:
                raise UserError(f"{path}, line {content.damaged[0]}: damaged; the same evaluation there repairs it")
            rows += ledger.adopt(content.rows, str(path))
        sessions = Journal(target / SESSIONS)
        known = sessions.repair()
        sessions.append([row for row in read_rows(source / SESSIONS) if row not in known])
        for part in sorted((source / PARTS).glob("*.npz")):
            if not (target / PARTS / part.name).exists():
                (target / PARTS).mkdir(exist_ok=True)
                shutil.copyfile(part, target / PARTS / part.name)
    return Joined(target, rows, (target / RESULT).exists())
