"""Devices that a plan can be made for without having them (hardware.yaml)."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from robustvit.core.component import settings
from robustvit.core.config import read_yaml, validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.numbers import Positive
from robustvit.models.precision import Precision

PLAIN, OTHERS = (0.25, 0.5), (0.01, 0.3)
"""Fractions of the peak rate that trainings reach: of plain vision transformers, whose work is large matrix products,
and of other networks. Rules of thumb, hence ranges; docs/plan.md compares them with figures of the papers."""


@settings
class Device:
    """One device."""

    float32: Positive
    tf32: Positive
    bf16: Positive
    memory: Positive
    watts: Positive


@dataclass(frozen=True)
class Hardware:
    """Several devices of one kind."""

    name: str
    count: int
    flops: float
    """Peak rate of one device, a second."""
    memory: float | None = None
    """Bytes of one device; None: unknown."""
    watts: float | None = None
    """Of one device; None: unknown."""

    def __str__(self) -> str:
        return f"{self.count} x {self.name}"


@cache
def list_hardware() -> dict[str, Device]:
    file = Path(__file__).with_suffix(".yaml")
    devices: dict[str, Device] = validated(dict[str, Device], read_yaml(file), str(file))
    return devices


def hardware_from(text: str, precision: str = "float32") -> Hardware:
    """`a100-80gb:8`: a name of the list, and how many."""
    if precision not in get_args(Precision):
        raise UserError(f"--precision {precision}: one of {', '.join(get_args(Precision))}")
    match = re.fullmatch(r"([^:]+)(?::(\d{1,6}))?", text.strip())
    if match is None or int(match[2] or 1) < 1:
        raise UserError(f"--hardware {text}: NAME or NAME:COUNT, such as a100-80gb:8")
    known = list_hardware()
    if match[1] not in known:
        raise UserError(
            f"--hardware {match[1]}: not in the list ({', '.join(known)}){nearest(match[1], list(known), 0)}"
        )
    device = known[match[1]]
    return Hardware(match[1], int(match[2] or 1), getattr(device, precision), device.memory, device.watts)


def parse_utilization(text: str) -> tuple[float, float]:
    """`0.3,0.4`."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low <= high <= 1:
        raise UserError(f"--utilization {text}: LOW,HIGH between 0 and 1, such as 0.3,0.4")
    return low, high
