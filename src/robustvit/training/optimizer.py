"""timm's optimizers by name, with weight decay where it belongs, and the average of what they train."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from robustvit.core.component import settings
from robustvit.core.errors import UserError, first_line, nearest
from robustvit.core.numbers import Count, NonNegative, Number, Positive, UnitInterval
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.sharding import is_sharded


@settings
class Optimizer:
    """An optimizer of timm: sgd (Nesterov), adamw, lion and many others; some need CUDA or packages of their own."""

    opt: str = "adamw"
    """Its name in timm."""
    lr: Positive = 1e-3
    """The peak, which the schedule multiplies."""
    lr_batch: Count | None = None
    """The batch size that `lr` is meant for: another one scales it in proportion (0.0005 for 512 in A Light Recipe)."""
    weight_decay: NonNegative = 0.05
    """Not applied to biases, norms, class tokens and position embeddings."""
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    """Of those that have one."""
    betas: tuple[float, float] | None = None
    """None: the optimizer's own; Lion's are 0.9 and 0.99."""
    fallback: tuple[str, ...] = ()
    """What muon leaves to AdamW, by name such as `head.*`, besides vectors; it takes kernels for matrices."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of timm's optimizer; muon has `fallback_lr_scale`, AdamW's learning rate in units of `lr`."""

    def __post_init__(self) -> None:
        if twice := sorted(set(self.settings) & set(Optimizer.__dataclass_fields__)):
            raise ValueError(f"settings.{twice[0]}: belongs next to 'settings', not inside it")

    def peak(self, batch_size: int) -> float:
        """The learning rate at the top of its schedule."""
        return self.lr * (batch_size / self.lr_batch if self.lr_batch else 1.0)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers

        known = [str(name) for name in list_optimizers()]
        if self.opt not in known:
            raise UserError(f"recipe.optimizer.opt: no optimizer '{self.opt}'{nearest(self.opt, known)}")
        extra = {**self.settings, **({} if self.betas is None else {"betas": self.betas})}
        groups = parameter_groups(model, self.weight_decay, self.fallback)
        try:
            is_fusible = "fused" in inspect.signature(get_optimizer_class(self.opt, bind_defaults=False)).parameters
            if is_fusible and next(model.parameters()).device.type in ("cpu", "cuda") and not is_sharded(model):
                extra.setdefault(
                    "fused", True
                )  # one kernel instead of several for each parameter; sgd's takes no shards
            built: torch.optim.Optimizer = create_optimizer_v2(
                groups, opt=self.opt, lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum, **extra
            )
        except (TypeError, AssertionError, ImportError, RuntimeError, ValueError) as error:
            raise UserError(f"recipe.optimizer: '{self.opt}' can't be built here: {first_line(error)}") from None
        if getattr(built, "is_second_order", False):
            raise UserError(f"recipe.optimizer: '{self.opt}' needs second derivatives, which aren't taken here")
        if self.betas is not None and "betas" not in built.defaults:
            raise UserError(f"recipe.optimizer.betas: '{self.opt}' has none; leave them out")
        if self.fallback and "fallback_lr_scale" not in built.defaults:
            raise UserError(f"recipe.optimizer.fallback: '{self.opt}' treats every parameter alike; leave it out")
        return built


_SPARED = re.compile(r"(\.bias|pos_embed\w*|\w+_token)$")
"""timm names such tensors itself only for some of its models."""


def parameter_groups(model: nn.Module, weight_decay: float, fallback: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What trains: with decay, without (one-dimensional tensors and what timm exempts), and what falls back."""
    modules = [(prefix, module) for prefix, module in model.named_modules() if hasattr(module, "no_weight_decay")]
    exempt = {f"{prefix}.{name}".lstrip(".") for prefix, module in modules for name in module.no_weight_decay()}
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    spared = {name for name, p in trained if p.ndim <= 1 or name in exempt or _SPARED.search(name)}
    aside = {id(parameter) for name, parameter in parameter_names(model) if matches(name, fallback)}
    groups = []
    for falls_back in (False, True):
        for is_spared in (False, True):
            params = [p for name, p in trained if (name in spared, id(p) in aside) == (is_spared, falls_back)]
            flag = {"use_fallback": True} if falls_back else {}
            groups.append({"params": params, "weight_decay": 0.0 if is_spared else weight_decay, **flag})
    return groups if fallback else groups[:2]


@settings
class Ema:
    """Decay 0 during warm-up, then min(decay, (1+d)/(10+d)) at the d-th step after it (Gowal et al. 2020)."""

    decay: Annotated[Number, Field(ge=0, lt=1)] = 0.995
    """What is kept of the average at each step."""
    warmup: UnitInterval = 0.025
    """Fraction of the training."""
    buffers: Literal["copied", "averaged"] = "copied"
    """Running statistics: taken over as they are, or averaged like the weights."""

    def rate(self, step: int, total: int) -> float:
        since = step - int(self.warmup * total)
        return 0.0 if since < 0 else min(self.decay, (1 + since) / (10 + since))

    @torch.no_grad()
    def update(self, average: nn.Module, model: nn.Module, decay: float) -> None:
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 1 - decay)
        for my_buffer, their_buffer in zip(average.buffers(), model.buffers(), strict=True):
            if self.buffers == "averaged" and my_buffer.is_floating_point():
                my_buffer.lerp_(their_buffer, 1 - decay)
            else:
                my_buffer.copy_(their_buffer)
