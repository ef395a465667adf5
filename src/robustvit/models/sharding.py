"""Weights spread over processes (FSDP2): each holds a part of every tensor; blocks are gathered while they compute.

torch's part of it takes a second to import, so that only those wait for it who shard.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from robustvit.core.world import World
from robustvit.models.heads import network_of
from robustvit.models.layout import feature_blocks
from robustvit.models.normalize import Normalized


def shard(model: Normalized, world: World) -> None:
    """In place, block by block; gradients are then means over the processes."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    world.barrier()  # connects them
    kind = torch.device(world.device).type
    group: Any = dist.new_group(backend="nccl" if kind == "cuda" else "gloo", timeout=world.timeout)
    mesh = DeviceMesh.from_group(group, kind)
    for name in feature_blocks(model):
        fully_shard(model.get_submodule(name), mesh=mesh)
    fully_shard(model.backbone, mesh=mesh)


def is_sharded(model: object) -> bool:
    return isinstance(model, nn.Module) and _is_sharded(network_of(model))


def _is_sharded(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _sharded(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if _is_sharded(module)]


@contextmanager
def keeping_gathered(model: nn.Module) -> Iterator[None]:
    """Within, what is gathered stays so: one gather for all passes of a search."""
    modules = _sharded(model)
    _set_resharding(modules, False)
    try:
        yield
    finally:
        _set_resharding(modules, True)
        for module in modules:
            module.reshard()


def _set_resharding(modules: list[Any], wanted: bool) -> None:
    for module in modules:
        module.set_reshard_after_forward(wanted, recurse=False)
        module.set_reshard_after_backward(wanted, recurse=False)


def mapped(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same nested value with everything that is neither a dictionary nor a list changed; keys make its path."""
    if isinstance(value, dict):
        return {key: mapped(item, change, f"{path}/{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, change, f"{path}/{number}") for number, item in enumerate(value)]
    return change(path, value)


def is_spread(value: object) -> bool:
    """Whether it is a tensor of which this process has a part."""
    return isinstance(value, Tensor) and hasattr(value, "placements")


def gathered(value: Any) -> Any:
    """The same nested value with whole tensors in place of sharded ones; every process must call it."""
    return mapped(value, lambda path, item: item.full_tensor() if is_spread(item) else item)


def scattered(value: Any, like: Any) -> Any:
    """This process's part of a whole tensor, as `like` is sharded; anything of another shape is as it was."""
    if is_spread(value) or not (is_spread(like) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
