"""What a page asks for, checked; and the command that does the same."""

import base64
import binascii
import shlex
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from robustvit.core.errors import UserError
from robustvit.core.numbers import NonNegative, format_fraction
from robustvit.data.picture import MOST_BYTES, SAMPLE
from robustvit.threats import LpBall, Norm

MOST_STEPS = 2000
MOST_MODELS = 2
BODY = 4 * MOST_BYTES // 3 + 10_000
"""Bytes of a request: a picture in base64, and the rest."""


@dataclass(frozen=True)
class AttackChoice:
    """An attack that the page offers; `suite` has a place for the steps, where it takes some."""

    title: str
    suite: str
    norms: tuple[str, ...] = ("inf", "2", "1")
    steps: int | None = None
    """To begin with."""


ATTACKS = {
    "pgd": AttackChoice("PGD", "pgd-{steps}", steps=20),
    "fgsm": AttackChoice("FGSM, one step", "fgsm", ("inf", "2")),
    "mim": AttackChoice("MIM, with momentum", "mim-{steps}", steps=20),
    "apgd-ce": AttackChoice("APGD on cross-entropy", "apgd-ce:steps={steps}", steps=50),
    "apgd-dlr": AttackChoice("APGD on DLR", "apgd-dlr:steps={steps}", steps=50),
    "square": AttackChoice("Square, no gradients", "square:queries={steps}", steps=500),
    "clean": AttackChoice("none", "clean"),
}


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=200)]
    """Of the file, or `sample:17`."""
    data: Annotated[str, Field(max_length=BODY)] | None = None
    """The file in base64; none for a photograph of the package."""
    models: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MOST_MODELS)]
    norm: Norm = "inf"
    eps: Annotated[NonNegative, Field(le=1e4)] = 0.0
    attack: Literal["pgd", "fgsm", "mim", "apgd-ce", "apgd-dlr", "square", "clean"] = "clean"
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 20
    target: Annotated[str, Field(max_length=100)] = ""
    with_maps: bool = True

    @property
    def suite(self) -> str:
        return ATTACKS[self.attack].suite.format(steps=self.steps)

    @property
    def threat(self) -> LpBall:
        return LpBall(norm=self.norm, eps=self.eps)

    def content(self) -> bytes | None:
        """The file that was sent."""
        if self.data is None:
            return None
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise UserError(f"{self.name}: the picture was not sent as base64") from None

    def command(self, model: str, size: int | None = None) -> str:
        """`robustvit attack` with the same settings."""
        is_odd = self.data is not None and (self.name.startswith("-") or SAMPLE.fullmatch(self.name))
        words = [
            "robustvit",
            "attack",
            f"./{self.name}" if is_odd else self.name,
            "--model",
            model,
            "--attack",
            self.suite,
        ]
        words += ["--norm", self.norm, "--eps", format_fraction(self.eps)]
        words += [] if size is None else ["--size", str(size)]
        return shlex.join([*words, *(["--target", self.target] if self.target else [])])
