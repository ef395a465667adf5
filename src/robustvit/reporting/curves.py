"""What the page draws: learning curves, and robust accuracy against eps."""

from collections.abc import Sequence

from markupsafe import Markup

from robustvit.reporting.axes import tone
from robustvit.reporting.charts import Point, Series, line_chart
from robustvit.reporting.read import Run, finite
from robustvit.reporting.tables import Group, Sweep

STEPS = "training steps"


def learning_curves(run: Run) -> list[tuple[str, Markup]]:
    """Training loss and accuracies over the steps."""
    loss = [Series("loss", "loss", _column(run, "train", "loss"))]
    accuracies = [
        Series("training clean", "clean thin", _column(run, "train", "clean_accuracy")),
        Series("training robust", "robust thin", _column(run, "train", "robust_accuracy")),
        Series("hold-out clean", "clean", _column(run, "validation", "clean_accuracy"), has_dots=True),
        Series("hold-out robust", "robust", _column(run, "validation", "robust_accuracy"), has_dots=True),
    ]
    marks = [*_phases(run), *_full_eps(run)]
    return [
        ("Accuracy", _accuracy_chart("Accuracy", accuracies, STEPS, marks)),
        ("Training loss", line_chart("Training loss", loss, x_title=STEPS, y_text="{:.3g}".format, marks=marks)),
        *((name, line_chart(name, lines, x_title=STEPS, y_text="{:.2g}".format)) for name, lines in _events(run)),
    ]


def eps_curve(group: Group) -> Markup:
    """A line for each model that met several eps, from its clean accuracy at 0."""
    sweeps = [sweep for sweep in group.sweeps if len(sweep.lines) > 1]
    in_255ths = all(text.endswith("/255") for text in group.eps.values())
    # the strongest wears the page's accent color
    sweeps.sort(key=lambda sweep: sum(line.evaluation.robust.value for line in sweep.lines.values()), reverse=True)
    scale = 255 if in_255ths else 1
    series = [_eps_series(sweep, tone(place), scale) for place, sweep in enumerate(sweeps)]
    series += [line for place, sweep in enumerate(sweeps) for line in _control(sweep, f"{tone(place)} thin", scale)]
    title = f"Robust accuracy against eps, {group.suite}, L{group.norm}"
    return _accuracy_chart(title, series, f"eps (L{group.norm}{', in 255ths' if in_255ths else ''})")


def _eps_series(sweep: Sweep, style: str, scale: int) -> Series:
    run, first = sweep.first.run, sweep.first.evaluation
    measures = [(0.0, first.clean), *((eps * scale, line.evaluation.robust) for eps, line in sweep.lines.items())]
    return Series(
        f"{run.name} {run.weights_name(first)}" if run.has_rivals else run.name,
        style,
        [(x, measure.value) for x, measure in measures],
        band=[(x, *measure.interval) for x, measure in measures if measure.interval is not None],
        has_dots=True,
    )


def _control(sweep: Sweep, style: str, scale: int) -> list[Series]:
    """What the controls of these results leave."""
    controls = [(eps * scale, line.evaluation.result.control) for eps, line in sweep.lines.items()]
    known = [(eps, control) for eps, control in controls if control is not None]
    if not known:
        return []
    points: list[Point] = [(eps, control.measures[-1].value) for eps, control in known]
    return [Series(f"{sweep.first.run.name}, {known[0][1].name}", style, points)]


def _accuracy_chart(
    title: str, series: Sequence[Series], x_title: str, marks: Sequence[tuple[float, str]] = ()
) -> Markup:
    known = [line for line in series if line.points]
    return line_chart(title, known, x_title=x_title, y_text=lambda y: f"{100 * y:.0f} %", y_range=(0, 1), marks=marks)


def _column(run: Run, kind: str, key: str) -> list[Point]:
    """A row that doesn't know the key is passed over; one that knows no number for it leaves a gap."""
    rows = [row for row in run.metrics if row.get("kind") == kind and key in row]
    return [(step, finite(row[key])) for row in rows if (step := finite(row.get("total_step"))) is not None]


def _events(run: Run) -> list[tuple[str, list[Series]]]:
    """Of each event of the training, what its numbers were over the steps."""
    points: dict[str, dict[str, list[Point]]] = {}
    for row in run.metrics:
        step, values = finite(row.get("total_step")), row.get("values")
        if row.get("kind") == "event" and step is not None and isinstance(values, dict):
            for key, value in values.items():
                points.setdefault(str(row.get("name")), {}).setdefault(str(key), []).append((step, finite(value)))
    return [
        (name, [Series(key, tone(place), line, has_dots=True) for place, (key, line) in enumerate(lines.items())])
        for name, lines in points.items()
    ]


def _phases(run: Run) -> list[tuple[float, str]]:
    """Where each phase began, if there is more than one."""
    begins: dict[str, float] = {}
    before = 0.0
    for row in run.metrics:
        begins.setdefault(str(row.get("phase")), before)
        before = finite(row.get("total_step")) or before
    return [(step, name) for name, step in begins.items()] if len(begins) > 1 else []


def _full_eps(run: Run) -> list[tuple[float, str]]:
    """Where a single phase's eps had grown to its full size."""
    grown = [(step, eps) for step, eps in _column(run, "train", "eps") if eps is not None]
    if not grown or _phases(run) or grown[0][1] == grown[-1][1]:
        return []
    most = max(eps for _, eps in grown)
    return [(next(step for step, eps in grown if eps == most), "full eps")]
