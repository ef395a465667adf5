"""Opens what a card is about: each row of a preset as an evaluation of each model, or why that can't be."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robustvit.cards.plan import Candidate, CardPlan, Options, PlannedRow
from robustvit.cards.preset import SMALL, Preset, PresetRow, Size, by_size
from robustvit.core.component import registered, to_dict
from robustvit.core.config import merge, validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import is_folder
from robustvit.data.base import AnyDataset, Images
from robustvit.data.open import dataset_by_name, images_from
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import data_folder
from robustvit.data.shards import find_shards
from robustvit.evaluation.cost import estimate, seconds_of_a_pass
from robustvit.evaluation.engine import is_stored
from robustvit.evaluation.evaluate import evaluator_from, named_evaluator, needs_threat, suite_name
from robustvit.evaluation.evaluator import Evaluator, measure_kinds
from robustvit.evaluation.subject import Subject, open_subject
from robustvit.threats import LpBall


def plan_card(candidates: Sequence[Candidate], name: str, preset: Preset, options: Options) -> CardPlan:
    """Everything is opened and checked; nothing but a batch is computed yet."""
    if not candidates:
        raise UserError("models: a card is of at least one")
    _check_paths(options.paths, [suite_name(row.suite) for row in preset.rows])
    rows: list[PlannedRow] = []
    opened = [_Opened.of(candidate, name, preset, options) for candidate in candidates]
    _refuse_unlike(opened)
    for one in opened:
        rows += one.planned(name, preset)
    _refuse_unlike_rows(rows)
    if not rows:
        raise UserError(f"preset '{name}': it has no rows for {opened[0].size} images")
    _check_paths(options.paths, [suite_name(row.row.suite) for row in rows], f" for {opened[0].size} images")
    if all(row.missing for row in rows):
        raise UserError(f"preset '{name}': none of its rows can be computed ({rows[0].row.name}: {rows[0].missing})")
    threat = options.threat
    if threat is not None and all(getattr(row.evaluator, "threat", None) != threat for row in rows):
        raise UserError(f"preset '{name}': no row follows a given threat of {threat}; leave it out (--eps, --norm)")
    return CardPlan(name, preset.about, tuple(candidates), tuple(rows), options)


def _check_paths(paths: Mapping[str, Path], suites: Sequence[str], where: str = "") -> None:
    for name, path in paths.items():
        if name not in suites:
            raise UserError(f"path of '{name}': no row{where} has this suite{nearest(name, list(suites))}")
        if not path.exists() and not find_shards(str(path)):
            raise UserError(f"path of '{name}': '{path}' is not there")


@dataclass(frozen=True)
class _Opened:
    """A candidate on its own images."""

    candidate: Candidate
    data: Any
    size: Size
    num_classes: int
    title: str
    options: Options
    images: Images
    shape: tuple[int, ...]
    """Height and width of an image."""
    seconds: dict[tuple[int, ...], float] = field(default_factory=dict)
    """Of a pass, by the shape of an image."""

    @classmethod
    def of(cls, candidate: Candidate, name: str, preset: Preset, options: Options) -> "_Opened":
        with _explained(f"preset '{name}' sets {', '.join(f'data.{key}' for key in preset.data)}"):
            data = _changed(candidate.data, preset.data)
        images = images_from(data, options.split)
        with _open(candidate, data, images, options).ready() as subject:
            shape = _shape(subject)
            size: Size = "small" if max(shape) <= SMALL else "large"
            seconds = {shape: seconds_of_a_pass(subject)}
            return cls(candidate, data, size, subject.num_classes, images.title, options, images, shape, seconds)

    def planned(self, name: str, preset: Preset) -> Iterator[PlannedRow]:
        """Mistakes in the preset are errors; what the data or the model lacks leaves a row without numbers."""
        for row in preset.rows:
            if not row.has(self.size):
                continue
            with _explained(f"preset '{name}', row '{row.name}'"):
                evaluator, threat = self._evaluator(row)
                data = _changed(self.data, row.data)
            try:
                yield self._row(row, evaluator, threat, data)
            except UserError as problem:
                reason = "; ".join(str(problem).splitlines())
                yield PlannedRow(self.candidate, row, missing=reason)

    def _evaluator(self, row: PresetRow) -> tuple[Evaluator, LpBall | None]:
        """With the threat that its title names."""
        suite = self._with_images(row.suite)
        threat, is_needed = self._threat(row), needs_threat(suite)
        evaluator = evaluator_from(suite, threat if is_needed or threat is not None else LpBall("inf", 0.0))
        known = measure_kinds(evaluator)
        for measure in filter(None, row.measures.values()):
            if known is not None and measure not in known:
                hint = nearest(measure, list(known))
                raise UserError(f"measures: {suite_name(row.suite)} with these settings has no '{measure}'{hint}")
        return evaluator, threat if is_needed else None

    def _with_images(self, suite: Any) -> Any:
        """An evaluator with images of its own: where they are, given or by its name below the data, and their size."""
        named, paths = named_evaluator(suite), self.options.paths
        if named is None and isinstance(suite, Mapping) and suite.get("name") not in (known := _known_suites()):
            raise UserError(f"no suite '{suite.get('name')}'{nearest(str(suite.get('name')), known)}")
        if not isinstance(named, Mapping):
            return suite
        name = str(named["name"])
        kind = registered("evaluator")[name]
        fields = kind.__dataclass_fields__
        if "source" in fields and name in paths:  # published files, which have a size of their own
            return {**{key: value for key, value in named.items() if key != "size"}, "source": str(paths[name])}
        if "path" not in fields:
            return suite
        follows = "preprocess" in fields and getattr(kind, "sides", None) != self.shape
        preprocess = self._preprocess() if follows else None
        size = {} if preprocess is None else {"preprocess": preprocess}
        return {"path": str(paths.get(name, data_folder() / name)), **size, **named}

    def _preprocess(self) -> Any:
        """That of the data, or what brings pictures to the size of its images; None where neither is known."""
        own = self.data.get("preprocess") if isinstance(self.data, Mapping) else getattr(self.data, "preprocess", None)
        if own is not None and own != Preprocess():
            return own
        height, width = self.shape
        return {"how": "crop", "size": height} if height == width else None

    def _row(self, row: PresetRow, evaluator: Evaluator, threat: LpBall | None, data: Any) -> PlannedRow:
        candidate = self.candidate
        _check_images(evaluator)
        own = getattr(evaluator, "own_data", None)
        data = data if own is None else own
        images = self.images if data is self.data else images_from(data, self.options.split)
        subject = _open(candidate, data, images, self.options, by_size(row.images, self.size))
        with subject.ready() as ready:
            evaluation = evaluator.begin(ready)
            shape = _shape(ready)
            if shape not in self.seconds:
                self.seconds[shape] = seconds_of_a_pass(ready)
            at = "" if threat is None else f" at {threat}"
            title = f"{evaluation.settings.get('suite', evaluation.title)}{at}"
            is_done = is_stored(evaluation, candidate.folder)
            work = None if is_done else estimate(evaluation, self.seconds[shape])
            return PlannedRow(candidate, row, title, subject, evaluator, work, ready.data_sha256, is_done)

    def _threat(self, row: PresetRow) -> LpBall | None:
        wanted, own = row.threat, self.candidate.threat
        if wanted is None or (wanted.prefer_run and own is not None and own.norm == wanted.norm):
            return own
        if isinstance(wanted.eps, Mapping) and self.size not in wanted.eps:
            raise UserError(f"the preset has no eps for {self.size} images")
        return LpBall(wanted.norm, by_size(wanted.eps, self.size))


def _open(candidate: Candidate, data: Any, images: Images, options: Options, most: int | None = None) -> Subject:
    """With as many of these images as there are, and at most as many as the options allow; `data` opens them anew."""
    count = min(count for count in (most, options.images, len(images)) if count is not None)
    subject = open_subject(
        candidate.model, images, split=options.split, images=count, seed=options.seed, batch_size=options.batch_size,
        device=options.device, quiet=options.quiet,
    )  # fmt: skip
    return replace(subject, opened_with={**subject.opened_with, "data": data})


def _shape(subject: Subject) -> tuple[int, ...]:
    return tuple(subject.batch(subject.indices[:1])[0].shape[2:])


def _changed(data: Any, changes: Mapping[str, Any]) -> Any:
    """Data with other settings."""
    if not changes:
        return data
    if isinstance(data, str | Path):
        data = dataset_by_name(str(data))
    plain = dict(data) if isinstance(data, Mapping) else to_dict(data)
    if not isinstance(plain, dict):
        raise UserError("data: the preset changes its settings, so it must be given by a name or a path")
    return validated(AnyDataset, merge(plain, dict(changes)), "data")


def _check_images(evaluator: Any) -> None:
    """Those that an evaluator brings itself, where it finds them by its name."""
    place = data_folder() / str(evaluator.name)
    if getattr(evaluator, "path", None) is not None and Path(evaluator.path) == place and not is_folder(place):
        where = f"--path {evaluator.name}=FOLDER, in Python paths={{'{evaluator.name}': FOLDER}}"
        raise UserError(f"its images are not at {place}; say where: {where}")


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Mistakes inside name their place."""
    try:
        yield
    except UserError as problem:
        raise UserError("; ".join(f"{where}: {problem}".splitlines())) from None


def _known_suites() -> list[str]:
    return [name for kind in ("evaluator", "suite", "attack") for name in registered(kind)]


def _refuse_unlike(opened: Sequence[_Opened]) -> None:
    """A card compares models of the same classes on the same images."""
    first, *others = opened
    for one in others:
        names = f"{first.candidate.name} and {one.candidate.name}"
        if one.num_classes != first.num_classes:
            counts = f"{first.num_classes} and {one.num_classes}"
            raise UserError(f"{names} have different classes ({counts}); a card compares models of the same ones")
        if one.title != first.title:
            raise UserError(f"{names} have different data ({first.title}, {one.title}); say which with --data")


def _refuse_unlike_rows(rows: Sequence[PlannedRow]) -> None:
    firsts: dict[str, PlannedRow] = {}
    for one in (row for row in rows if not row.missing):
        first = firsts.setdefault(one.row.name, one)
        if first.title != one.title:
            what = f"{first.title} and {one.title} can't be compared; say which with --eps"
            raise UserError(f"row '{one.row.name}': {what}")
        if first.data_sha256 != one.data_sha256:
            names = f"{first.candidate.name} and {one.candidate.name}"
            raise UserError(f"row '{one.row.name}': {names} have different images; say which with --data")


def with_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Each with a name of its own: the source, where several have the same."""
    for place, one in enumerate(candidates):
        if one.key in [other.key for other in candidates[:place]]:
            raise UserError(f"'{one.source}' is there twice; name each model once")
    names = [candidate.name for candidate in candidates]
    named = [replace(one, name=one.source) if names.count(one.name) > 1 else one for one in candidates]
    known = [one.name for one in named]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"several models are called '{twice}'; give each a name: rv.card({{'one': model, ...}})")
    return named
