"""How alike the layers of a network are: correlations of tokens, or CKA where layers differ in shape.

Figures 7 and 31 to 33 of Understanding Robustness of Transformers for Image Classification (Bhojanapalli et al. 2021).
Features are summed up image by image, in memory that a setting bounds: those of 4,096 images would fill a disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robustvit.analysis.base import network
from robustvit.analysis.block_outputs import BlockOutputs
from robustvit.analysis.checks import needing
from robustvit.analysis.similarity_sums import CorrelationSums, KernelSums, MinibatchKernelSums
from robustvit.analysis.streaming import State, accumulate
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Heatmap, Line
from robustvit.core.finding import Finding
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import attention_blocks
from robustvit.models.layout import short_names

Measure = Literal["correlation", "cka"]
MOST_PASSES = 8
"""Of an image for exact CKA; beyond, minibatches estimate it."""
LEAST_IMAGES = 4
"""Of a minibatch, for the unbiased estimate."""
MINIBATCH = 64


@component("analysis", "layer_similarity")
class LayerSimilarity:
    """Correlation of the blocks' outputs over all tokens, class tokens and each image, or linear CKA."""

    measures: Annotated[tuple[Measure, ...], Field(min_length=1)] | None = None
    """null: correlation for a transformer, CKA for other networks, as in the paper."""
    estimator: Literal["auto", "exact", "minibatch"] = "auto"
    """Of CKA: exact needs further passes where the features of all images don't fit into memory; auto: exact up to 8
    passes of each image, else an estimate from minibatches."""
    memory: Annotated[float, Field(gt=0)] = 1.0
    """Gigabytes for features."""

    def check(self, subject: Subject) -> None:
        with needing("compares the outputs of blocks", "confusion and boundary take any model"):
            layers = BlockOutputs(subject)
        if "correlation" in self._measures(subject):
            _groups(layers)
        if "cka" in self._measures(subject) and len(subject.indices) < LEAST_IMAGES:
            raise UserError(f"CKA compares layers over at least {LEAST_IMAGES} images, not {len(subject.indices)}")

    def passes(self, subject: Subject) -> int:
        layers = BlockOutputs(subject)
        work = [_Kernels(layers, self) if name == "cka" else None for name in self._measures(subject)]
        return layers.kinds * sum(len(subject.indices) if one is None else one.passes for one in work)

    def _measures(self, subject: Subject) -> tuple[Measure, ...]:
        if self.measures is not None:
            return self.measures
        try:
            attention_blocks(network(subject))
        except UserError:
            return ("cka",)
        return ("correlation",)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        layers = BlockOutputs(subject)
        said: list[str] = []
        found: list[_Matrix] = []
        for measure in self._measures(subject):
            if measure == "correlation":
                found += _correlations(layers, store, self.memory)
                said.append("Correlation: the absolute value of Pearson's, over all entries of all images at once.")
            else:
                kernels = _Kernels(layers, self)
                found.append(_Matrix("", kernels.matrix(store), list(range(len(layers.names))), measure=kernels.title))
                said.append(kernels.note)
        return _finding(layers, found, f"{len(subject.indices)} images of {subject.images.title}. {' '.join(said)}")


@dataclass(frozen=True)
class _Matrix:
    """Similarities of layers; on adversarial images those on clean ones come first, for each layer once more."""

    what: str
    values: np.ndarray
    numbers: list[int]
    """Of the layers."""
    blocks: str = ""
    """Which blocks, where not all are compared with each other."""
    measure: str = "Correlation"

    @property
    def own(self) -> np.ndarray:
        """On the subject's own images."""
        return self.values[-len(self.numbers) :, -len(self.numbers) :]

    @property
    def across(self) -> np.ndarray:
        """(clean, adversarial)."""
        return self.values[: len(self.numbers), -len(self.numbers) :]

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.measure, self.blocks, self.what)))

    def line(self, values: np.ndarray) -> Line:
        ys = tuple(float(value) if np.isfinite(value) else None for value in values)
        name = ", ".join(filter(None, (self.what or self.measure, self.blocks)))
        return Line(name, tuple(float(number + 1) for number in self.numbers), ys)


@dataclass(frozen=True)
class _Group:
    """Layers of the same shape."""

    numbers: list[int]
    prefix: int
    is_tokens: bool
    sums: dict[str, CorrelationSums] = field(default_factory=dict)

    def add(self, layers: Sequence[Sequence[Tensor]]) -> None:
        chosen = [kind[number] for kind in layers for number in self.numbers]
        for what, sums in self.sums.items():
            parts = [(one[:, : self.prefix] if what == "class token" else one).flatten(1) for one in chosen]
            rows, entries = parts[0].shape
            features = parts[0].new_empty((rows, len(parts), entries), dtype=torch.float64)
            for number, part in enumerate(parts):  # copied once: memory is counted that way
                features[:, number] = part
            sums.add(features)


def _groups(layers: BlockOutputs) -> list[_Group]:
    groups = []
    for shape in dict.fromkeys(layers.shapes):
        numbers = [number for number, other in enumerate(layers.shapes) if other == shape]
        if len(numbers) * layers.kinds < 2:
            continue
        prefix = layers.prefix[numbers[0]]
        group = _Group(numbers, prefix, len(shape) == 2)
        for what in ("all tokens", "class token") if prefix else ("all tokens" if group.is_tokens else "all entries",):
            group.sums[what] = CorrelationSums(len(numbers) * layers.kinds)
        groups.append(group)
    if not groups:
        raise UserError("no two blocks have outputs of the same shape, so that none correlate; compare them by CKA")
    return groups


def _correlations(layers: BlockOutputs, store: Store, memory: float) -> list[_Matrix]:
    groups = _groups(layers)
    rows = min(layers.rows_in(memory, layers.sizes), layers.subject.batch_size)
    steps = torch.split(layers.subject.indices, rows)
    state: State = {
        f"{number}-{what}-{name}": array
        for number, group in enumerate(groups)
        for what, sums in group.sums.items()
        for name, array in sums.state.items()
    }

    def add(indices: Tensor) -> int:
        outputs = layers.of(indices)
        for group in groups:
            group.add(outputs)
        return len(indices)

    subject = layers.subject
    accumulate(steps, state, add, store, "correlation", len(subject.indices), subject.quiet)
    several = sum(len(group.numbers) > 1 for group in groups) > 1
    found = []
    for group in groups:
        blocks = f"blocks {group.numbers[0] + 1} to {group.numbers[-1] + 1}" if several else ""
        found += [_Matrix(what, sums.correlation(), group.numbers, blocks) for what, sums in group.sums.items()]
        whole = next(iter(group.sums.values()))
        found.append(_Matrix("mean over images", whole.mean_of_images(), group.numbers, blocks))
    return found


class _Kernels:
    """CKA of all layers: exact by pairs of blocks of images that fit into memory, or estimated from minibatches."""

    def __init__(self, layers: BlockOutputs, of: LayerSimilarity) -> None:
        self.layers, self.total = layers, len(layers.subject.indices)
        rows = layers.rows_in(of.memory, layers.sizes, copies=2)
        count = -(-self.total // rows)
        exact = rows * (count + count * (count - 1) // 2)
        self.is_exact = of.estimator == "exact" or (of.estimator == "auto" and exact <= MOST_PASSES * self.total)
        self.rows = rows if self.is_exact else max(LEAST_IMAGES, min(rows, MINIBATCH, self.total))
        self.passes = min(MINIBATCH, self.total) + exact if self.is_exact else self.total  # the center is found first
        self.num_layers = len(layers.names) * layers.kinds

    @property
    def title(self) -> str:
        return "Linear CKA" if self.is_exact else "Linear CKA, estimated"

    @property
    def note(self) -> str:
        if self.is_exact:
            return "CKA: linear, of the outputs of whole blocks, exact."
        return f"CKA: linear, of whole blocks, estimated from minibatches of {self.rows} images (unbiased HSIC)."

    def matrix(self, store: Store) -> np.ndarray:
        return self._exact(store) if self.is_exact else self._estimated(store)

    def _features(self, indices: Tensor, center: Sequence[Tensor] | None) -> list[Tensor]:
        flat = []
        for begin in torch.split(indices, self.layers.subject.batch_size):
            outputs = [one for kind in self.layers.of(begin) for one in kind]
            flat.append([one.flatten(1).double() for one in outputs])
        features = [torch.cat(parts) for parts in zip(*flat, strict=True)]
        if center is not None:  # the kernels are centered in the end; this keeps their digits
            features = [one - middle for one, middle in zip(features, center, strict=True)]
        return features

    def _center(self, indices: Tensor) -> list[Tensor]:
        """Of the features of these images, with no more of them in memory than at other times."""
        means: list[Tensor] = []
        for part in torch.split(indices, self.rows):
            sums = [one.sum(0) / len(indices) for one in self._features(part, None)]
            means = [mean + one for mean, one in zip(means, sums, strict=True)] if means else sums
        return means

    def _exact(self, store: Store) -> np.ndarray:
        subject = self.layers.subject
        parts = torch.split(subject.indices, self.rows)
        center = self._center(subject.indices[:MINIBATCH])
        sums = KernelSums(self.num_layers, self.total)
        pairs = [(i, j) for i in range(len(parts)) for j in range(i, len(parts))]
        kept: dict[int, list[Tensor]] = {}

        def add(pair: tuple[int, int]) -> int:
            first, second = pair
            if first not in kept:
                kept.clear()
                kept[first] = self._features(parts[first], center)
            other = kept[first] if second == first else self._features(parts[second], center)
            sums.add(kept[first], other, (first * self.rows, second * self.rows))
            return len(parts[first]) * len(parts[second]) * (1 if first == second else 2)

        accumulate(pairs, sums.state, add, store, "CKA", self.total**2, subject.quiet)
        return sums.cka()

    def _estimated(self, store: Store) -> np.ndarray:
        subject, sums = self.layers.subject, MinibatchKernelSums(self.num_layers)
        count = min(-(-self.total // self.rows), self.total // LEAST_IMAGES)  # alike in size: a rest may be too small
        steps = torch.tensor_split(subject.indices, count)

        def add(indices: Tensor) -> int:
            sums.add(self._features(indices, None))
            return len(indices)

        accumulate(steps, sums.state, add, store, "CKA", self.total, subject.quiet)
        return sums.cka()


def _finding(layers: BlockOutputs, found: Sequence[_Matrix], caption: str) -> Finding:
    charts: list[Chart | Heatmap] = []
    arrays = {}
    compared = [one for one in found if len(one.numbers) > 1]
    lines = [one.line(one.own[:, -1]) for one in compared]
    alike = "" if all(one.measure != "Correlation" for one in compared) else " of the same shape"
    charts.append(Chart(f"Similarity to the last block{alike}", "block", tuple(lines)))
    if layers.clean is not None:
        moved = [one.line(np.diag(one.across)) for one in found]
        charts.append(Chart("Clean against adversarial images, the same block", "block", tuple(moved)))
    for one in compared:
        shown = [("", ("block", "block"), one.own)]
        if layers.clean is not None:
            shown.append((", clean against adversarial", ("clean", "adversarial"), one.across))
        for part, titles, values in shown:
            title = f"{one.title}{part}"
            key = title.lower().replace(" ", "-").replace(",", "")
            names = tuple(str(number + 1) for number in one.numbers)
            charts.append(
                Heatmap(
                    title, names, names, row_title=titles[0], column_title=titles[1], in_percent=False,
                    limits=(0.0, 1.0), array=key,
                )
            )  # fmt: skip
            arrays[key] = values
    blocks = ", ".join(f"{number} {name}" for number, name in enumerate(short_names(layers.names), start=1))
    return Finding("Similarity of layers", f"{caption} Blocks: {blocks}.", charts=tuple(charts), arrays=arrays)
