"""The page: values read from the files, arranged for the template."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from robustvit.core.files import write_text
from robustvit.core.run import versions
from robustvit.reporting.charts import Point, Series, line_chart
from robustvit.reporting.pictures import change_scale, pictures
from robustvit.reporting.read import Evaluation, Run, common_folder, finite, read_runs

SCRIPT = """
for (const button of document.querySelectorAll("button.copy")) {
  const text = button.parentElement.querySelector("pre, code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(text); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
"""


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup
    legend: list[tuple[str, str, str]]
    """Style, name and last value of each line."""


@dataclass(frozen=True)
class Line:
    """One row of the headline table: an evaluation, or a run that has none yet."""

    number: int
    """Which of the runs, from 1."""
    run: Run
    evaluation: Evaluation | None
    is_best: bool = False
    opens_group: bool = False


def report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page about these run folders and say where it is.

    Without `out`, it is `report.html` in the run folder, or in the folder around several.
    """
    found = read_runs([runs] if isinstance(runs, str | Path) else runs)
    path = common_folder(found) if out is None else Path(out)
    if path.is_dir():
        path = path / "report.html"
    # a name on disk need not be text; what can't be written as UTF-8 becomes a question mark
    write_text(path, render(found).encode("utf-8", "replace").decode("utf-8"))
    return path


def render(runs: Sequence[Run]) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "places": places, "yaml": as_yaml}
    template = environment.from_string(resources.files("robustvit.reporting").joinpath("page.html").read_text("utf-8"))
    return template.render(
        title=runs[0].recipe_name or runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        runs=runs,
        lines=headline(runs),
        warnings=warnings(runs),
        charts=charts,
        status=status,
        pictures=pictures,
        change_scale=change_scale,
        version=versions()["robustvit"],
        script=Markup(SCRIPT),
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode("ascii"),
    )


def headline(runs: Sequence[Run]) -> list[Line]:
    """Rows that may be compared stand together; the highest robust accuracy among several of them is marked."""
    groups: dict[tuple[str, ...], list[tuple[int, Run, Evaluation]]] = {}
    for number, run in enumerate(runs, start=1):
        for evaluation in run.evaluations:
            groups.setdefault(evaluation.comparable, []).append((number, run, evaluation))
    lines = []
    for group in groups.values():
        best = max(evaluation.robust_accuracy for _, _, evaluation in group)
        for place, (number, run, evaluation) in enumerate(group):
            is_best = len(group) > 1 and bool(evaluation.stages) and evaluation.robust_accuracy == best
            lines.append(Line(number, run, evaluation, is_best, opens_group=place == 0))
    waiting = [(number, run) for number, run in enumerate(runs, start=1) if not run.evaluations]
    return lines + [Line(number, run, None, opens_group=True) for number, run in waiting]


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(where, what) of everything that a reader of the numbers should know."""
    found = []
    for run in runs:
        broken = sum("loss" in row and finite(row["loss"]) is None for row in run.metrics)
        if broken:
            found.append((run.name, f"the training loss was not finite in {broken} rows of metrics.jsonl"))
        found += [
            (f"{run.name}, {evaluation.suite}, {evaluation.threat}", warning)
            for evaluation in run.evaluations
            for warning in evaluation.warnings
        ]
    return found


def status(run: Run) -> str:
    """What has not happened yet, or nothing."""
    said = []
    if not run.evaluations:
        steps = max((finite(row.get("total_step")) or 0 for row in run.metrics), default=0)
        said.append("trained, not evaluated yet" if run.is_trained else f"in progress, {steps:,.0f} steps trained")
    said += [f"evaluation {name} is not finished" for name in run.unfinished]
    return "; ".join(said)


def charts(run: Run) -> list[Chart]:
    """Training loss and accuracies over the steps."""
    loss = [Series("loss", "loss", _column(run, "train", "loss"))]
    accuracies = [
        Series("training clean", "clean thin", _column(run, "train", "clean_accuracy")),
        Series("training robust", "robust thin", _column(run, "train", "robust_accuracy")),
        Series("hold-out clean", "clean", _column(run, "validation", "clean_accuracy"), has_dots=True),
        Series("hold-out robust", "robust", _column(run, "validation", "robust_accuracy"), has_dots=True),
    ]
    accuracies = [series for series in accuracies if series.points]
    marks = _phases(run)
    return [
        Chart(
            "Training loss",
            line_chart("Training loss", loss, x_title="step", y_text=lambda value: f"{value:g}", marks=marks),
            _legend(loss, lambda value: f"{value:.4g}"),
        ),
        Chart(
            "Accuracy",
            line_chart(
                "Accuracy",
                accuracies,
                x_title="step",
                y_text=lambda value: f"{100 * value:.0f} %",
                y_range=(0, 1),
                marks=marks,
            ),
            _legend(accuracies, percent),
        ),
    ]


def _column(run: Run, kind: str, key: str) -> list[Point]:
    """A row that doesn't know the key is passed over; one that knows no number for it leaves a gap."""
    rows = [row for row in run.metrics if row.get("kind") == kind and key in row]
    return [(step, finite(row[key])) for row in rows if (step := finite(row.get("total_step"))) is not None]


def _phases(run: Run) -> list[tuple[float, str]]:
    """Where each phase began, if there is more than one."""
    begins: dict[str, float] = {}
    before = 0.0
    for row in run.metrics:
        begins.setdefault(str(row.get("phase")), before)
        before = finite(row.get("total_step")) or before
    return [(step, name) for name, step in begins.items()] if len(begins) > 1 else []


def _legend(series: Sequence[Series], text: Callable[[float], str]) -> list[tuple[str, str, str]]:
    return [(line.style, line.name, "no finite value" if line.last is None else text(line.last)) for line in series]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def places(share: float) -> str:
    """For the style sheet: a share as a length."""
    return f"{100 * share:.2f}%"


def as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).strip()
