"""A model and data in, findings out, each a folder below the run; what is there already isn't done again."""

import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustvit.analysis.base import Chart, Finding, Pictures, Table
from robustvit.attacks.base import Classifier
from robustvit.core.component import build, to_dict
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import hash8, is_file, locked, read_json, write_atomic, write_json
from robustvit.core.progress import say
from robustvit.core.run import RunFolder, command, versions
from robustvit.data.base import Split, data_fingerprint
from robustvit.evaluation.attention import read_factors
from robustvit.evaluation.evaluate import open_subject
from robustvit.threats import LpBall

FILE, ARRAYS = "finding.json", "arrays.npz"


def analyze(
    model: Classifier,
    data: Any,
    *,
    what: Any,
    threat: LpBall,
    run: str | Path | None = None,
    split: Split = "test",
    images: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    device: str | None = None,
    quiet: bool = False,
) -> list[Finding]:
    """Findings about a model of pixels in [0, 1]: `what` names analyses, or holds them.

    With `run`, each is kept in its `analysis` folder, where the report finds it.
    """
    check_counts(batch_size=batch_size)
    wanted = [
        build("analysis", one) for one in (what if isinstance(what, Sequence) and not isinstance(what, str) else [what])
    ]
    if not wanted:
        raise UserError("what: at least one analysis; robustvit list shows them")
    subject = open_subject(model, data, split, images, threat, seed, batch_size, device)
    subject = replace(subject, quiet=quiet)
    found = []
    with subject.ready():
        subject.check()
        identity = {
            "model": subject.fingerprint(),
            "data": data_fingerprint(subject.images, subject.indices),
            "threat": to_dict(threat),
            "seed": seed,
        }
        for analysis in wanted:
            told = {**identity, "analysis": to_dict(analysis)}
            if isinstance(path := getattr(analysis, "factors", None), Path):
                told["factors"] = read_factors(path)  # the file may be another by the next time
            folder = None if run is None else _folder(Path(run), analysis.name, told)
            if folder is not None and is_file(folder / FILE):
                found.append(read_finding(folder))
                continue
            if not quiet:
                say(f"{analysis.name}: {len(subject.indices)} images of {subject.images.title}")
            subject.run = folder  # evaluations that an analysis makes are its own, not rows of the run
            finding = analysis(subject)
            found.append(finding)
            if folder is not None:
                with locked(folder / ".lock", "analysing"):
                    _write(folder, finding, {**told, "images": subject.images_rule, "data": subject.images.title})
    return found


def _folder(run: Path, name: str, told: dict[str, Any]) -> Path:
    return RunFolder(run).analyses / f"{name}-{hash8(told)}"


def _write(folder: Path, finding: Finding, facts: dict[str, Any]) -> None:
    if finding.arrays:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **finding.arrays)  # type: ignore[arg-type]
        write_atomic(folder / ARRAYS, lambda file: file.write(buffer.getvalue()))
    plain = {key: value for key, value in asdict(finding).items() if key != "arrays"}
    write_json(folder / FILE, {**plain, "facts": {**facts, "versions": versions(), "command": command()}})


def read_finding(folder: Path) -> Finding:
    told = read_json(folder / FILE)
    try:
        arrays = {}
        if is_file(folder / ARRAYS):
            with np.load(folder / ARRAYS, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        return Finding(
            told["title"],
            told["caption"],
            tuple(
                Table(table["title"], tuple(table["columns"]), tuple(map(tuple, table["rows"])))
                for table in told["tables"]
            ),
            tuple(
                Chart(
                    chart["title"],
                    chart["x_title"],
                    tuple((name, tuple(xs), tuple(ys)) for name, xs, ys in chart["series"]),
                    chart["in_percent"],
                )
                for chart in told["charts"]
            ),
            tuple(
                Pictures(one["title"], one["array"], tuple(one["columns"]), tuple(one["rows"]))
                for one in told["pictures"]
            ),
            arrays,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / FILE}: not a whole finding ({error}); remove the folder to have it made anew"
        ) from None
