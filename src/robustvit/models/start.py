"""Weights to start from: a run's, a file's or timm's pretrained ones, fitted to a model that may differ a little."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from robustvit.core.component import settings
from robustvit.core.config import validated
from robustvit.core.errors import UserError
from robustvit.models.attention_factors import extra_state, load_extra_state
from robustvit.models.create import ModelSettings, model_settings
from robustvit.models.foreign import Normalization, fit_state, misfits
from robustvit.models.names import matches
from robustvit.models.normalize import Normalized, backbone_of
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.models.resize import resized
from robustvit.models.weights import load_extra_facts, load_state

PRETRAINED = "pretrained"
_SHOWN = 3


@dataclass(frozen=True)
class Started:
    """What became of every tensor."""

    source: str
    matched: int
    resized: tuple[str, ...]
    """Each with its shape before and after."""
    new: tuple[str, ...]
    """Drawn at random, as the recipe allows."""
    unused: tuple[str, ...]
    extra_state: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's own, which the model has now."""
    renormalized: str = ""
    """The mean and std that the weights were trained with, where the recipe has others."""

    def __str__(self) -> str:
        parts = [f"{self.matched} tensors as they were"]
        parts += [f"{len(self.resized)} resized ({_some(self.resized)})"] if self.resized else []
        parts += [f"{len(self.new)} new ({_some(self.new)})"] if self.new else []
        parts += [f"{len(self.unused)} left out ({_some(self.unused)})"] if self.unused else []
        parts += [f"{len(value)} {name.replace('_', ' ')}" for name, value in self.extra_state.items()]
        parts += [f"trained with mean and std {self.renormalized}"] if self.renormalized else []
        return f"{self.source}: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Source(NamedTuple):
    state: dict[str, Tensor]
    normalization: Normalization | None = None
    load_extra: Callable[[nn.Module], None] = lambda model: None


@settings
class Start:
    """Where a model's weights come from; what doesn't fit is an error unless it is named."""

    weights: str
    """Any reference to a model (run folder, checkpoint, timm name ...), or `pretrained`: timm's own for this one."""
    key: str | None = None
    """The entry of a file that holds the weights, where several do."""
    fresh: tuple[str, ...] = ()
    """Patterns of tensors that start anew, such as `head.*` for other classes."""
    resize: bool = True
    """Patch and position embeddings, and tables of relative positions, are resampled to another image or patch size."""
    renormalize: bool = False
    """Weights that were trained with another mean and std go on under the recipe's own."""

    def __call__(self, model: Normalized) -> Started:
        backbone = model.backbone
        source = self._source(model)
        fitted = fit_state(source.state, backbone)
        renormalized = self._check_normalization(model, source.normalization or fitted.normalization)
        own, state = backbone.state_dict(), dict(fitted.state)
        new = self._new(backbone, own, state)
        changed = self._resize(state, {name: value for name, value in own.items() if name not in new}, backbone)
        unused = sorted(name for name in state if name not in own and matches(name, self.fresh))
        for name in unused:
            del state[name]
        state |= {name: own[name] for name in new}
        problems = misfits(state, backbone, "model.num_classes")
        if problems:
            raise UserError(
                f"start.weights: {self.weights} doesn't fit model '{_name(model)}': {problems}; name in start.fresh "
                "what shall start anew"
            )
        backbone.load_state_dict(state)
        source.load_extra(model)
        matched, extra = len(own) - len(new) - len(changed), extra_state(model)
        return Started(self.weights, matched, tuple(changed), tuple(new), tuple(unused), extra, renormalized)

    def _new(self, backbone: nn.Module, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
        """What the recipe names, and what a wrapper adds to the network whose weights these are."""
        if self.fresh and not any(matches(name, self.fresh) for name in own):
            raise UserError(f"start.fresh: no tensor of the model is called {' or '.join(self.fresh)}")
        added: tuple[str, ...] = getattr(backbone, "added_parameters", ())
        return [name for name in own if matches(name, self.fresh) or (name not in state and matches(name, added))]

    def _source(self, model: Normalized) -> _Source:
        ref = self._reference(model)
        if ref.file is None:
            module = ref.module()
            known = _normalization(module) if isinstance(module, Normalized) else None
            extra = extra_state(module)
            return _Source(dict(backbone_of(module).state_dict()), known, lambda model: load_extra_state(model, extra))
        path = ref.file
        state, facts = load_state(path, self.key, "start.key")
        stored = validated(ModelSettings, facts["model"], f"{path} (metadata)") if facts.get("model") else None
        known = Normalization(stored.mean, stored.std) if stored and stored.mean and stored.std else None
        return _Source(state, known, lambda model: load_extra_facts(model, facts, path))

    def _reference(self, model: Normalized) -> ModelRef:
        made = model_settings(model)
        try:
            return resolve_model(made.name if made and self.weights == PRETRAINED else self.weights)
        except UserError as error:
            raise UserError(f"start.weights: {error}") from None

    def _check_normalization(self, model: Normalized, known: Normalization | None) -> str:
        """Weights belong to the normalization that they were trained with; the other one, where it may be so."""
        mine = _normalization(model)
        if known is None and getattr(model, "has_default_normalization", False) and not self.renormalize:
            raise UserError(
                f"start.weights: {self.weights} doesn't tell how its images were normalized; set model.mean and "
                f"model.std: [0] and [1] for a model of pixels in [0, 1], {mine} if it was trained with timm's own for "
                f"'{_name(model)}'"
            )
        if known is None or known.agrees(mine):
            return ""
        if not self.renormalize:
            mean, std = ([round(value, 6) for value in values] for values in known)
            raise UserError(
                f"start.weights: {self.weights} was trained with mean and std {known}, the recipe's model has {mine}; "
                f"set model.mean: {mean} and model.std: {std}, or start.renormalize: true to go on under the recipe's"
            )
        return str(known)

    def _resize(self, state: dict[str, Tensor], own: Mapping[str, Tensor], backbone: nn.Module) -> list[str]:
        changes = []
        for name, wanted in own.items() if self.resize else ():
            theirs = state.get(name)
            if theirs is None or theirs.shape == wanted.shape:
                continue
            changed = resized(name, theirs, wanted, backbone)
            if changed is not None:
                state[name] = changed
                changes.append(f"{name} {_shape(theirs)} to {_shape(wanted)}")
        return changes


def _normalization(model: Normalized) -> Normalization:
    return Normalization(*(tuple(values.flatten().tolist()) for values in (model.mean, model.std)))


def _name(model: Normalized) -> str:
    made = model_settings(model)
    return made.name if made else type(model).__name__


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _some(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
