"""A robustness card from files alone: card.json names the results, which hold every number; one printable page."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from robustvit.core.card import FILE, PAGE, CardModel, read_card
from robustvit.core.errors import UserError, nearest
from robustvit.core.figures import percent
from robustvit.core.files import is_file
from robustvit.core.numbers import short_count
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result, ResultWarning
from robustvit.core.result_files import FILE as RESULT, read_result
from robustvit.core.summary import interval_text, measure_text, value_text
from robustvit.reporting.advice import ShownWarning, merged
from robustvit.reporting.axes import percent_text, tone
from robustvit.reporting.charts import Series
from robustvit.reporting.dots import dot_chart
from robustvit.reporting.template import rendered, write_page

LIMITS = (
    "It has no overall score: the rows have different protocols, and no mean over them means anything.",
    "An attack gives an upper bound: a stronger one may leave less of a robust accuracy, and other norms or a larger "
    "eps another number. A certified bound would be a lower one.",
    "Intervals are over the choice of images alone, not over training again with another seed, nor over other data.",
    "Corruptions, shifts and rotations stand for those listed; a model may fail under others.",
    "Nothing here is about calibration, fairness, privacy, or images without one of the known classes.",
)


@dataclass(frozen=True)
class Cell:
    """A number of a model, or why there is none."""

    measure: Measure | None = None
    result: Result | None = None
    missing: str = ""

    @property
    def drop(self) -> float | None:
        """From the clean accuracy on the same images, where there is one."""
        if self.measure is None or self.result is None or not self.result.has_clean:
            return None
        if not self.measure.is_accuracy or self.measure.name == CLEAN_ACCURACY:
            return None
        return self.result.clean.value - self.measure.value

    @property
    def text(self) -> str:
        """`74.0 % (64.6 to 81.6), -21.0`; a dash where there is no number."""
        drop = f", {self.drop_text}" if self.drop_text else ""
        return "-" if self.measure is None else f"{measure_text(self.measure)}{drop}"

    @property
    def value(self) -> str:
        return "" if self.measure is None else value_text(self.measure)

    @property
    def interval(self) -> str:
        return "" if self.measure is None else interval_text(self.measure)

    @property
    def drop_text(self) -> str:
        """In points, signed: below clean accuracy is negative."""
        return "" if self.drop is None else f"{-100 * self.drop:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")

    @property
    def bound(self) -> str:
        """What all attacks would leave at least, where only a sample met them."""
        if self.result is None or self.measure != self.result.headline or "bound" not in self.result.details:
            return ""
        if self.measure.value == 0:  # which no attack could lower
            return ""
        return f"AutoAttack: at least {percent(max(0.0, self.result.least_accuracy))}"

    @property
    def num_images(self) -> str:
        return "" if self.result is None else f"{self.result.num_images:,}"

    @property
    def protocol(self) -> str:
        """What the number is a result of."""
        if self.measure is None or self.result is None:
            return ""
        if self.measure.name == CLEAN_ACCURACY:
            return "images as they are"
        parts = (self.result.suite, self.result.threat, self.measure.description)
        return ", ".join(str(one) for one in parts if one)

    @property
    def data(self) -> str:
        return "" if self.result is None else self.result.provenance.data

    @property
    def rule(self) -> str:
        """By which images were chosen."""
        return "" if self.result is None else self.result.provenance.images_rule


@dataclass(frozen=True)
class CardLine:
    """A measure, with a cell for each model."""

    name: str
    models: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def num_images(self) -> str:
        return " / ".join(dict.fromkeys(cell.num_images for cell in self.cells if cell.num_images))

    @property
    def protocol(self) -> str:
        return self._alike([cell.protocol for cell in self.cells])

    @property
    def data(self) -> str:
        return self._alike([cell.data for cell in self.cells])

    @property
    def images(self) -> str:
        return self._alike([", ".join(filter(None, (cell.data, cell.rule))) for cell in self.cells])

    @property
    def missing(self) -> str:
        return self._alike([cell.missing for cell in self.cells])

    @property
    def is_fraction(self) -> bool:
        return all(cell.measure.is_fraction for cell in self.cells if cell.measure is not None)

    def _alike(self, texts: Sequence[str]) -> str:
        """The text of all models, or those that differ with whose they are."""
        named: dict[str, list[str]] = {}
        for model, text in zip(self.models, texts, strict=True):
            if text:
                named.setdefault(text, []).append(model)
        return " / ".join(text if len(named) == 1 else f"{text} ({', '.join(of)})" for text, of in named.items())


@dataclass(frozen=True)
class ModelFacts:
    """Which model a column is about."""

    name: str
    facts: dict[str, str]


@dataclass(frozen=True)
class Card:
    """What `robustvit card` prints and the page shows."""

    page: Path
    preset: str
    about: str
    models: tuple[ModelFacts, ...]
    lines: tuple[CardLine, ...]
    warnings: tuple[ShownWarning, ...]
    """Each with the rows where it holds."""
    notes: tuple[str, ...]
    """What must be said of a row."""

    def __repr__(self) -> str:
        return f"Card('{self.page}')"

    @property
    def title(self) -> str:
        names = [one.name for one in self.models]
        return " and ".join(names) if len(names) < 3 else f"{len(names)} models compared"

    @property
    def facts(self) -> list[tuple[str, list[str]]]:
        """Title, and what it is of each model."""
        titles = dict.fromkeys(title for one in self.models for title in one.facts)
        return [(title, [one.facts.get(title, "") for one in self.models]) for title in titles]

    @property
    def data(self) -> str:
        """Of most rows; the others name theirs."""
        known = [line.data for line in self.lines if line.data]
        return max(known, key=known.count, default="")

    @property
    def rules(self) -> list[str]:
        """By which images of the data were chosen."""
        own = [cell for line in self.lines for cell in line.cells if cell.data == self.data]
        return list(dict.fromkeys(cell.rule for cell in own if cell.rule))

    def measure(self, name: str, model: int = 0) -> Measure:
        """A number by the name that the card prints."""
        found = self.line(name).cells[model]
        if found.measure is None:
            raise UserError(f"{name}: not on this card ({found.missing})")
        return found.measure

    def line(self, name: str) -> CardLine:
        known = {line.name: line for line in self.lines}
        if name not in known:
            raise UserError(f"the card has no '{name}'{nearest(name, list(known))}")
        return known[name]

    def summary(self) -> str:
        """The table as text."""
        rows = [f"{line.name}: {'; '.join(cell.text for cell in line.cells)}" for line in self.lines]
        return "\n".join([", ".join(one.name for one in self.models), *rows])

    @cached_property
    def chart(self) -> Markup:
        """The profile over the rows from 0 to 100 %; other numbers, such as the mCE, have another scale."""
        lines = [line for line in self.lines if line.is_fraction]
        series = []
        for place, one in enumerate(self.models):
            known = [(float(row), line.cells[place].measure) for row, line in enumerate(lines)]
            points = [(row, measure.value) for row, measure in known if measure is not None]
            band = [(row, *measure.interval) for row, measure in known if measure is not None and measure.interval]
            series.append(Series(one.name, tone(place), points, band))
        names, title = [line.name for line in lines], "95 % interval"
        return dot_chart("Profile", names, series, x_title=title, x_text=percent_text, least_end=1.0)


def open_card(where: Path) -> Card:
    """Read a card's file, or the one in a folder, and write its page next to it."""
    path = where / FILE if where.is_dir() else where
    if not is_file(path):
        raise UserError(f"{path}: no card; robustvit card MODEL makes one")
    file = read_card(path)
    results = [{name: _result(path, name, folder) for name, folder in model.results.items()} for model in file.models]
    lines = []
    for row in file.rows:
        for number, (name, measure) in enumerate(row.measures.items()):
            pairs = zip(file.models, results, strict=True)
            cells = [_cell(model, found.get(row.name), row.name, measure) for model, found in pairs]
            if number == 0 or any(cell.measure is not None for cell in cells):
                lines.append(CardLine(name, tuple(one.name for one in file.models), tuple(cells)))
    models = tuple(_facts(*pair) for pair in zip(file.models, results, strict=True))
    warnings = tuple(merged(_noticed(file.models, results)))
    notes = tuple(_notes(file.models, results))
    card = Card(path.with_name(PAGE), file.preset, file.about, models, tuple(lines), warnings, notes)
    write_page(card.page, rendered("card.html", ("page.css", "card.css"), {}, card=card, limits=LIMITS))
    return card


def _result(card: Path, row: str, folder: str) -> Result:
    if not is_file(card.parent / folder / RESULT):
        raise UserError(f"{card}: the result of '{row}' is not there ({folder}); run robustvit card MODEL again")
    return read_result(card.parent / folder)


def _cell(model: CardModel, result: Result | None, row: str, name: str) -> Cell:
    if result is None:
        return Cell(missing=model.missing[row])
    if name and not result.has(name):
        return Cell(missing=f"the result of {result.title} has no {name}")
    measure = result.measure(name) if name else result.headline
    if measure.is_fraction and measure.interval is None:
        return Cell(missing=f"too few images for an interval: {result.num_images}")
    return Cell(measure, result)


def _facts(model: CardModel, results: dict[str, Result]) -> ModelFacts:
    """What the results say of their model."""
    facts: dict[str, str] = {}
    for result in list(results.values())[:1]:
        built, checkpoint = result.provenance.model, result.provenance.checkpoint
        facts |= {"architecture": str(built.get("name", "")), "head": str(built.get("head") or "")}
        for title, key in (("parameters", "parameters"), ("multiply-adds", "multiply_adds")):
            facts[title] = short_count(built[key]) if isinstance(built.get(key), int) else ""
        facts["checkpoint"] = _rule(str(checkpoint.get("rule") or ""), str(checkpoint.get("epoch", "")))
        facts["weights (sha256)"] = str(checkpoint.get("weights_sha256") or "")[:8]
    facts["recipe"] = model.recipe
    return ModelFacts(model.name, {title: text for title, text in facts.items() if text})


def _rule(rule: str, epoch: str) -> str:
    """Which checkpoint, with its epoch where the rule doesn't name that."""
    if not epoch or re.search(rf"epoch \(?{re.escape(epoch)}\b", rule):
        return rule
    return ", ".join(filter(None, (rule, f"epoch {epoch}")))


def _noticed(models: Sequence[CardModel], results: Sequence[dict[str, Result]]) -> Iterator[tuple[ResultWarning, str]]:
    """Each warning of a model once, with its rows."""
    for model, found in zip(models, results, strict=True):
        rows: dict[ResultWarning, list[str]] = {}
        for name, result in found.items():
            for one in result.warnings:
                rows.setdefault(one, []).append(name)
        for warning, names in rows.items():
            yield warning, ", ".join((model.name, *names) if len(models) > 1 else names)


def _notes(models: Sequence[CardModel], results: Sequence[dict[str, Result]]) -> Iterator[str]:
    """Each once, with the models that it is about, unless that is all of them."""
    about: dict[tuple[str, str], list[str]] = {}
    for model, found in zip(models, results, strict=True):
        for name, result in found.items():
            shown = {measure.description for measure in result.measures}
            for note in (one for one in result.notes if one not in shown):
                about.setdefault((name, note), []).append(model.name)
    for (name, note), names in about.items():
        of = "" if len(names) == len(models) else f"{', '.join(names)}, "
        yield f"{of}{name}: {note}"
