"""A model and data in, findings out, each a folder below the run; what is there already isn't done again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from robustvit.attacks.base import Classifier
from robustvit.core.component import build, explaining, to_dict
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import is_file
from robustvit.core.finding import FILE, Finding, read_finding, write_finding
from robustvit.core.progress import say
from robustvit.core.run import RunFolder, command, versions
from robustvit.core.world import World
from robustvit.data.base import Split
from robustvit.evaluation.given import resolve_given
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject, open_subject
from robustvit.models import ModelRef
from robustvit.threats import LpBall


class Analysis(Protocol):
    """Called where the model is in eval mode and frozen; long ones resume through the store's ledger and folder.

    One that attacks has a field `threat`, which `analyze` fills where it is None.
    """

    def __call__(self, subject: Subject, store: Store) -> Finding: ...


def analyze(
    model: Classifier | str | Path | ModelRef,
    data: Any = None,
    *,
    what: Any,
    threat: LpBall | None = None,
    head: str | None = None,
    run: str | Path | None = None,
    split: Split = "test",
    images: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> list[Finding]:
    """Findings about a model of pixels in [0, 1]: `what` names analyses, or holds them; some need a `threat`.

    `model`, `data` and `head` are those of `evaluate`. With `run`, each is kept in its `analysis` folder, where
    the report finds it.
    """
    check_counts(batch_size=1 if batch_size is None else batch_size)
    several = what if isinstance(what, Sequence) and not isinstance(what, str) else [what]
    if not several:
        raise UserError("what: at least one analysis; robustvit list shows them")
    given = resolve_given(model, data, threat, head)
    wanted = [_built(one, given.threat) for one in several]
    options: dict[str, Any] = {"split": split, "images": images, "seed": seed, "batch_size": batch_size}
    subject = open_subject(given.model, given.data, device=device, quiet=quiet, **options)
    root = None if run is None else RunFolder(Path(run)).analyses
    with subject.ready() as ready:
        return [_analyzed(analysis, ready, root) for analysis in wanted]


def _analyzed(analysis: Any, subject: Subject, root: Path | None) -> Finding:
    # files that the settings name may be others by the next time
    contents = analysis.contents() if hasattr(analysis, "contents") else {}
    identity = {"analysis": to_dict(analysis), **contents}
    store = Store.open(root, analysis.name, identity, subject, World())
    with store.lock("analyzing"):
        if store.folder is not None and is_file(store.folder / FILE):
            return read_finding(store.folder)
        if not subject.quiet:
            say(f"{analysis.name}: {len(subject.indices)} images of {subject.images.title}")
        facts = {
            **identity,
            "model": subject.fingerprint(),
            "seed": subject.seed,
            "images": subject.images_rule,
            "data": subject.images.title,
            "versions": versions(),
            "command": command(),
        }
        finding: Finding = replace(analysis(subject, store), facts=facts)
        if store.folder is not None:
            write_finding(store.folder, finding)
        return finding


def _built(what: Any, threat: LpBall | None) -> Any:
    """The analysis; one that attacks gets the threat where it has none of its own."""
    with explaining(str(what["name"] if isinstance(what, Mapping) and "name" in what else what)):
        analysis = build("analysis", what)
    if not hasattr(analysis, "threat") or analysis.threat is not None:
        return analysis
    if threat is None:
        raise UserError(f"{analysis.name}: attacks, so it needs a threat, such as rv.LpBall('inf', 8 / 255)")
    return replace(analysis, threat=threat)
