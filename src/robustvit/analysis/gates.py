"""Which adapter each patch of an image listens to: the maps of TORA-ViT's last figure, and a number for its claim."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustvit.analysis.objects import (
    difference_text,
    inside_of,
    masks_contents,
    mean_with_interval,
    weighted_mean,
    where,
)
from robustvit.analysis.streaming import State, accumulate
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Pictures, Table
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, Positive
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.adapters.base import AdaptedViT
from robustvit.models.adapters.tora import GatedFusion
from robustvit.models.heads import network_of

_BLUE, _RED = (0.13, 0.29, 0.66), (0.70, 0.09, 0.14)


@component("analysis", "gates")
class Gates:
    """How much each patch is taken from the accuracy adapter rather than the robustness adapter, block by block.

    A map is the mean over all queries of the gate of the accuracy adapter; that of the other adapter is 1 minus it. The
    paper's claim, accuracy adapter: context, robustness adapter: object, is tested by the means inside and outside of
    the middle of the image, or of masks.
    """

    masks: Path | None = None
    """An .npy file of shape (images of the split, H, W), above 0 on the object; null: the middle half of each side."""
    shown: Count = 6
    """Images in the pictures."""
    spread: Positive = 0.2
    """Distance from 0.5 at which colors are full, the same for all models so that they can be compared."""

    def contents(self, subject: Subject) -> dict[str, Any]:
        return masks_contents(self.masks)

    def check(self, subject: Subject) -> None:
        inside_of(subject, self.masks, _network(subject).vit.patch_embed.grid_size, "gates.masks")

    def passes(self, subject: Subject) -> int:
        return len(subject.indices)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        maps = self._maps(subject, store)  # (images, blocks, h, w)
        inside = inside_of(subject, self.masks, (maps.shape[2], maps.shape[3]), "gates.masks")
        within, without = weighted_mean(maps, inside), weighted_mean(maps, 1 - inside)  # (images, blocks)
        blocks = range(1, maps.shape[1] + 1)
        rows = tuple(
            (name, f"{float(a.mean()):.3f}", f"{float(b.mean()):.3f}", difference_text(a - b))
            for name, a, b in (
                *((f"block {block}", within[:, block - 1], without[:, block - 1]) for block in blocks),
                ("all blocks", within.mean(1), without.mean(1)),
            )
        )
        columns = ("gate of the accuracy adapter", f"inside {where(self.masks)}", "outside", "difference (95 %)")
        lines = tuple(_line(name, blocks, values) for name, values in (("inside", within), ("outside", without)))
        shown = subject.indices[: self.shown]
        pictures = self._pictures(subject.batch(shown)[0], maps[: len(shown)])
        return Finding(
            "Gates between the adapters",
            f"The part of each patch that comes from the accuracy adapter, {len(maps)} images of "
            f"{subject.images.title}; the other adapter's is 1 minus it. The paper's reading, context for accuracy "
            "and the object for robustness, would make the difference negative. In the pictures red is the accuracy "
            f"adapter, blue the robustness adapter, white 0.5, full colors {self.spread:g} from it.",
            tables=(Table("Mean gate inside and outside", columns, rows),),
            charts=(Chart("Gate of the accuracy adapter by block", "block", lines, y_title="mean gate"),),
            pictures=(
                Pictures(
                    "Image and gate by block",
                    "pictures",
                    ("image", *(f"block {block}" for block in blocks)),
                    tuple(f"image {index}" for index in shown.tolist()),
                ),
            ),
            arrays={"pictures": pictures, "maps": maps.numpy()},
        )

    def _maps(self, subject: Subject, store: Store) -> Tensor:
        network, total = _network(subject), len(subject.indices)
        shape = (total, len(network.adapters), *network.vit.patch_embed.grid_size)
        state: State = {"maps": np.zeros(shape, dtype=np.float32)}

        def add(rows: Tensor) -> int:
            x, _ = subject.batch(subject.indices[rows])
            state["maps"][rows.numpy()] = gate_maps(network, subject, x).float().cpu().numpy()
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "gates", total, subject.quiet)
        return torch.from_numpy(state["maps"])

    def _pictures(self, x: Tensor, maps: Tensor) -> np.ndarray:
        """(images, 1 + blocks, 3, H, W)."""
        side = (maps - 0.5) / self.spread
        enlarged = F.interpolate(side, size=x.shape[2:], mode="nearest").clamp(-1, 1)[
            :, :, None
        ]  # (n, blocks, 1, H, W)
        full = torch.where(enlarged > 0, torch.tensor(_RED).view(3, 1, 1), torch.tensor(_BLUE).view(3, 1, 1))
        colored = 1 - enlarged.abs() * (1 - full)
        return torch.cat([x.float().cpu()[:, None], colored], 1).numpy().astype(np.float32)


def gate_maps(network: AdaptedViT, model: Any, x: Tensor) -> Tensor:
    """(B, blocks, h, w): of what all queries take of a patch, the fraction that comes from the accuracy adapter."""
    maps: list[Tensor] = []

    def keep(fusion: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        gates = fusion.gates(*inputs)  # (2, B, queries, tokens), or (2, B, tokens, 1)
        taken = gates[..., 0] if fusion.softmax == "per_token" else gates.mean(2)
        total = taken.sum(0)
        maps.append(torch.where(total > 0, taken[0] / total, 0.5))  # a patch of which nothing is taken favors neither

    handles = [layer.fusion.register_forward_pre_hook(keep) for layer in network.adapters]  # type: ignore[union-attr]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    height, width = network.vit.patch_embed.grid_size
    patches = torch.stack(maps, 1)[: len(x), :, network.vit.num_prefix_tokens :]
    return patches.reshape(len(x), len(maps), height, width)


def _network(subject: Subject) -> AdaptedViT:
    module = subject.module
    network = network_of(module) if isinstance(module, nn.Module) else None
    gated = isinstance(network, AdaptedViT) and any(isinstance(part, GatedFusion) for part in network.modules())
    if not isinstance(network, AdaptedViT) or not gated:
        raise UserError("gates: the model has no gates between adapters; those with model.adapters: {name: tora} have")
    return network


def _line(name: str, blocks: range, values: Tensor) -> Line:
    """(images, blocks) as a mean with an interval at each block."""
    means = [mean_with_interval(values[:, block - 1]) for block in blocks]
    return Line(name, tuple(map(float, blocks)), tuple(mean for mean, _ in means), tuple(pair for _, pair in means))
