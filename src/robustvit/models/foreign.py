"""Checkpoints that others made: which entry holds the weights, under which prefix, what doesn't fit."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.normalize import Normalization

_WRAPPING_KEYS = (
    "state_dict", "model_state_dict", "model", "net", "network", "weights",
    "state_dict_ema", "model_ema", "ema", "best", "last",
)  # fmt: skip
_NORMALIZATION = {"mean": "mean", "mu": "mean", "new_mean": "mean", "std": "std", "sigma": "std", "new_std": "std"}
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


Fitted = tuple[dict[str, Tensor], Normalization | None]
"""Tensors under the model's own names, and a normalization layer's where one was stored with them."""


def find_state(content: Any, key: str | None, path: Path, option: str) -> dict[str, Tensor]:
    """The state dict: the file itself, or what lies under the one key that is usual for it."""
    for part in key.split(".") if key is not None else ():
        if not isinstance(content, Mapping) or part not in content:
            raise UserError(f"{path}: has no weights under '{key}'; there are: {_keys(content)}")
        content = content[part]
    while not _is_state(content):
        entries = {name: entry for name, entry in _items(content) if name in _WRAPPING_KEYS}
        there = [name for name in _WRAPPING_KEYS if _holds_state(entries.get(name))]
        if len(there) > 1:
            raise UserError(f"{path}: holds several sets of weights ({', '.join(there)}); choose with {option}")
        if not there:
            for name, entry in entries.items():
                rest = [key for key, value in _items(entry) if not isinstance(value, Tensor)]
                if 0 < len(rest) < len(entry):
                    raise UserError(f"{path}: '{name}' holds '{rest[0]}' next to its tensors; weights are only tensors")
            raise UserError(
                f"{path}: no state dict found, neither at the top nor under a usual key; there are: {_keys(content)}; "
                f"{option} names one"
            )
        content = entries[there[0]]
    return {str(name): value for name, value in content.items()}


def fit_state(state: Mapping[str, Tensor], model: nn.Module) -> Fitted:
    """Without the prefix (module., model. ...) that comes before the model's own names.

    A model that wraps the network whose weights these are has a prefix before their names.
    """
    path, own = _wrapped_path(state, model), model.state_dict()
    fitted, normalization = _fit(state, model.get_submodule(path))
    below = {name: f"{path}.{name}" if f"{path}.{name}" in own else name for name in fitted}
    return {below[name]: value for name, value in fitted.items()}, normalization


def _wrapped_path(state: Mapping[str, Tensor], model: nn.Module) -> str:
    """The submodule that most of the tensors belong to; "" is the model itself, which comes first."""
    for path, module in model.named_modules():
        own = module.state_dict()
        if 2 * len(own) > len(state) and 2 * max(_prefixes(state, own).values(), default=0) > len(state):
            return str(path)
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
    own, buffers = model.state_dict(), dict(model.named_buffers())
    prefixes = _prefixes(state, own)
    prefix = max(prefixes, key=lambda known: (prefixes[known], -len(known)), default="")
    copies = _copies(state, own, prefix, [known for known in prefixes if prefixes[known] == prefixes[prefix] > 1])
    fitted: dict[str, Tensor] = {}
    stored: dict[str, tuple[float, ...]] = {}
    for key, value in state.items():
        name = key.removeprefix(prefix)
        statistic = _NORMALIZATION.get(key.rpartition(".")[2])
        if key in copies:
            continue
        if statistic and name not in own and value.numel() in (1, 3):
            stored[statistic] = tuple(value.flatten().tolist())
        elif name in own or name not in buffers:  # tables that the model computes itself needn't be loaded
            fitted[name] = value
    for name, value in own.items():  # a counter that files from before 2018 lack, halved or averaged ones make a float
        if name.endswith("num_batches_tracked"):
            kept = fitted.setdefault(name, value)
            if kept.is_floating_point() and kept.shape == value.shape:
                fitted[name] = kept.to(value.dtype)
    if len(stored) == 1:
        there, absent = ("mean", "std") if "mean" in stored else ("std", "mean")
        raise UserError(f"the file has a {there} of its images and no {absent}: both belong into it, or neither")
    return fitted, Normalization(**stored) if stored else None


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


def misfits(state: Mapping[str, Tensor], model: nn.Module, classes_option: str = "--num-classes") -> str:
    """A description of the worst misfits; empty where everything fits."""
    own = model.state_dict()
    both = {name: (state[name], own[name]) for name in own if name in state}

    def different(names: Iterable[str], text: Callable[[Tensor], str]) -> list[str]:
        return [f"'{name}' is {text(state[name])} in the file, {text(own[name])} in the model" for name in names]

    reshaped = [name for name, (theirs, ours) in both.items() if theirs.shape != ours.shape]
    problems = different(reshaped, shape_text)
    problems += different([name for name, pair in both.items() if not _is_alike(*pair)], _kind)
    problems += [
        f"'{name}' holds NaN or infinity" for name, x in state.items() if _is_plain(x) and not x.isfinite().all()
    ]
    for tensors, others, problem in ((own, state, "is not in the file"), (state, own, "has no place in the model")):
        lone = sorted((name for name in tensors if name not in others), key=lambda name: -tensors[name].numel())
        problems += [f"'{name}' ({shape_text(tensors[name])}) {problem}" for name in lone]
    hint = _classes_hint([both[name] for name in reshaped], model, classes_option)
    return shortened(problems, "; ") + hint


def shortened(items: Sequence[str], separator: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return separator.join([*items[:_SHOWN], *more])


def shape_text(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


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


def _items(content: Any) -> list[tuple[Any, Any]]:
    return list(content.items()) if isinstance(content, Mapping) else []


def _is_state(content: Any) -> bool:
    return bool(_items(content)) and all(isinstance(value, Tensor) for _, value in _items(content))


def _holds_state(content: Any) -> bool:
    """Whether a state dict lies here or below."""
    return _is_state(content) or any(_holds_state(value) for key, value in _items(content) if key in _WRAPPING_KEYS)


def _keys(content: Any) -> str:
    names = [str(name) for name in content] if isinstance(content, Mapping) else [f"a {type(content).__name__}"]
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") or "nothing"
