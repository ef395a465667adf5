"""What layers put out on the way to the logits."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from robustvit.models.attention_probe import attention_blocks


@contextmanager
def recording(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Within, the dictionary holds what the modules of these names put out in the last forward pass."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs[name] = output[0] if isinstance(output, tuple) else output

    handles = [model.get_submodule(name).register_forward_hook(partial(keep, name)) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def transformer_blocks(model: nn.Module) -> list[str]:
    """The modules around each attention, by name: what papers call a block."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in attention_blocks(model)))
