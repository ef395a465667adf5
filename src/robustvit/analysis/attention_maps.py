"""Where attention goes: how far, and to which patches of an image.

Mean attention distance as in An Image is Worth 16x16 Words (Dosovitskiy et al. 2021), rollout as in Quantifying
Attention Flow in Transformers (Abnar and Zuidema 2020).
"""

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.analysis.base import network
from robustvit.analysis.checks import few_images, needing
from robustvit.analysis.pictures import over_image
from robustvit.analysis.streaming import State, accumulate
from robustvit.core.component import component
from robustvit.core.figures import Chart, Heatmap, Line, Pictures
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, Positive
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import ScoreObserver, probing
from robustvit.models.layout import Layout
from robustvit.models.restricted_attention import attention_layouts

COPIES = 3
"""Of the attention of a block, in float64."""


@component("analysis", "attention_maps")
class AttentionMaps:
    """Mean attention distance of each head, attention of the last block and rollout over all blocks as pictures."""

    shown: Count = 6
    """Images in the pictures."""
    memory: Positive = 0.25
    """Gigabytes for the attention of one block."""

    def check(self, subject: Subject) -> None:
        self._layouts(subject)

    def passes(self, subject: Subject) -> int:
        return len(subject.indices) + self.shown

    def __call__(self, subject: Subject, store: Store) -> Finding:
        layouts = self._layouts(subject)
        distances = _Distances(layouts, _heads(subject, layouts))
        steps = torch.split(subject.indices, min(subject.batch_size, distances.rows_in(self.memory)))

        def add(indices: Tensor) -> int:
            x, _ = subject.batch(indices)
            with torch.no_grad(), probing(network(subject), ScoreObserver(distances.see)):
                subject.model(x)
            distances.state["images"] += len(indices)
            return len(indices)

        accumulate(steps, distances.state, add, store, "attention", len(subject.indices), subject.quiet)
        pictures, array = self._pictures(subject, layouts)
        grids = dict.fromkeys(f"{layout.height} x {layout.width}" for _, layout in layouts)
        return Finding(
            "Attention",
            f"{len(subject.indices)} images of {subject.images.title}. The grid of patches is {', then '.join(grids)}. "
            "Distances are between the centers of patches, weighted by attention, as a fraction of the image's side; "
            "tokens without a position on the grid are left out. Maps are of the class token, or of the mean over "
            "patches where there is none; rollout multiplies the attention of all blocks of one grid, each with its "
            "residual path.",
            charts=distances.charts(),
            pictures=(pictures,),
            arrays={"distances": distances.mean(), "maps": array},
        )

    def _layouts(self, subject: Subject) -> tuple[tuple[int, Layout], ...]:
        with needing("shows where attention goes", "eigen_cam shows where the features of other networks lie"):
            return attention_layouts(network(subject), few_images(subject))

    def _pictures(self, subject: Subject, layouts: tuple[tuple[int, Layout], ...]) -> tuple[Pictures, np.ndarray]:
        shown = subject.indices[: self.shown]
        x, _ = subject.batch(shown)
        maps = attention_to_patches(network(subject), x, layouts)
        columns = [over_image(x, one) for one in maps]
        names = tuple(f"image {index}" for index in shown.tolist())
        array = np.stack([x.float().cpu().numpy(), *columns], axis=1).astype(np.float32)
        return Pictures("Attention to patches", "maps", ("image", "last block", "rollout"), names), array


def attention_to_patches(
    module: nn.Module, x: Tensor, layouts: tuple[tuple[int, Layout], ...]
) -> tuple[Tensor, Tensor]:
    """(B, height, width) of the last block, and rolled out over all blocks of its grid."""
    seen: dict[int, Tensor] = {}

    def see(block: int, scores: Tensor, masked: Tensor) -> None:
        seen[block] = scores.float().softmax(-1).mean(1)  # (B, N, N)

    with torch.no_grad(), probing(module, ScoreObserver(see)):
        module(x)
    last, layout = layouts[-1]
    same = [number for number, other in layouts if other == layout]
    return _to_patches(seen[last], layout), _to_patches(rollout([seen[number] for number in same]), layout)


def rollout(attention: list[Tensor]) -> Tensor:
    """(B, N, N) how much of each input token reaches each output token, if attention and residual paths weigh alike."""
    whole = torch.eye(attention[0].shape[-1], device=attention[0].device)
    for one in attention:
        mixed = (one + torch.eye(one.shape[-1], device=one.device)) / 2
        whole = mixed @ whole
    return whole


def _to_patches(attention: Tensor, layout: Layout) -> Tensor:
    """(B, height, width) what the class token attends to, or patches on average."""
    rows = attention[:, : layout.prefix] if layout.prefix else attention
    return rows.mean(1)[:, layout.prefix :].reshape(-1, layout.height, layout.width)


def _heads(subject: Subject, layouts: tuple[tuple[int, Layout], ...]) -> dict[int, int]:
    heads: dict[int, int] = {}
    x, _ = subject.batch(subject.indices[:1])

    def see(block: int, scores: Tensor, masked: Tensor) -> None:
        heads[block] = scores.shape[1]

    with torch.no_grad(), probing(network(subject), ScoreObserver(see)):
        subject.model(x)
    return {number: heads[number] for number, _ in layouts}


class _Distances:
    """Summed over images: attention times distance, by block and head."""

    def __init__(self, layouts: tuple[tuple[int, Layout], ...], heads: dict[int, int]) -> None:
        self._layouts, self._heads = dict(layouts), heads
        self._rows = {number: row for row, number in enumerate(self._layouts)}
        self._apart = {number: apart(layout) for number, layout in layouts}
        self.state: State = {"sums": np.zeros((len(layouts), max(heads.values()))), "images": np.zeros(1)}

    def rows_in(self, memory: float) -> int:
        """How many images' attention fits into so many gigabytes, of one block."""
        largest = max(
            heads * (self._layouts[number].prefix + self._layouts[number].positions) ** 2
            for number, heads in self._heads.items()
        )
        return max(1, int(memory * 1e9) // (COPIES * 8 * largest))

    def see(self, block: int, scores: Tensor, masked: Tensor) -> None:
        if block not in self._layouts:
            return
        prefix = self._layouts[block].prefix
        attention = scores.double().softmax(-1)[..., prefix:, prefix:]  # (B, heads, P, P)
        attention = attention / attention.sum(-1, keepdim=True).clamp_min(1e-30)
        distance = (attention * self._apart[block].to(attention)).sum(-1).mean(-1)  # (B, heads)
        self.state["sums"][self._rows[block], : distance.shape[1]] += distance.sum(0).cpu().numpy()

    def mean(self) -> np.ndarray:
        """(blocks, heads); NaN where a block has fewer heads."""
        mean: np.ndarray = self.state["sums"] / self.state["images"]
        for number, heads in self._heads.items():
            mean[self._rows[number], heads:] = np.nan
        return mean

    def charts(self) -> tuple[Chart | Heatmap, ...]:
        mean = self.mean()
        xs = tuple(float(number + 1) for number in self._layouts)
        over_heads = np.nanmean(mean, axis=1)
        ranges = tuple((float(np.nanmin(row)), float(np.nanmax(row))) for row in mean)
        uniform = tuple(float(one.mean()) for one in self._apart.values())
        lines = (
            Line("mean of heads", xs, tuple(over_heads.tolist()), ranges=ranges),
            Line("uniform attention", xs, uniform, is_reference=True),
        )
        note = "Dotted: the nearest and the farthest head."
        values = tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in mean)
        rows, columns = tuple(f"{x:g}" for x in xs), tuple(str(head + 1) for head in range(mean.shape[1]))
        of_heads = Heatmap(
            "Mean attention distance of heads", rows, columns, values, row_title="block", column_title="head"
        )
        return (Chart("Mean attention distance", "block", lines, in_percent=True, note=note), of_heads)


def apart(layout: Layout) -> Tensor:
    """(P, P) distances between centers of patches, as a fraction of the longer side of the image."""
    rows, columns = torch.arange(layout.positions) // layout.width, torch.arange(layout.positions) % layout.width
    squared = (rows[:, None] - rows).double() ** 2 + (columns[:, None] - columns).double() ** 2
    return squared.sqrt() / max(layout.height, layout.width)
