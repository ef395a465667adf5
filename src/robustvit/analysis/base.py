"""What an analysis is, and what it is asked about: a model on images, clean or adversarial."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from robustvit.core.errors import UserError
from robustvit.core.finding import Finding
from robustvit.evaluation.attacked_images import AttackOnImages
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject

CLEAN = "clean"


class Analysis(Protocol):
    """Called where the model is in eval mode and frozen; long ones resume through the store's ledger and folder.

    Optional: a field `threat`, which `analyze` fills where it is None; `check(subject)` refuses a model that doesn't
    fit, before any work; `passes(subject)` counts forward and backward passes of all images together at most;
    `contents(subject)` describes files that the settings name, or that are read from the model's run (`subject.run`);
    `clean_only` says why it takes no adversarial images.
    """

    def __call__(self, subject: Subject, store: Store) -> Finding: ...


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and the images that it is looked at on."""

    model: str
    """Its name."""
    on: str
    """`clean`, or the name of a suite."""
    subject: Subject
    """Ready, on clean images."""
    attack: AttackOnImages | None = None
    """Makes the adversarial images."""

    @property
    def planned(self) -> Subject:
        """On images as they will be; adversarial ones need not be there yet."""
        return self.subject if self.attack is None else self.attack.planned()

    def refusal(self, analysis: Any) -> str:
        """Why an analysis can't be made of it; empty where it can."""
        clean_only = getattr(analysis, "clean_only", "")
        if clean_only and self.attack is not None:
            return f"on {self.on}: {clean_only}"
        if getattr(analysis, "threat", self) is None:
            return "attacks, so it needs a threat, such as --eps 8/255 or rv.LpBall('inf', 8 / 255)"
        try:
            if hasattr(analysis, "check"):
                analysis.check(self.planned)
        except UserError as error:
            return str(error)
        return ""

    def identity(self, analysis: Any, settings: dict[str, Any]) -> dict[str, Any]:
        # files that the settings name may be others by the next time
        contents = analysis.contents(self.subject) if hasattr(analysis, "contents") else {}
        attack = {} if self.attack is None else {"on": self.attack.identity}
        return {"analysis": settings, **contents, **attack}


def network(subject: Subject) -> nn.Module:
    """The module whose inside is looked at."""
    module = subject.module
    if not isinstance(module, nn.Module):
        raise UserError("the inside of a model is looked at in an nn.Module, which a bare callable hides")
    return module
