"""A result in words: one line, a few lines of text, or a small table for notebooks."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robustvit.core.result import ConditionResult, Measure, Result


def is_accuracy(measure: "Measure") -> bool:
    """Whether it is a fraction of images, which is written in percent."""
    return measure.name.endswith("accuracy")


def measure_text(measure: "Measure") -> str:
    """`74.0 % (64.6 to 81.6)`; what is no accuracy as plain numbers."""
    interval = interval_text(measure)
    return value_text(measure) + (f" ({interval})" if interval else "")


def value_text(measure: "Measure") -> str:
    """`74.0 %`."""
    return _number(measure, measure.value) + (" %" if is_accuracy(measure) else "")


def interval_text(measure: "Measure") -> str:
    """`64.6 to 81.6`, or nothing."""
    return " to ".join(_number(measure, end) for end in measure.interval or ())


def _number(measure: "Measure", value: float) -> str:
    return f"{100 * value:.1f}" if is_accuracy(measure) else f"{value:.4g}"


def condition_text(condition: "ConditionResult") -> str:
    """`61.2 % of 360 images`."""
    if condition.accuracy is None:
        return "no image was left"
    return f"{100 * condition.accuracy:.1f} % of {condition.num_images} images"


def headline_text(result: "Result") -> str:
    """`pgd-20 at Linf 8/255 on 100 images: clean 95.0 % (88.8 to 97.8), robust 74.0 % (64.6 to 81.6)`."""
    measures = ", ".join(f"{_words(measure.name)} {measure_text(measure)}" for measure in result.measures)
    return f"{_question(result)}: {measures}"


def summary_text(result: "Result") -> str:
    return "\n".join([headline_text(result), *(f"  {name}: {text}" for name, text in _rows(result)), *_remarks(result)])


def summary_html(result: "Result") -> str:
    rows = [*((_words(one.name), measure_text(one)) for one in result.measures), *_rows(result)]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    remarks = "".join(f"<p>{escape(text)}</p>" for text in _remarks(result))
    return f"<table><caption>{escape(_question(result))}</caption>{cells}</table>{remarks}"


def _question(result: "Result") -> str:
    threat = "" if result.threat is None else f" at {result.threat}"
    return f"{result.title}{threat} on {result.num_images} images"


def _words(name: str) -> str:
    return name.removesuffix("_accuracy").replace("_", " ")


def _rows(result: "Result") -> Iterator[tuple[str, str]]:
    for stage in result.stages:
        yield stage.name, f"fooled {stage.num_fooled} of {stage.num_images}, {100 * stage.robust_accuracy:.1f} % robust"
    for condition in result.conditions if len(result.conditions) > 1 else ():
        yield condition.name, condition_text(condition)


def _remarks(result: "Result") -> Iterable[str]:
    return [*result.notes, *(f"warning: {warning}" for warning in result.warnings)]
