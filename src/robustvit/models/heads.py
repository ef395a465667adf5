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
    """Of a network that is called with `head=` and one of its `head_names`; the first is its output without."""
    return tuple(getattr(network_of(model), "head_names", ())) if isinstance(model, nn.Module) else ()


def check_head(model: object, head: str) -> None:
    """A UserError where the model has no such head."""
    names = head_names(model)
    if not names:
        name = type(network_of(model) if isinstance(model, nn.Module) else model).__name__
        raise UserError(f"head '{head}': the model {name} has one output and no heads; leave it out")
    if head not in names:
        raise UserError(f"head '{head}': the model has no such head{nearest(head, list(names))}")


def through(model: nn.Module, head: str | None) -> nn.Module:
    """The model whose output is that of this head; for None and for its first head, the very model."""
    if head is None:
        return model
    check_head(model, head)
    model = whole(model)
    return model if head == head_names(model)[0] else Head(model, head)


def whole(model: nn.Module) -> nn.Module:
    """The model that a head belongs to."""
    return model.model if isinstance(model, Head) else model


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, also of a model that is seen through one of its heads."""
    return backbone_of(whole(model))
