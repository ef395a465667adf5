"""Checkpoints that others made: which entry holds the weights, under which prefix, what doesn't fit."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.create import ModelSettings
from robustvit.models.normalize import Normalized

_WRAPPING_KEYS = (
    "state_dict", "model_state_dict", "model", "net", "network", "weights",
    "state_dict_ema", "model_ema", "ema", "best", "last",
)  # fmt: skip
_MEAN_NAMES, _STD_NAMES = ("mean", "mu", "new_mean"), ("std", "sigma", "new_std")
_WIDE_RESNETS = {
    r"\bblock1\.layer\.": "groups.0.",  # Hendrycks et al. 2019, TRADES
    r"\bblock2\.layer\.": "groups.1.",
    r"\bblock3\.layer\.": "groups.2.",
    r"\blayer\.(\d)\.block\.": r"groups.\1.",  # Gowal et al. 2020, Wang et al. 2023
    r"(groups\..*)\b(bn1|batchnorm_0)\.": r"\1norm1.",
    r"(groups\..*)\b(bn2|batchnorm_1)\.": r"\1norm2.",
    r"\b(bn1|batchnorm)\.": "norm.",
    r"\b(init_conv|conv_0)\.": "conv1.",
    r"\bconv_1\.": "conv2.",
    r"\bconvShortcut\.": "shortcut.",
    r"\blogits\.": "fc.",
}
"""What others call the layers of ours."""
_SHOWN = 3


class Normalization(NamedTuple):
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return " and ".join(",".join(f"{value:.4g}" for value in values) for values in self)

    def agrees(self, other: "Normalization") -> bool:
        """To what people write down of such numbers; one number means three equal ones."""
        pairs = [
            pair
            for ours, theirs in zip(self, other, strict=True)
            for pair in zip(*(values * (3 // len(values)) for values in (ours, theirs)), strict=True)
        ]
        return all(abs(a - b) < 1e-3 for a, b in pairs)


@dataclass(frozen=True)
class Fitted:
    """Tensors under the model's own names, and a normalization layer's where one was stored with them."""

    state: dict[str, Tensor]
    normalization: Normalization | None


def find_state(content: Any, key: str | None, path: Path, option: str) -> dict[str, Tensor]:
    """The state dict: the file itself, or what lies under the one key that is usual for it."""
    if key is not None:
        for part in key.split("."):
            if not isinstance(content, Mapping) or part not in content:
                raise UserError(f"{path}: has no weights under '{key}'; there are: {_keys(content)}")
            content = content[part]
    while not _is_state(content):
        there = [name for name in _WRAPPING_KEYS if isinstance(content, Mapping) and _holds(content.get(name))]
        if len(there) > 1:
            raise UserError(f"{path}: holds several sets of weights ({', '.join(there)}); choose with {option}")
        if not there:
            mixed = [name for name in _WRAPPING_KEYS if isinstance(content, Mapping) and _is_mixed(content.get(name))]
            if mixed:
                other = next(name for name, value in content[mixed[0]].items() if not isinstance(value, Tensor))
                raise UserError(f"{path}: '{mixed[0]}' holds '{other}' next to its tensors; weights are tensors alone")
            raise UserError(
                f"{path}: no state dict found, neither at the top nor under a usual key; there are: {_keys(content)}; "
                f"{option} names one"
            )
        content = content[there[0]]
    return {str(name): value for name, value in content.items()}


def fit_state(state: Mapping[str, Tensor], model: nn.Module) -> Fitted:
    """Without the prefix (module., model. ...) that comes before the model's own names.

    A model that wraps the network whose weights these are has a prefix before their names.
    """
    path = _wrapped_path(state, model)
    fitted = _fit(state, model.get_submodule(path))
    if not path:
        return fitted
    own = model.state_dict()
    below = {name: f"{path}.{name}" if f"{path}.{name}" in own else name for name in fitted.state}
    return Fitted({below[name]: value for name, value in fitted.state.items()}, fitted.normalization)


def _wrapped_path(state: Mapping[str, Tensor], model: nn.Module) -> str:
    """The submodule that most of the tensors belong to; "" is the model itself, which comes first."""
    path: str
    for path, module in model.named_modules():
        own = module.state_dict()
        if 2 * len(own) > len(state) and 2 * max(_prefixes(state, own).values(), default=0) > len(state):
            return path
    return ""


def _prefixes(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Counter[str]:
    """How many keys are names of the model after each prefix."""
    prefixes: Counter[str] = Counter()
    for key in state:
        for begin in (0, *(i + 1 for i, sign in enumerate(key) if sign == ".")):
            prefixes[key[:begin]] += key[begin:] in own
    return prefixes


def _fit(state: Mapping[str, Tensor], model: nn.Module) -> Fitted:
    state = _renamed(state, model)
    own = model.state_dict()
    derived = {name: buffer for name, buffer in model.named_buffers() if name not in own}
    prefixes = _prefixes(state, own)
    prefix = max(prefixes, key=lambda known: (prefixes[known], -len(known)), default="")
    copies = _copies(state, own, prefix, [known for known in prefixes if prefixes[known] == prefixes[prefix] > 1])
    fitted: dict[str, Tensor] = {}
    mean = std = None
    for key, value in state.items():
        if key in copies:
            continue
        name = key.removeprefix(prefix) if key.startswith(prefix) else key
        last = key.rpartition(".")[2]
        if name not in own and value.numel() in (1, 3) and last in _MEAN_NAMES:
            mean = tuple(value.flatten().tolist())
        elif name not in own and value.numel() in (1, 3) and last in _STD_NAMES:
            std = tuple(value.flatten().tolist())
        elif name in own or name not in derived:  # tables that the model computes itself needn't be loaded
            fitted[name] = value
    for name, value in own.items():  # a counter that files from before 2018 lack, halved or averaged ones make a float
        if name.endswith("num_batches_tracked"):
            kept = fitted.get(name, value)
            fitted[name] = kept if kept.shape != value.shape or not kept.is_floating_point() else kept.to(value.dtype)
    if (mean is None) != (std is None):
        there, absent = ("mean", "std") if std is None else ("std", "mean")
        raise UserError(f"the file tells a {there} of its images and no {absent}: both belong into it, or neither")
    return Fitted(fitted, Normalization(mean, std) if mean and std else None)


def _renamed(state: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    from robustvit.models.wide_resnet import WideResNet

    if not isinstance(model, WideResNet):
        return state
    if any("init_conv." in key for key in state) and not model.same_padding:
        raise UserError(
            "the file's WideResNet is of the kind of Gowal et al., whose convolutions of stride 2 pad on one side; "
            "set model.settings.same_padding: true"
        )
    renamed = {}
    for key, value in state.items():
        if "sub_block1." in key:  # of TRADES' network, which never calls it
            continue
        for theirs, ours in _WIDE_RESNETS.items():
            key = re.sub(theirs, ours, key)
        renamed[key] = value
    return renamed


def _copies(state: Mapping[str, Tensor], own: Mapping[str, Tensor], prefix: str, prefixes: Iterable[str]) -> set[str]:
    """The keys of the same network once more: the robustness library stores it for the model and for its attacker."""
    keys: set[str] = set()
    names = [name for name in own if prefix + name in state]
    for other in prefixes:
        if other == prefix or any(other + name not in state for name in names):
            continue
        unequal = [name for name in names if not torch.equal(state[prefix + name], state[other + name])]
        if unequal:
            raise UserError(
                f"the file holds two networks that differ ('{prefix}{unequal[0]}' and '{other}{unequal[0]}'); "
                "save the one that is meant to a file of its own"
            )
        keys |= {other + name for name in names}
    return keys


def normalization(given: ModelSettings, stored: Normalization | None, model: Normalized, path: Path) -> Normalization:
    """The user's or the file's, which must not disagree; without either there is no guess."""
    if (given.mean is None) != (given.std is None):
        raise UserError("mean and std go together: give both or neither")
    if given.mean is None or given.std is None:
        if stored is None:
            of_timm = Normalization(*(tuple(values.flatten().tolist()) for values in (model.mean, model.std)))
            raise UserError(
                f"{path}: doesn't tell how its images were normalized; give --mean and --std: 0 and 1 for a model of "
                f"pixels in [0, 1], {of_timm} if it was trained with timm's own for '{given.name}'"
            )
        return stored
    wanted = Normalization(given.mean, given.std)
    if stored is not None and not stored.agrees(wanted):
        raise UserError(f"{path}: was stored with the mean and std {stored}, not {wanted}")
    return wanted


def misfits(state: Mapping[str, Tensor], model: nn.Module, classes_option: str = "--num-classes") -> str:
    """A description of the worst misfits; empty where everything fits."""
    own = model.state_dict()
    other = [name for name in own if name in state and state[name].shape != own[name].shape]
    absent = [name for name in own if name not in state]
    excess = [name for name in state if name not in own]
    problems = [f"'{name}' is {_shape(state[name])} in the file, {_shape(own[name])} in the model" for name in other]
    odd = [name for name in own if name in state and not _is_alike(state[name], own[name])]
    problems += [f"'{name}' is {_kind(state[name])} in the file, {_kind(own[name])} in the model" for name in odd]
    plain = [name for name in state if _is_plain(state[name])]
    problems += [f"'{name}' holds NaN or infinity" for name in plain if not state[name].isfinite().all()]
    problems += [f"'{name}' ({_shape(own[name])}) is not in the file" for name in _by_size(absent, own)]
    problems += [f"'{name}' ({_shape(state[name])}) has no place in the model" for name in _by_size(excess, state)]
    if not problems:
        return ""
    rest = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
    return (
        "; ".join(problems[:_SHOWN])
        + rest
        + _classes_hint([(state[name], own[name]) for name in other], model, classes_option)
    )


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_quantized


def _is_alike(theirs: Tensor, ours: Tensor) -> bool:
    """Real numbers for real numbers, of any precision, and counts for counts; nothing sparse, quantized or complex."""
    return _is_plain(theirs) and theirs.is_floating_point() == ours.is_floating_point() and not theirs.is_complex()


def _kind(tensor: Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else "sparse "
    return f"{layout}{str(tensor.dtype).removeprefix('torch.')}"


def _classes_hint(pairs: list[tuple[Tensor, Tensor]], model: nn.Module, option: str) -> str:
    """Where only the head has another number of rows, it was trained for another number of classes."""
    classes = getattr(model, "num_classes", None)
    rows = {theirs.shape[:1] for theirs, ours in pairs if ours.shape[:1] == (classes,)}
    alike = all(theirs.shape[1:] == ours.shape[1:] for theirs, ours in pairs)
    return f"; is it a model of {rows.pop()[0]} classes ({option})?" if len(rows) == 1 and alike else ""


def _by_size(names: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted(names, key=lambda name: -tensors[name].numel())


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def _is_state(content: Any) -> bool:
    return isinstance(content, Mapping) and bool(content) and all(isinstance(v, Tensor) for v in content.values())


def _is_mixed(content: Any) -> bool:
    return isinstance(content, Mapping) and any(isinstance(value, Tensor) for value in content.values())


def _holds(content: Any) -> bool:
    """Whether a state dict lies here or below."""
    return _is_state(content) or (isinstance(content, Mapping) and any(_holds(content.get(k)) for k in _WRAPPING_KEYS))


def _keys(content: Any) -> str:
    names = [str(name) for name in content] if isinstance(content, Mapping) else [f"a {type(content).__name__}"]
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") or "nothing"
