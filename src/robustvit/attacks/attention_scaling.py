"""Adaptive attention scaling: attacks crafted where attention doesn't saturate, judged on the original model.

Towards Understanding and Improving Adversarial Robustness of Vision Transformers (Jain and Dutta 2024): large scores
before the softmax mask gradients; small factors on them, searched for or given, bring the gradients back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.attacks.base import AnyAttack, AttackSubject, Classifier, Search
from robustvit.attacks.factor_search import FactorSearch, module_of
from robustvit.attacks.factors_file import check_model, searched_factors
from robustvit.attacks.hooks import Suspect, changed_settings, follows_gradients, label
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.figures import percent
from robustvit.core.numbers import Count, Number
from robustvit.losses import is_correct
from robustvit.models.attention_factors import LEAST, MOST
from robustvit.models.attention_probe import Scaling, probing, scalable_blocks
from robustvit.threats import LpBall

Factor = Annotated[Number, Field(ge=LEAST, le=MOST)]
_MASKED = Suspect(
    "attention-masks-gradients",
    "softmax inside attention saturates and hides gradients: quote the worst case over plain and scaled attacks, suite "
    "autoattack+aas",
)


@component("attack", "attention_scaling")
class AttentionScaling:
    """AAS (Jain and Dutta 2024): the inner attack follows a model with scaled attention."""

    control_name: ClassVar[str] = "random factors"

    inner: AnyAttack
    """The attack that is wrapped."""
    factors: Factor | tuple[Factor, ...] | None = None
    """One for all blocks, one for each, or None: searched for, in an evaluation once on a sample of its images."""
    searched_on: str | None = None
    """Fingerprint of the model that given factors were searched on; an evaluation of another refuses them."""
    search: FactorSearch = FactorSearch()
    """How factors are searched for."""
    blocks: Count | None = None
    """Only so many are scaled, from the first on."""
    where: Literal["attention", "logits"] = "attention"
    """Networks without attention can have their logits scaled; one factor then."""
    judged_on: Literal["original", "scaled"] = "original"
    """Images are judged on the original model or, as in the paper, on the one with scaled attention."""

    def __post_init__(self) -> None:
        if self.where != "logits":
            return
        if not isinstance(self.factors, float):
            raise ValueError("factors: scaling logits takes one factor, such as 0.1")
        if self.blocks is not None:
            raise ValueError("blocks: logits have none; leave it out")
        if self.judged_on == "scaled":
            raise ValueError("judged_on: scaled logits give the same verdicts; leave it out")

    @property
    def label(self) -> str:
        changed = changed_settings(to_dict(self), to_dict(AttentionScaling(inner=self.inner)))
        return f"aas-{label(self.inner)}{';' + changed if changed else ''}"

    @property
    def follows_gradients(self) -> bool:
        return self.judged_on == "scaled" and follows_gradients(self.inner)

    @property
    def suspect(self) -> Suspect | None:
        return _MASKED if self.where == "attention" and self.judged_on == "original" else None

    @property
    def judges_changed_model(self) -> bool:
        return self.judged_on == "scaled"

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        if self.where == "logits":
            return self._on_logits(model, x, y, threat, search)
        module = module_of(model)
        factors = self.search(model, module, [(x, y)], seed=0) if self.factors is None else self.factors
        if self.judged_on == "scaled":
            with replace(self, factors=factors).judged_model(model):
                return self.inner(model, x, y, threat, search)
        with probing(module, Scaling(self.for_blocks(module, factors).to(x.device))) as probe:
            if (done := search.done) is not None:

                def on_original(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
                    with probe.paused(), torch.no_grad():
                        return done(x_adv, model(x_adv), rows)

                search = replace(search, done=on_original)
            return self.inner(model, x, y, threat, search)

    def for_blocks(self, module: nn.Module, factors: float | tuple[float, ...]) -> Tensor:
        """As many as the model has blocks; those past `blocks` stay as they are."""
        count = len(scalable_blocks(module))
        if self.blocks is not None and self.blocks > count:
            raise UserError(f"attention_scaling.blocks: {self.blocks}, but the model has {count} attention blocks")
        values = torch.full((count,), factors) if isinstance(factors, float | int) else torch.tensor(factors)
        if self.blocks is not None and len(values) == count:
            values = torch.where(torch.arange(count) < self.blocks, values, 1.0)
        return values

    def check(self, subject: AttackSubject) -> None:
        if self.where == "attention":
            module = module_of(subject)
            check_model(subject, self.searched_on)
            with probing(module, Scaling(self.for_blocks(module, self.factors or 1.0).to(subject.device))):
                pass

    def prepare(self, subject: AttackSubject, folder: Path | None) -> "AttentionScaling":
        prepared, facts = replace(self), dict[str, Any]()
        if self.where == "attention" and self.factors is None:
            entry = searched_factors(self.search, subject, folder)
            prepared, facts = replace(self, factors=tuple(entry["factors"])), {"searches": [entry]}
        if self.judged_on == "scaled" and prepared.factors is not None:
            facts["original_clean_accuracy"] = _clean_accuracy(subject)
            facts["judged_with"] = self.for_blocks(module_of(subject), prepared.factors).tolist()
        object.__setattr__(prepared, "_facts", facts)  # no setting: it isn't part of the attack's identity
        return prepared

    def control(self) -> "AttentionScaling | None":
        """With random factors; the same for all blocks, or already random, they have none."""
        if self.where == "logits" or isinstance(self.factors, float) or self.search.steps == 0:
            return None
        return replace(self, factors=None, searched_on=None, search=replace(self.search, steps=0))

    @contextmanager
    def judged_model(self, model: Classifier) -> Iterator[None]:
        module = None if self.judged_on == "original" else module_of(model)
        if module is None or _SCALED in vars(module):  # also of a copy or a pickle of it, which keeps the factors
            yield
            return
        if self.factors is None:
            raise ValueError("attention_scaling: its factors are searched for by `prepare`, which comes first")
        factors = self.for_blocks(module, self.factors)
        device = next((parameter.device for parameter in module.parameters()), factors.device)
        with probing(module, Scaling(factors.to(device))):
            vars(module)[_SCALED] = True
            try:
                yield
            finally:
                del vars(module)[_SCALED]

    def facts(self) -> dict[str, Any]:
        """Searches with their factors and cost; where the scaled model judges, its factors and what it replaces."""
        return {"judged_on": self.judged_on, "searches": [], **getattr(self, "_facts", {})}

    def notes(self) -> tuple[str, ...]:
        facts = self.facts()
        notes = [f"aas- attacks follow the model with scaled {self.where}; the original model judges"]
        if self.judged_on == "scaled":
            clean = facts.get("original_clean_accuracy")
            accuracy = "" if clean is None else f", whose clean accuracy is {percent(clean)}"
            notes = [f"judged on the model with scaled attention, not on the original model{accuracy}"]
        if isinstance(self.factors, tuple):
            origin = ("found" if self.search.steps else "drawn at random") if facts["searches"] else "given"
            text = ", ".join(f"{factor:.2g}" for factor in self.factors)
            if all(abs(factor - 1) < 0.01 for factor in self.factors):
                text = "all 1, so that this is the attack without scaling"
            notes.append(f"attention factors {origin}: {text}")
        return tuple(notes)

    def _on_logits(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search) -> Tensor:
        factor = self.factors
        assert isinstance(factor, float)
        if (done := search.done) is not None:
            search = replace(search, done=lambda x_adv, logits, rows: done(x_adv, logits / factor, rows))
        return self.inner(lambda image: factor * model(image), x, y, threat, search)


_SCALED = "_judged_with_scaled_attention"


def _clean_accuracy(subject: AttackSubject) -> float:
    right = 0
    for part in torch.split(subject.indices, subject.batch_size):
        x, y = subject.batch(part)
        with torch.no_grad():
            right += int(is_correct(subject(x), y).sum())
    return right / len(subject.indices)
