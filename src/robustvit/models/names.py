"""One name space of parameters: those of the network itself, whatever it is wrapped in."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

from torch import nn

from robustvit.models.normalize import backbone_of


def parameter_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter with its name in the file that `save_model` writes, such as `head.weight`."""
    yield from backbone_of(model).named_parameters()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns; `*.head.*` also means the `head` that nothing comes before."""
    return any(fnmatch(name, pattern) or fnmatch(f".{name}", pattern) for pattern in patterns)
