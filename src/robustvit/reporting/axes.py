"""What all charts are made of: scales, ticks, and pieces of inline SVG whose colors come from the style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 420, 250
LETTER = 6.9
"""The mean width of a letter."""
LEGEND = 18
"""Between two lines of a legend."""
TONES = 6
"""Colors in the style sheet; the seventh line reuses the first."""
Text = Callable[[float], str]


def tone(place: int) -> str:
    return f"tone-{place % TONES + 1}"


@dataclass(frozen=True)
class Scale:
    """From the values along an axis to places in the drawing."""

    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def __call__(self, value: float) -> float:
        if self.is_log:
            # whiskers may reach down to 0
            low, high, at = (math.log10(max(one, self.low)) for one in (self.low, self.high, value))
        else:
            low, high, at = self.low, self.high, value
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)


def full_scale(low: float, high: float, begin: float, end: float) -> Scale:
    """From the first to the last tick, which lie around the values."""
    found = ticks(low, high, 5)
    return Scale(found[0], found[-1], begin, end, tuple(found))


def tight_scale(low: float, high: float, begin: float, end: float) -> Scale:
    """From the first to the last value, with the ticks between."""
    high = high if high > low else low + 1
    slack = 1e-9 * (high - low)
    return Scale(
        low, high, begin, end, tuple(tick for tick in ticks(low, high, 5) if low - slack <= tick <= high + slack)
    )


def padded_scale(low: float, high: float, begin: float, end: float, is_log: bool = False) -> Scale:
    """With some room around the values, so that points don't lie on the frame."""
    if is_log:
        room = max((high / low) ** 0.08, 1.1)
        return Scale(low / room, high * room, begin, end, tuple(log_ticks(low / room, high * room)), True)
    room = 0.08 * (high - low) or abs(high) / 10 or 1.0
    return tight_scale(low - room, high + room, begin, end)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(max(high, low + step) / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between `low` and `high` for a logarithmic axis, as many as `most` if there are more."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in (range(1, 10), (1, 2, 3, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside if len(inside) > 2 else ticks_inside(low, high)
    return inside[:: -(-len(inside) // most)]


def ticks_inside(low: float, high: float) -> list[float]:
    """Evenly spaced ones, for a logarithmic axis that spans little."""
    return [tick for tick in ticks(low, high, 4) if low <= tick <= high]


SMALLEST, RADIUS, LARGEST = 2.6, 3.6, 12.0
"""Radii of markers: the smallest and the largest where areas tell sizes, else all."""


def radius_of(size: float, most: float) -> float:
    """Of a marker whose area is in proportion to its size."""
    return max(SMALLEST, LARGEST * math.sqrt(size / most)) if most else SMALLEST


def shortened(name: str, longest: int) -> str:
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - half :]}"


def percent_text(value: float) -> str:
    return f"{100 * value:.3g} %"


def svg(height: float, label: str, parts: Sequence[Markup], width: float = WIDTH) -> Markup:
    style = "chart" if width == WIDTH else "chart wide"
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        style, f"{width:.0f}", f"{height:.0f}", label, Markup("").join(parts)
    )


def drawn_text(style: str, x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        style, f"{x:.1f}", f"{y:.1f}", anchor, text
    )


def rule(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="{}" d="M{} {}L{} {}"/>').format(style, *(f"{end:.1f}" for end in (x1, y1, x2, y2)))


def grid(x: Scale, y: Scale, x_title: str, x_text: Text, y_text: Text) -> list[Markup]:
    """Horizontal lines at the ticks of y, ticks of x below, and the title of x."""
    left, right, bottom = x.begin, x.end, y.begin
    parts = [rule("axis", left, bottom, right, bottom)]
    for tick in y.ticks:
        at = y(tick)
        parts += [rule("grid", left, at, right, at)] if at < bottom - 0.5 else []
        parts.append(drawn_text("tick", left - 7, at + 4, y_text(tick), "end"))
    for tick in x.ticks:
        parts.append(rule("axis", x(tick), bottom, x(tick), bottom + 4))
        parts.append(drawn_text("tick", x(tick), bottom + 17, x_text(tick), "middle"))
    return [*parts, drawn_text("tick", (left + right) / 2, bottom + 34, x_title, "middle")]


def legend(names: Sequence[tuple[str, str]]) -> tuple[list[Markup], float]:
    """(Name, style) in their colors, and where the next thing may begin."""
    parts, x, y = [], 4.0, 12.0
    for name, style in names:
        width = 16 + LETTER * len(name)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + LEGEND
        parts.append(drawn_text(f"name {style}", x, y, f"● {name}"))
        x += width + 12
    return parts, y + 10


def nothing(title: str) -> Markup:
    return Markup('<p class="note">{}: no finite values yet.</p>').format(title)
