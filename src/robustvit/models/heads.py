"""Models with several outputs: which there are, and the model as seen through one of them."""

from torch import Tensor, nn

from robustvit.core.errors import UserError, nearest
from robustvit.models.normalize import backbone_of


class Head(nn.Module):
    """The model through one of its heads; a model of its own for whoever attacks, judges or stores it."""

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.training = model.training

    def extra_repr(self) -> str:
        return f"head={self.head!r}"

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x, head=self.head)
        return logits


def head_names(model: object) -> tuple[str, ...]:
    """Of a network with an attribute `head_names`, which it is called with as `head=`; the first is its output."""
    return tuple(getattr(backbone_of(model), "head_names", ())) if isinstance(model, nn.Module) else ()


def through(model: nn.Module, head: str | None, option: str = "head") -> nn.Module:
    """The model whose output is that of this head; for None and for its first head, the very model."""
    if head is None:
        return model
    names = head_names(model)
    if not names:
        raise UserError(f"{option} {head}: the model {type(backbone_of(model)).__name__} has one output and no heads")
    if head not in names:
        raise UserError(f"{option} {head}: the model has no such head{nearest(head, list(names))}")
    return model if head == names[0] else Head(model, head)


def whole(model: object) -> object:
    """The model that a head belongs to."""
    return model.model if isinstance(model, Head) else model
