"""Weights to start from: a run's, a file's or timm's pretrained ones, fitted to a model that may differ a little."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.component import settings
from robustvit.core.config import read_yaml, validated
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.core.run import RunFolder
from robustvit.models.create import ModelSettings, model_settings
from robustvit.models.foreign import Normalisation, fit_state, misfits
from robustvit.models.normalize import Normalized
from robustvit.models.weights import load_state

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

    def __str__(self) -> str:
        parts = [f"{self.matched} tensors as they were"]
        parts += [f"{len(self.resized)} resized ({_some(self.resized)})"] if self.resized else []
        parts += [f"{len(self.new)} new ({_some(self.new)})"] if self.new else []
        parts += [f"{len(self.unused)} left out ({_some(self.unused)})"] if self.unused else []
        return f"{self.source}: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@settings
class Start:
    """Where a model's weights come from; what doesn't fit is an error unless it is named."""

    weights: str
    """A run folder, a checkpoint (.safetensors, .pt, .pth), or `pretrained`: timm's own for the model."""
    key: str | None = None
    """The entry of a file that holds the weights, where several do."""
    fresh: tuple[str, ...] = ()
    """Patterns of tensors that start anew, such as `head.*` for other classes."""
    resize: bool = True
    """Patch and position embeddings, and tables of relative positions, are resampled to another image or patch size."""

    def __call__(self, model: Normalized) -> Started:
        backbone = model.backbone
        assert isinstance(backbone, nn.Module)
        state, known = self._state(model)
        fitted = fit_state(state, backbone)
        self._check_normalisation(model, known or fitted.normalisation)
        own = backbone.state_dict()
        found = dict(fitted.state)
        resized = self._resize(found, own)
        new = [name for name in own if any(fnmatch(name, pattern) for pattern in self.fresh)]
        if self.fresh and not new:
            raise UserError(f"start.fresh: no tensor of the model is called {' or '.join(self.fresh)}")
        unused = sorted({name for name in found if name not in own} & _ignorable(found, self.fresh))
        for name in (*new, *unused):
            found.pop(name, None)
        found |= {name: own[name] for name in new}
        told = misfits(found, backbone)
        if told:
            raise UserError(
                f"start.weights: {self.weights} doesn't fit model '{_name(model)}': {told}; name in start.fresh what "
                "shall start anew"
            )
        backbone.load_state_dict(found)
        matched = len(own) - len(new) - len(resized)
        return Started(self.weights, matched, tuple(resized), tuple(new), tuple(unused))

    def _state(self, model: Normalized) -> tuple[dict[str, Tensor], Normalisation | None]:
        if self.weights == PRETRAINED:
            made = model_settings(model)
            assert made is not None, "a recipe builds its model by name"
            plain = ModelSettings(name=made.name).build(pretrained=True)
            norm = Normalisation(*(tuple(values.flatten().tolist()) for values in (plain.mean, plain.std)))
            return dict(plain.backbone.state_dict()), norm
        path = _file(Path(self.weights))
        state, facts = load_state(path, self.key)
        stored = validated(ModelSettings, facts["model"], f"{path} (metadata)") if facts.get("model") else None
        if stored is None or not (stored.mean and stored.std):
            return state, None
        return state, Normalisation(stored.mean, stored.std)

    def _check_normalisation(self, model: Normalized, known: Normalisation | None) -> None:
        """Weights belong to the normalisation that they were trained with."""
        mine = Normalisation(*(tuple(values.flatten().tolist()) for values in (model.mean, model.std)))
        if known is not None and not known.agrees(mine):
            mean, std = (list(values) for values in known)
            raise UserError(
                f"start.weights: {self.weights} was trained with mean and std {known}, the recipe's model has {mine}; "
                f"set model.mean: {mean} and model.std: {std}"
            )

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


def _file(path: Path) -> Path:
    if not is_folder(path):
        return path
    run = RunFolder(path)
    if not is_file(run.recipe):
        raise UserError(f"start.weights: {path} is no run folder (it has no recipe.yaml)")
    select = read_yaml(run.recipe).get("checkpoints", {}).get("select", "last")
    file = run.checkpoints / f"{select}.safetensors"
    if not is_file(file):
        raise UserError(f"start.weights: {path} has no checkpoint '{select}' yet; train it to its end first")
    return file


def _ignorable(found: Mapping[str, Tensor], fresh: tuple[str, ...]) -> set[str]:
    """What the file has and the model hasn't, where the recipe says that it starts anew."""
    return {name for name in found if any(fnmatch(name, pattern) for pattern in fresh)}


def _patches(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resample_patch_embed

    if theirs.shape[:2] != wanted.shape[:2]:
        return None
    return resample_patch_embed(theirs.float(), list(wanted.shape[2:])).to(theirs.dtype)


def _positions(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resample_abs_pos_embed

    if theirs.ndim != 3 or theirs.shape[-1] != wanted.shape[-1]:
        return None
    extra = _extra(wanted.shape[1])
    if _extra(theirs.shape[1]) != extra:  # tokens that stand before the patches in one of them alone
        theirs = theirs[:, _extra(theirs.shape[1]) :]
        theirs = torch.cat([theirs.new_zeros(1, extra, theirs.shape[-1]), theirs], 1)
    side = round((wanted.shape[1] - extra) ** 0.5)
    return resample_abs_pos_embed(theirs, new_size=[side, side], num_prefix_tokens=extra)


def _extra(tokens: int) -> int:
    """How many of them aren't patches, if the patches form a square."""
    return next((extra for extra in range(3) if round((tokens - extra) ** 0.5) ** 2 == tokens - extra), 0)


def _windows(theirs: Tensor, wanted: Tensor) -> Tensor | None:
    from timm.layers import resize_rel_pos_bias_table

    if theirs.shape[-1] != wanted.shape[-1]:
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
