"""A search in bfloat16, whose images are judged in float32 as ever."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from robustvit.attacks.base import AnyAttack, Attack, AttackSubject, Classifier, Search
from robustvit.attacks.hooks import innermost, label
from robustvit.core.component import component
from robustvit.core.progress import say
from robustvit.models.precision import autocasting, keeping_float32, slower_by
from robustvit.threats import LpBall

_timed: "WeakSet[nn.Module]" = WeakSet()
"""Models whose passes have been compared."""


@component("attack", "low_precision")
class LowPrecision:
    """An attack on the model in bfloat16; stem, softmax, norms and logits stay float32. The judge is not affected."""

    inner: AnyAttack
    """The attack that is wrapped."""

    @property
    def label(self) -> str:
        return f"{label(self.inner)} in bf16"

    @property
    def draws_as(self) -> str:
        """Its random numbers are its own, so that the search in float32 afterwards draws what it draws alone."""
        return f"{getattr(innermost(self.inner), 'name', '')} in bf16"

    def prepare(self, subject: AttackSubject, folder: Any) -> Attack:
        """Say so where it is slower than float32."""
        model = getattr(subject, "module", None)
        if isinstance(model, nn.Module) and model not in _timed:
            _timed.add(model)
            x, _ = subject.batch(subject.indices[:16])
            with keeping_float32(model):
                problem = slower_by(_InBf16(model), model, x)
            if problem:
                say(f"warning: {problem}")
        return self

    def notes(self) -> list[str]:
        return ["searched in bf16 first; judged in float32, and what survived was searched again in float32"]

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        with keeping_float32(getattr(model, "module", model)):
            return self.inner(_InBf16(model), x, y, threat, search)


@dataclass(frozen=True)
class _InBf16:
    """A classifier whose passes are in bfloat16."""

    of: Classifier

    @property
    def module(self) -> Classifier:
        of: Classifier = getattr(self.of, "module", self.of)
        return of

    def __call__(self, x: Tensor) -> Tensor:
        with autocasting(x.device.type):
            return self.of(x).to(x.dtype)
