"""How far the largest score before each softmax leads, and what floating point then leaves of the others.

Figure 2 of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (Jain and Dutta 2024), and
the shares that underflow, which the paper claims and doesn't count.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.analysis.base import Chart, Finding, Table, percent
from robustvit.attacks.attention_scaling import module_of
from robustvit.core.component import component
from robustvit.evaluation.attention import read_factors
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import Scaling, attention_blocks, probing

BINS = 40
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@component("analysis", "attention_scores")
class AttentionScores:
    """Gaps between the largest and the second-largest score, and underflow in the softmax, block by block."""

    factors: Annotated[float, Field(gt=0)] | Path | None = None
    """Also with attention scaled: one factor for all blocks, or the factors.json of an evaluation."""

    def __call__(self, subject: Subject) -> Finding:
        module = module_of(subject)
        blocks = [name.removeprefix("backbone.") for name in attention_blocks(module)]
        cases: dict[str, Tensor] = {"as it is": torch.ones(len(blocks))}
        if self.factors is not None:
            cases["scaled"] = _factors(self.factors, len(blocks))
        seen = {name: _collect(subject, module, factors) for name, factors in cases.items()}
        charts, arrays = [], {}
        for number, name in _shown(blocks):
            both = [found.gaps[number] for found in seen.values()]
            edges = np.linspace(0, max(float(np.quantile(np.concatenate(both), 0.995)), 1e-6), BINS + 1)
            series = []
            for case, found in seen.items():
                shares = np.histogram(found.gaps[number].clip(max=edges[-1]), edges)[0] / len(found.gaps[number])
                series.append((case, tuple(edges[:-1].tolist()), tuple(shares.tolist())))
                arrays[f"gaps-{number}-{case.replace(' ', '-')}"] = found.gaps[number]
            charts.append(
                Chart(f"Block {number + 1} ({name})", "largest minus second-largest score", tuple(series), True)
            )
        rows = tuple(
            (f"{number + 1} {blocks[number]}", case, f"{np.median(found.gaps[number]):.2f}",
             f"{np.quantile(found.gaps[number], 0.99):.1f}", *(percent(share) for share in found.zeros[number]))
            for number in range(len(blocks))
            for case, found in seen.items()
        )  # fmt: skip
        columns = ("block", "attention", "median gap", "99 % below", *(f"zero in {name}" for name in PRECISIONS))
        return Finding(
            "Scores before the softmax",
            f"{len(subject.indices)} images. A gap is that of one image, head and query. An entry of the softmax is "
            "zero where its exponential underflows; no gradient passes there.",
            tables=(Table("Gaps, and entries of the softmax that underflow", columns, rows),),
            charts=tuple(charts),
            arrays=arrays,
        )


class _Seen:
    """What passed through the blocks."""

    def __init__(self, blocks: int) -> None:
        self.parts: list[list[np.ndarray]] = [[] for _ in range(blocks)]
        self.zero = np.zeros((blocks, len(PRECISIONS)))
        self.count = np.zeros(blocks)

    @property
    def gaps(self) -> list[np.ndarray]:
        return [np.concatenate(parts) for parts in self.parts]

    @property
    def zeros(self) -> np.ndarray:
        return self.zero / self.count[:, None]

    def see(self, block: int, scores: Tensor) -> Tensor:
        if scores.shape[-1] > 1:
            first, second = scores.float().topk(2, dim=-1).values.unbind(-1)
            self.parts[block].append((first - second).flatten().cpu().numpy())
        for number, precision in enumerate(PRECISIONS.values()):
            # the exponential as a softmax takes it, of the distance to the largest
            exponentials = (scores.float() - scores.float().amax(-1, keepdim=True)).exp().to(precision)
            self.zero[block, number] += float((exponentials == 0).sum())
        self.count[block] += scores.numel()
        return scores


def _collect(subject: Subject, module: nn.Module, factors: Tensor) -> _Seen:
    seen = _Seen(len(factors))
    look: Callable[[int, Tensor], Tensor] = seen.see
    with torch.no_grad(), probing(module, Scaling(factors), look):
        for part in subject.indices.split(min(subject.batch_size, 64)):
            subject.model(subject.batch(part)[0])
    return seen


def _factors(given: float | Path, count: int) -> Tensor:
    return torch.full((count,), given) if isinstance(given, float | int) else torch.tensor(read_factors(given))


def _shown(blocks: list[str]) -> list[tuple[int, str]]:
    """The first, the middle and the last, as the paper shows 1, 6 and 12 of 12."""
    chosen = sorted({0, (len(blocks) - 1) // 2, len(blocks) - 1})
    return [(number, blocks[number]) for number in chosen]
