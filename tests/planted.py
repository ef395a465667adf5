"""Models with masked gradients, each made from a healthy one, and harmless changes that a check must not confuse."""

import copy
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.models.attention_factors import folded, set_attention_factors
from robustvit.models.attention_probe import attention_blocks

Change = Callable[[Tensor], Tensor]
Plant = Callable[[nn.Module], nn.Module]
REFUSED, HARMLESS = "refused", "harmless"


class Wrapped(nn.Module):
    """A model with something before it and something after it."""

    def __init__(self, model: nn.Module, before: Change | None = None, after: Change | None = None) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x if self.before is None else self.before(x))
        return logits if self.after is None else self.after(logits)


def before(change: Change) -> Plant:
    return lambda model: Wrapped(model, before=change).eval()


def after(change: Change) -> Plant:
    return lambda model: Wrapped(model, after=change).eval()


def around(kind: type[nn.Module]) -> Plant:
    """A module that holds the model."""
    return lambda model: kind(model).eval()


def hooked(pattern: str, change: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """change(input, output) of every module whose whole name matches."""

    def plant(model: nn.Module) -> nn.Module:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            return change(args[0], output)

        changed = copy.deepcopy(model)
        found = [module for name, module in changed.named_modules() if re.fullmatch(pattern, name)]
        assert found, f"no module is called {pattern}"
        for module in found:
            module.register_forward_hook(hook)
        return changed

    return plant


def straight_through(change: Change) -> Change:
    """The change with the gradient of the identity."""
    return lambda x: x + (change(x) - x).detach()


class Gradient(torch.autograd.Function):
    """The identity with a backward pass of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor, change: Change) -> Tensor:
        context.change = change
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.change(gradient), None


def with_gradient(change: Change) -> Plant:
    return before(lambda x: Gradient.apply(x, change))


def sharper_attention(times: float, first: int | None = None) -> Plant:
    """All blocks, or the first ones."""

    def plant(model: nn.Module) -> nn.Module:
        changed = copy.deepcopy(model)
        blocks = len(attention_blocks(changed))
        count = blocks if first is None else first
        set_attention_factors(changed, [times] * count + [1.0] * (blocks - count))
        return changed

    return plant


def longer_queries(times: float) -> Plant:
    """The same as weights, which no hook shows."""
    return lambda model: folded(sharper_attention(times)(model))


def rounded(levels: int) -> Change:
    return lambda x: (x * levels).round() / levels


def jpeg_like(x: Tensor) -> Tensor:
    """The coefficients of 8 x 8 cosines in steps of 0.1."""
    k = torch.arange(8, dtype=x.dtype, device=x.device)
    cosines = (math.pi / 8 * (k[None] + 0.5) * k[:, None]).cos() * 0.5
    cosines[0] /= math.sqrt(2)
    blocks = x.unfold(2, 8, 8).unfold(3, 8, 8)
    kept = cosines.T @ ((cosines @ blocks @ cosines.T) * 10).round().div(10) @ cosines
    return kept.transpose(3, 4).reshape(x.shape)


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def resized(x: Tensor) -> Tensor:
    """Smaller by chance, and back at a place by chance."""
    size = x.shape[-1] - int(torch.randint(0, 3, ()))
    small = nn.functional.interpolate(x, size=(size, size), mode="bilinear")
    left, top = (int(torch.randint(0, x.shape[-1] - size + 1, ())) for _ in range(2))
    return nn.functional.pad(small, (left, x.shape[-1] - size - left, top, x.shape[-1] - size - top))


def half_the_columns(gradient: Tensor) -> Tensor:
    return gradient * (torch.arange(gradient.shape[-1]) % 2)


class ShiftedCopies(nn.Module):
    """The largest logits over shifted copies; only the copy that isn't shifted passes a gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        copies = [logits.detach(), *(self.model(x.roll(shift, 3)).detach() for shift in (-1, 1))]
        return torch.stack(copies).amax(0) + logits - logits.detach()


class Ripples(nn.Module):
    """Waves on the logits, too low to change an answer, too steep for a gradient to see anything else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        phases = torch.arange(logits.shape[1], device=x.device)
        waves = (3e3 * x.mean(1).flatten(1)[:, : 4 * logits.shape[1]].unflatten(1, (4, -1)).sum(1) + phases).sin()
        return logits + 0.02 * waves


class NearTheBoundary(nn.Module):
    """The opposite gradient wherever two classes are near each other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        first, second = logits.detach().topk(2, dim=1).values.unbind(1)
        sign = torch.where(first - second < 4, -1.0, 1.0)[:, None]
        return logits.detach() + sign * (logits - logits.detach())


class OnlyAtImages(nn.Module):
    """The right gradient where pixels have the 17 values of the digits, the opposite one elsewhere."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        grid = (x.detach() * 255 / (255 / 16)).round() * (255 / 16)
        known = ((grid.round() / 255 - x.detach()).abs() < 1e-4).flatten(1).all(1)
        logits = self.model(x)
        return logits.detach() + torch.where(known, 1.0, -1.0)[:, None] * (logits - logits.detach())


def nearly_one_hot(logits: Tensor) -> Tensor:
    return 10 * nn.functional.one_hot(logits.argmax(1), logits.shape[1]) + 1e-3 * logits


def class_detached(logits: Tensor) -> Tensor:
    """No gradient where the class 3 is answered."""
    return torch.where(logits.argmax(1, keepdim=True) == 3, logits.detach(), logits)


def class_masked(logits: Tensor) -> Tensor:
    """A class that is never answered."""
    return logits.index_fill(1, torch.tensor([logits.shape[1] - 1]), -1e4)


def in_place(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.round_()
    return x


@dataclass(frozen=True)
class Planted:
    """How to mask the gradients of a model, and what becomes of it."""

    plant: Plant
    outcome: str
    """The warning that catches it, "harmless" or "refused": seen with the ViT of digits/trades."""
    model: str = "ViT"
    """The family whose modules it names: "ViT" stands for all transformers; "any"."""
    is_seen_before: bool = True
    """Whether the warning comes before any attack, and for every ViT."""

    def fits(self, family: str | None) -> bool:
        return self.model == "any" or (family is not None and (self.model == "ResNet") == (family == "ResNet"))


def _same(x: Tensor, output: Tensor) -> Tensor:
    return output.detach()


KINDS: dict[str, Planted] = {
    "attention x 10": Planted(sharper_attention(10), "one-hot-attention", is_seen_before=False),
    "attention x 30": Planted(sharper_attention(30), "one-hot-attention"),
    "attention x 100": Planted(sharper_attention(100), "one-hot-attention"),
    "attention x 3": Planted(sharper_attention(3), HARMLESS, is_seen_before=False),
    "first attention x 100": Planted(sharper_attention(100, first=1), "one-hot-attention"),
    "queries x 30": Planted(longer_queries(30), "one-hot-attention"),
    "MLP detached": Planted(hooked(r".*\.mlp", _same), "wrong-gradients"),
    "first MLP detached": Planted(hooked(r".*blocks\.0\.mlp", _same), "wrong-gradients"),
    "MLP half detached": Planted(hooked(r".*\.mlp", lambda x, out: (out + out.detach()) / 2), "wrong-gradients"),
    "attention detached": Planted(hooked(r".*\.attn", _same), "wrong-gradients"),
    "first block detached": Planted(
        hooked(r".*blocks\.0", lambda x, out: out.detach() + x - x.detach()), "wrong-gradients"
    ),
    "activation detached": Planted(hooked(r".*\.act", _same), "wrong-gradients"),
    "residual branches detached": Planted(hooked(r".*\.bn2", _same), "wrong-gradients", "ResNet"),
    "activations rounded": Planted(hooked(r".*\.act", lambda x, out: (out * 4).round() / 4), "wrong-gradients"),
    "activations rounded, straight-through": Planted(
        hooked(r".*\.act", lambda x, out: straight_through(rounded(4))(out)), "wrong-gradients"
    ),
    "inputs rounded": Planted(before(rounded(15)), "vanishing-gradients", "any"),
    "inputs rounded, straight-through": Planted(before(straight_through(rounded(15))), "wrong-gradients", "any"),
    "inputs binary": Planted(before(lambda x: (x > 0.5).to(x.dtype) + 0 * x), "vanishing-gradients", "any"),
    "JPEG-like rounding": Planted(before(jpeg_like), "vanishing-gradients", "any"),
    "JPEG-like rounding, straight-through": Planted(before(straight_through(jpeg_like)), "wrong-gradients", "any"),
    "inputs flipped, gradients not": Planted(
        before(lambda x: straight_through(lambda z: z.flip(-1))(x.flip(-1))), "wrong-gradients", "any"
    ),
    "shifted copies": Planted(around(ShiftedCopies), "wrong-gradients", "any"),
    "ripples": Planted(around(Ripples), "wrong-gradients", "any"),
    "right at the images only": Planted(around(OnlyAtImages), "wrong-gradients", "any"),
    "reversed near the boundary": Planted(around(NearTheBoundary), "wrong-gradients", "any"),
    "one class detached": Planted(after(class_detached), "black-box-beats-gradients", "any", is_seen_before=False),
    "gradients reversed": Planted(with_gradient(torch.neg), "wrong-gradients", "any"),
    "gradients with noise": Planted(
        with_gradient(lambda g: g + g.abs().mean() * 3 * torch.randn_like(g)), "wrong-gradients", "any"
    ),
    "gradients of every second column": Planted(with_gradient(half_the_columns), "wrong-gradients", "any"),
    "gradients x 1e-35": Planted(with_gradient(lambda g: 1e-35 * g), "vanishing-gradients", "any"),
    "gradients x 3": Planted(with_gradient(lambda g: 3 * g), "wrong-gradients", "any"),
    "gradients not a number": Planted(with_gradient(lambda g: g * torch.nan), "vanishing-gradients", "any"),
    "noise": Planted(before(noisy), "random-outputs", "any"),
    "resized by chance": Planted(before(resized), "random-outputs", "any"),
    "softmax": Planted(after(lambda z: z.softmax(1)), "probabilities", "any"),
    "softmax at temperature 0.05": Planted(after(lambda z: (20 * z).softmax(1)), "probabilities", "any"),
    "logits x 1e4": Planted(after(lambda z: 1e4 * z), "vanishing-gradients", "any"),
    "logits x 1e-6": Planted(after(lambda z: 1e-6 * z), HARMLESS, "any", is_seen_before=False),
    "logits clamped": Planted(after(lambda z: z.clamp(-0.5, 0.5)), "equal-margins", "any"),
    "logits in tanh": Planted(after(lambda z: (3 * z).tanh()), "equal-margins", "any"),
    "logits rounded": Planted(after(lambda z: (z * 4).round() / 4), "vanishing-gradients", "any"),
    "logits nearly one-hot": Planted(after(nearly_one_hot), "equal-margins", "any"),
    "a class masked": Planted(after(class_masked), HARMLESS, "any", is_seen_before=False),
    "one-hot": Planted(after(lambda z: nn.functional.one_hot(z.argmax(1), z.shape[1]).float()), REFUSED, "any"),
    "detached": Planted(after(torch.detach), REFUSED, "any"),
    "inputs changed in place": Planted(before(in_place), REFUSED, "any"),
    "half precision": Planted(after(torch.Tensor.half), REFUSED, "any"),
}
"""Ways to mask gradients, by name."""

TWINS: dict[str, Plant] = {
    "as it is": lambda model: model,
    "log-softmax": after(lambda z: z.log_softmax(1)),
    "logits x 3": after(lambda z: 3 * z),
    "inputs clamped": before(lambda x: x.clamp(0, 1)),
    "inputs resized": before(lambda x: nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")[..., ::2, ::2]),
    "attention x 2": sharper_attention(2),
}
"""Changes that mask nothing."""
