"""How long a step is: absolute (`2/255`) or a fraction of eps (`1.5*eps/steps`), which follows an eps that warms up."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from robustvit.core.numbers import format_fraction, parse_number

_RELATIVE = re.compile(r"^(?:(?P<factor>[^*]+)\*)?eps(?:/(?P<by>steps|[0-9]+))?$")


@dataclass(frozen=True)
class StepSize:
    """`factor` pixels, or `factor` of eps, divided by the number of steps if so asked."""

    factor: float
    of_eps: bool = False
    per_step: bool = False

    def __call__(self, eps: float, steps: int) -> float:
        return self.factor * (eps if self.of_eps else 1.0) / (steps if self.per_step else 1)

    def __repr__(self) -> str:
        return f"'{self}'"

    def __str__(self) -> str:
        if not self.of_eps:
            return format_fraction(self.factor)
        head = "eps" if self.factor == 1 else f"{format_fraction(self.factor)}*eps"
        return f"{head}/steps" if self.per_step else head


def parse_step_size(value: Any) -> StepSize:
    if isinstance(value, StepSize):
        return value
    match = _RELATIVE.match(value.replace(" ", "")) if isinstance(value, str) else None
    if match:
        factor, per_step = parse_number(match["factor"] or "1"), match["by"] == "steps"
        if match["by"] and not per_step:
            factor *= parse_number(f"1/{match['by']}")
        step = StepSize(factor, of_eps=True, per_step=per_step)
    else:
        try:
            step = StepSize(float(parse_number(value)))
        except (ValueError, TypeError):
            forms = "a number such as 2/255, or a fraction of eps such as eps/4 or 1.5*eps/steps"
            raise ValueError(f"a step size is {forms}, not {value!r}") from None
    if not 0 < step.factor < float("inf"):
        raise ValueError(f"a step size is above 0, not {value!r}")
    return step


AnyStepSize = Annotated[StepSize, PlainValidator(parse_step_size)]
