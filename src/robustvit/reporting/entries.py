"""The rows of a leaderboard: attacked results of run folders, and entries of RobustBench."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from robustvit.core.card import PAGE as CARD_PAGE
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.core.numbers import counted, parse_number
from robustvit.core.readers import read_json, read_yaml
from robustvit.core.result import NOT_PUBLISHED, Measure
from robustvit.core.result_files import FILE, read_result
from robustvit.reporting.conditions import evaluation_name
from robustvit.reporting.read import REPORT, Evaluation, Run, finite, read_runs
from robustvit.reporting.robustbench import PROTOCOLS, TEST_IMAGES, THREATS, Published

HERE, ROBUSTBENCH = "here", "RobustBench"
CORRUPTIONS = "mean_75_accuracy"
"""Over the 15 corruptions and 5 severities that RobustBench averages over."""
SUITE = "autoattack"
_NORMS = {threat: norm for norm, threat in THREATS.items()}


@dataclass(frozen=True)
class Entry:
    """A model under a threat."""

    name: str
    source: str
    """Measured here, or published by RobustBench."""
    data: str
    """The data set's name, which RobustBench has too, or the title of the images."""
    threat: str
    norm: str
    eps: float | None
    suite: str
    clean: Measure | None
    robust: Measure | None
    corruptions: Measure | None = None
    parameters: float | None = None
    multiply_adds: float | None = None
    passes: float | None = None
    """Forward and backward passes of the attacks, per image."""
    core_seconds: float | None = None
    """That training took."""
    year: int | None = None
    remarks: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    """In what the protocol is another one than RobustBench's, or than the usual one where that has no such table."""
    links: tuple[tuple[str, str], ...] = ()
    """Title and address, from where the page lies."""
    evaluation: Evaluation | None = None

    @property
    def is_here(self) -> bool:
        return self.source == HERE

    @property
    def images(self) -> str:
        return "" if self.evaluation is None else self.evaluation.result.provenance.images_rule


def entries_of(folders: Sequence[str | Path], page: Path) -> list[Entry]:
    """Every attacked result of run folders, of folders around several, and of folders that hold a result itself."""
    found: dict[Path, None] = {}
    alone: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not is_folder(folder):
            what = "is a file" if folder.exists() else "does not exist"
            raise UserError(f"{folder}: {what}; a leaderboard takes run folders, or folders around them")
        if is_file(folder / FILE):
            alone[folder.resolve()] = None
        else:
            found |= {path.resolve().parents[2]: None for path in sorted(folder.rglob(f"eval/*/{FILE}"))}
    runs = [*(read_runs(list(found)) if found else []), *map(_alone, alone)]
    entries = [entry for run in runs for entry in _entries(run, page)]
    if not entries:
        names = ", ".join(map(str, folders))
        raise UserError(f"{names}: no result of an attack; robustvit evaluate MODEL --suite autoattack makes one")
    return entries


def published_entries(published: Iterable[Published], data: Iterable[str]) -> Iterator[Entry]:
    """Of these data sets; the corruption accuracy of a model is next to its robust one."""
    known = list(published)
    corrupted = {(one.dataset, one.id): one for one in known if one.threat == "corruptions"}
    attacked = {(one.dataset, one.id) for one in known if one.threat in _NORMS}
    for one in known:
        norm = _NORMS.get(one.threat, "")
        if one.dataset not in set(data) or (not norm and (one.dataset, one.id) in attacked):
            continue
        eps = PROTOCOLS.get((one.dataset, norm)) if norm else None
        own_eps = f"trained for eps {one.eps}" if eps and one.eps and one.eps != eps else ""
        best = f"best known attack: {one.external:.2f} %" if one.external is not None else ""
        extra = "additional data" if one.additional_data else ""
        yield Entry(
            name=one.id,
            source=ROBUSTBENCH,
            data=one.dataset,
            threat=f"{one.threat} {eps}" if norm else one.threat,
            norm=norm,
            eps=None if eps is None else float(parse_number(eps)),
            suite=SUITE if norm else "",
            clean=_published("clean_accuracy", one.clean_acc),
            robust=_published("robust_accuracy", one.autoattack_acc),
            corruptions=_published(CORRUPTIONS, corrupted.get((one.dataset, one.id), one).corruptions_acc),
            year=one.year,
            remarks=tuple(filter(None, (one.architecture, one.venue, extra, own_eps, best))),
            links=(("paper", one.link),) if one.link and one.link.startswith("https://") else (),
        )


def _published(name: str, percent: float | None) -> Measure | None:
    return None if percent is None else Measure(name, percent / 100, kind="accuracy")


def _alone(folder: Path) -> Run:
    """A result that lies in no run, such as those of the zoo."""
    evaluation = Evaluation(folder, read_result(folder), None, ())
    path = str(evaluation.result.provenance.checkpoint.get("path") or "")
    name = path if path.startswith("zoo:") else folder.name
    return Run(folder, name, "", {}, {}, (), (evaluation,), (), True)


def _entries(run: Run, page: Path) -> Iterator[Entry]:
    facts = _facts(run.path)
    for one in run.evaluations:
        if not (one.fits_table and one.result.stages):
            continue
        result, threat = one.result, one.threat
        name, data = _dataset(result.provenance.data), one.result.provenance.data
        model = {**facts, **result.provenance.model}
        yield Entry(
            name=evaluation_name(run, one),
            source=HERE,
            data=name,
            threat=str(threat),
            norm=threat.norm,
            eps=threat.eps,
            suite=result.suite,
            clean=result.clean,
            robust=one.robust,
            corruptions=_corruptions(run, one),
            parameters=finite(model.get("parameters")),
            multiply_adds=finite(model.get("multiply_adds")),
            passes=sum(stage.passes for stage in result.stages) / result.num_images,
            core_seconds=finite(facts.get("cpu_seconds")),
            remarks=tuple(filter(None, (str(model.get("name", "")), "" if data == name else data))),
            differs=tuple(_differences(one, name)),
            links=tuple(_links(run.path, page)),
            evaluation=one,
        )


def _dataset(title: str) -> str:
    """`cifar10` of `cifar10/test of FOLDER`; also of the photographs inside the package, which are some of it."""
    name, _, rest = title.partition("/")
    if not rest.startswith("test") or f"({NOT_PUBLISHED}" in rest:
        return title
    return "cifar10" if name == "cifar10_sample" else name


def _differences(one: Evaluation, data: str) -> Iterator[str]:
    result = one.result
    if result.suite != SUITE:
        yield f"{result.suite}, not {SUITE}"
    eps = PROTOCOLS.get((data, one.threat.norm))
    if eps is not None and one.threat.eps != parse_number(eps):
        yield f"eps {one.threat.eps_text}, not {eps}"
    if data == "imagenet":
        yield "not known to be RobustBench's 5,000 images"
    elif data in TEST_IMAGES and result.num_images != TEST_IMAGES[data]:
        yield f"{counted(result.num_images, 'image')}, not the whole test set of {TEST_IMAGES[data]:,}"
    elif not result.provenance.images_rule.startswith("all "):
        yield result.provenance.images_rule
    if not result.judges_original:
        yield "judged on a changed model"
    if result.is_doubtful:
        yield "a warning doubts it"


def _corruptions(run: Run, one: Evaluation) -> Measure | None:
    """Of the same weights."""
    for other in run.evaluations:
        if (other.weights, other.head) == (one.weights, one.head) and other.result.has(CORRUPTIONS):
            return other.result.measure(CORRUPTIONS)
    return None


def _facts(folder: Path) -> dict[str, Any]:
    """What training cost, and the size of a model where its card says it."""
    schema, remedy = TypeAdapter(dict[str, Any]), "remove it to have a leaderboard without the cost of training"
    if is_file(folder / "card.yaml"):
        card = read_yaml(folder / "card.yaml")
        return card if isinstance(card, dict) else {}
    path = folder / "cost.json"
    return read_json(path, schema, "cost of a run", remedy) if is_file(path) else {}


def _links(folder: Path, page: Path) -> Iterator[tuple[str, str]]:
    for title, name in (("report", REPORT), ("card", CARD_PAGE)):
        if is_file(folder / name):
            path = Path(os.path.relpath(folder / name, page.resolve().parent)).as_posix()
            yield title, f"./{quote(path, errors='surrogateescape')}"
