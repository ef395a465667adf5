"""Adaptive attention scaling: attacks crafted where attention doesn't saturate, judged on the model as it is.

Towards Understanding and Improving Adversarial Robustness of Vision Transformers (Jain and Dutta 2024): large scores
before the softmax mask gradients; small factors on them, searched for or given, bring the gradients back.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.attacks.base import AnyAttack, Classifier, Count, Search
from robustvit.attacks.factor_search import FactorSearch
from robustvit.attacks.nested import changed_settings, label
from robustvit.core.component import Number, component, to_dict
from robustvit.core.errors import UserError
from robustvit.models.attention_factors import LEAST, MOST
from robustvit.models.attention_probe import Scaling, attention_blocks, probing
from robustvit.threats import LpBall

Factor = Annotated[Number, Field(ge=LEAST, le=MOST)]


@component("attack", "attention_scaling")
class AttentionScaling:
    """AAS (Jain and Dutta 2024): the inner attack follows a model with scaled attention; the model itself judges."""

    follows_gradients: ClassVar[bool] = False

    inner: AnyAttack
    factors: Factor | tuple[Factor, ...] | None = None
    """One for all blocks, one for each, or None: searched for, in an evaluation once on a sample of its images."""
    found_on: str | None = None
    """Fingerprint of the model that given factors were searched on; an evaluation of another refuses them."""
    search: FactorSearch = FactorSearch()
    blocks: Count | None = None
    """Only so many are scaled, from the first on."""
    where: Literal["attention", "logits"] = "attention"
    """Networks without attention can have their logits scaled; one factor then."""

    def __post_init__(self) -> None:
        if self.where == "logits" and not isinstance(self.factors, float):
            raise ValueError("factors: scaling logits takes one factor, such as 0.1")
        if self.where == "logits" and self.blocks is not None:
            raise ValueError("blocks: logits have none; leave it out")

    @property
    def label(self) -> str:
        changed = changed_settings(to_dict(self), to_dict(AttentionScaling(inner=self.inner)))
        return f"aas-{label(self.inner)}{';' + changed if changed else ''}"

    @property
    def scales_attention(self) -> bool:
        return self.where == "attention"

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        if self.where == "logits":
            return self._on_logits(model, x, y, threat, search)
        module = module_of(model)
        factors = self.factors
        if factors is None:
            factors = self.search(model, module, [(x, y)], seed=0)
        with probing(module, Scaling(self.for_blocks(module, factors).to(x.device))) as probe:
            if (done := search.done) is not None:

                def on_the_original(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
                    with probe.paused(), torch.no_grad():
                        return done(x_adv, model(x_adv), rows)

                search = replace(search, done=on_the_original)
            return self.inner(model, x, y, threat, search)

    def for_blocks(self, module: nn.Module, factors: float | tuple[float, ...]) -> Tensor:
        """As many as the model has blocks; those past `blocks` stay as they are."""
        count = len(attention_blocks(module))
        if self.blocks is not None and self.blocks > count:
            raise UserError(f"attention_scaling.blocks: {self.blocks}, but the model has {count} attention blocks")
        values = torch.full((count,), factors) if isinstance(factors, float | int) else torch.tensor(factors)
        if self.blocks is not None and len(values) == count:
            values = torch.where(torch.arange(count) < self.blocks, values, 1.0)
        return values

    def _on_logits(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search) -> Tensor:
        factor = self.factors
        assert isinstance(factor, float)
        if (done := search.done) is not None:
            search = replace(search, done=lambda x_adv, logits, rows: done(x_adv, logits / factor, rows))
        return self.inner(lambda image: factor * model(image), x, y, threat, search)


def module_of(model: Classifier) -> nn.Module:
    """The module behind a classifier."""
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        raise UserError(
            "attention is scaled inside an nn.Module, which a bare callable hides; scale its logits instead: "
            "where=logits"
        )
    return module
