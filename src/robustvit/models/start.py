"""Weights to start from: a run's, a file's or timm's pretrained ones, fitted to a model that may differ a little."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustvit.core.component import settings
from robustvit.core.config import validated
from robustvit.core.errors import UserError
from robustvit.models.create import ModelSettings, model_settings
from robustvit.models.extra_state import extra_state, load_extra_state
from robustvit.models.foreign import Normalisation, fit_state, misfits
from robustvit.models.normalize import Normalized, backbone_of
from robustvit.models.reference import ModelRef, resolve_model
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
    renormalised: str = ""
    """The mean and std that the weights were trained with, where the recipe has others."""

    def __str__(self) -> str:
        parts = [f"{self.matched} tensors as they were"]
        parts += [f"{len(self.resized)} resized ({_some(self.resized)})"] if self.resized else []
        parts += [f"{len(self.new)} new ({_some(self.new)})"] if self.new else []
        parts += [f"{len(self.unused)} left out ({_some(self.unused)})"] if self.unused else []
        parts += [f"{len(value)} {name.replace('_', ' ')}" for name, value in self.extra_state.items()]
        parts += [f"trained with mean and std {self.renormalised}"] if self.renormalised else []
        return f"{self.source}: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Source(NamedTuple):
    state: dict[str, Tensor]
    normalisation: Normalisation | None = None
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
    renormalise: bool = False
    """Weights that were trained with another mean and std go on under the recipe's own."""

    def __call__(self, model: Normalized) -> Started:
        backbone = model.backbone
        source = self._source(model)
        fitted = fit_state(source.state, backbone)
        renormalised = self._check_normalisation(model, source.normalisation or fitted.normalisation)
        own = backbone.state_dict()
        found = dict(fitted.state)
        new = [name for name in own if any(fnmatch(name, pattern) for pattern in self.fresh)]
        if self.fresh and not new:
            raise UserError(f"start.fresh: no tensor of the model is called {' or '.join(self.fresh)}")
        resized = self._resize(found, {name: value for name, value in own.items() if name not in new})
        unused = sorted({name for name in found if name not in own} & _ignorable(found, self.fresh))
        for name in (*new, *unused):
            found.pop(name, None)
        found |= {name: own[name] for name in new}
        told = misfits(found, backbone, "model.num_classes")
        if told:
            raise UserError(
                f"start.weights: {self.weights} doesn't fit model '{_name(model)}': {told}; name in start.fresh what "
                "shall start anew"
            )
        backbone.load_state_dict(found)
        source.load_extra(model)
        matched, extra = len(own) - len(new) - len(resized), extra_state(model)
        return Started(self.weights, matched, tuple(resized), tuple(new), tuple(unused), extra, renormalised)

    def _source(self, model: Normalized) -> _Source:
        ref = self._reference(model)
        if ref.file is None:
            module = ref.module()
            known = _normalisation(module) if isinstance(module, Normalized) else None
            extra = extra_state(module)
            return _Source(dict(backbone_of(module).state_dict()), known, lambda model: load_extra_state(model, extra))
        path = ref.file
        state, facts = load_state(path, self.key, "start.key")
        stored = validated(ModelSettings, facts["model"], f"{path} (metadata)") if facts.get("model") else None
        known = Normalisation(stored.mean, stored.std) if stored and stored.mean and stored.std else None
        return _Source(state, known, lambda model: load_extra_facts(model, facts, path))

    def _reference(self, model: Normalized) -> ModelRef:
        made = model_settings(model)
        try:
            return resolve_model(made.name if made and self.weights == PRETRAINED else self.weights)
        except UserError as error:
            raise UserError(f"start.weights: {error}") from None

    def _check_normalisation(self, model: Normalized, known: Normalisation | None) -> str:
        """Weights belong to the normalisation that they were trained with; the other one, where it may be so."""
        mine = _normalisation(model)
        if known is None and getattr(model, "has_default_normalisation", False) and not self.renormalise:
            raise UserError(
                f"start.weights: {self.weights} doesn't tell how its images were normalised; set model.mean and "
                f"model.std: [0] and [1] for a model of pixels in [0, 1], {mine} if it was trained with timm's own for "
                f"'{_name(model)}'"
            )
        if known is None or known.agrees(mine):
            return ""
        if not self.renormalise:
            mean, std = ([round(value, 6) for value in values] for values in known)
            raise UserError(
                f"start.weights: {self.weights} was trained with mean and std {known}, the recipe's model has {mine}; "
                f"set model.mean: {mean} and model.std: {std}, or start.renormalise: true to go on under the recipe's"
            )
        return str(known)

    def _resize(self, found: dict[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
        if not self.resize:
            return []
        told = []
        for name, wanted in own.items():
            theirs = found.get(name)
            if theirs is None or theirs.shape == wanted.shape:
                continue
            resize = next((how for pattern, how in _RESIZED.items() if fnmatch(name, pattern)), None)
            changed = None if resize is None else resize(theirs, wanted)
            if changed is not None and changed.shape == wanted.shape:
                found[name] = changed
                told.append(f"{name} {_shape(theirs)} to {_shape(wanted)}")
        return told


def _normalisation(model: Normalized) -> Normalisation:
    return Normalisation(*(tuple(values.flatten().tolist()) for values in (model.mean, model.std)))


def _ignorable(found: Mapping[str, Tensor], fresh: tuple[str, ...]) -> set[str]:
    """What the file has and the model hasn't, where the recipe says that it starts anew."""
    return {name for name in found if any(fnmatch(name, pattern) for pattern in fresh)}


def _patches(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resample_patch_embed

    if theirs.ndim != 4 or theirs.shape[:2] != wanted.shape[:2]:
        return None
    return resample_patch_embed(theirs.float(), list(wanted.shape[2:])).to(theirs.dtype)


def _positions(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resample_abs_pos_embed

    if theirs.ndim != 3 or wanted.ndim != 3 or theirs.shape[-1] != wanted.shape[-1]:
        return None
    extra, other = _extra(wanted.shape[1]), _extra(theirs.shape[1])
    if extra is None or other is None:  # the patches of one form no square
        return None
    if other != extra:  # tokens that stand before the patches in one of them alone
        theirs = theirs[:, other:]
        theirs = torch.cat([theirs.new_zeros(1, extra, theirs.shape[-1]), theirs], 1)
    side = round((wanted.shape[1] - extra) ** 0.5)
    return resample_abs_pos_embed(theirs, new_size=[side, side], num_prefix_tokens=extra)


def _extra(tokens: int) -> int | None:
    """How many of them aren't patches, if the patches form a square; None where they can't."""
    fit = (extra for extra in range(3) if tokens > extra and round((tokens - extra) ** 0.5) ** 2 == tokens - extra)
    return next(fit, None)


def _windows(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resize_rel_pos_bias_table

    squares = all(table.ndim == 2 and round(len(table) ** 0.5) ** 2 == len(table) > 0 for table in (theirs, wanted))
    if not squares or theirs.shape[-1] != wanted.shape[-1]:
        return None
    window = (round(wanted.shape[0] ** 0.5) + 1) // 2
    return resize_rel_pos_bias_table(theirs, new_window_size=(window, window), new_bias_shape=tuple(wanted.shape))


_RESIZED: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
    "*pos_embed": _positions,
    "*patch_embed.proj.weight": _patches,
    "*relative_position_bias_table": _windows,
}


def _name(model: Normalized) -> str:
    made = model_settings(model)
    return made.name if made else type(model).__name__


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _some(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
