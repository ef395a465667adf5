"""A model and data in, findings out, each a folder below the run; what is there already isn't done again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robustvit.attacks.base import Classifier
from robustvit.attacks.factors_file import read_factors
from robustvit.core.component import build, explain, to_dict
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import hash8, is_file, locked
from robustvit.core.finding import FILE, Finding, read_finding, write_finding
from robustvit.core.progress import say
from robustvit.core.run import RunFolder, command, versions
from robustvit.data.base import Split, data_fingerprint
from robustvit.evaluation.evaluate import open_subject
from robustvit.threats import LpBall


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
    wanted = [_built(one) for one in (what if isinstance(what, Sequence) and not isinstance(what, str) else [what])]
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
                told["factors"] = list(read_factors(path)[0])  # the file may be another by the next time
            folder = None if run is None else _folder(Path(run), analysis.name, told)
            if folder is not None and is_file(folder / FILE):
                found.append(read_finding(folder))
                continue
            if not quiet:
                say(f"{analysis.name}: {len(subject.indices)} images of {subject.images.title}")
            subject.run = folder  # evaluations that an analysis makes are its own, not rows of the run
            told |= {"images": subject.images_rule, "data": subject.images.title}
            finding = replace(analysis(subject), facts={**told, "versions": versions(), "command": command()})
            found.append(finding)
            if folder is not None:
                with locked(folder / ".lock", "analysing"):
                    write_finding(folder, finding)
    return found


def _built(what: Any) -> Any:
    try:
        return build("analysis", what)
    except ValidationError as error:
        name = what["name"] if isinstance(what, Mapping) else what
        raise UserError(explain(error, str(name))) from None


def _folder(run: Path, name: str, told: dict[str, Any]) -> Path:
    return RunFolder(run).analyses / f"{name}-{hash8(told)}"
