"""What an attack adds to an image, as pictures, and whether it follows the patches of a vision transformer.

Figures 1 and 5 of Understanding Robustness of Transformers for Image Classification (Bhojanapalli et al. 2021), and
Figure 8 of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023).
"""

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.analysis.attack_losses import attack_name, attacked_pair
from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.ascent import PGD
from robustvit.attacks.base import AnyAttack
from robustvit.attacks.hooks import passes_of
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Pictures, Table
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, mean_interval
from robustvit.core.streams import sample_streams
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.heads import network_of
from robustvit.threats import LpBall

ATTACK, NOISE = "attack", "random noise"


@component("analysis", "perturbations")
class Perturbations:
    """Pictures of perturbations, and how much of their change lies on the borders of patches."""

    attack: AnyAttack = PGD(20)
    """That makes the perturbations, unless the images are adversarial ones already."""
    shown: Count = 6
    """Images in the pictures."""
    patch: Count | None = None
    """Pixels of a patch's side; null: the model's own. A network without patches is measured only where it is given."""
    threat: LpBall | None = None
    """Of the attack; null: that of the call."""

    def check(self, subject: Subject) -> None:
        threat = required(self.threat, "perturbations")
        if clean_images(subject) is None:
            check_attacking(subject, self.attack, threat)
        side = self._patch(subject)
        height, width = subject.batch(subject.indices[:1])[0].shape[2:]
        if side is not None and not 2 <= side < min(height, width):
            raise UserError(
                f"perturbations.patch: from 2 to below the side of the images ({height} x {width}), not {side}"
            )

    def passes(self, subject: Subject) -> int | None:
        each = passes_of(self.attack) if clean_images(subject) is None else 0
        return None if each is None else len(subject.indices) * each

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, side, total = required(self.threat, "perturbations"), self._patch(subject), len(subject.indices)
        height, width = subject.batch(subject.indices[:1])[0].shape[2:]
        kept = np.zeros((min(self.shown, total), 3, height, width), dtype=np.float32)
        state: State = {ATTACK: np.zeros((total, side or 1)), NOISE: np.zeros((total, side or 1)), "kept": kept}

        def add(rows: Tensor) -> int:
            delta, noise = self._perturbed(subject, subject.indices[rows], threat)
            at = rows.numpy()
            for name, one in ((ATTACK, delta), (NOISE, noise)):
                if side is not None:
                    state[name][at] = change_by_offset(one, side).cpu().numpy()
            first = at[at < len(kept)]
            kept[first] = delta[: len(first)].float().cpu().numpy()
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "perturbations", total, subject.quiet)
        return self._finding(subject, threat, side, state)

    def _patch(self, subject: Subject) -> int | None:
        if self.patch is not None or not isinstance(subject.module, nn.Module):
            return self.patch
        size = getattr(getattr(network_of(subject.module), "patch_embed", None), "patch_size", None)
        side = size[0] if isinstance(size, tuple | list) else size
        return side if isinstance(side, int) and side > 1 else None

    def _perturbed(self, subject: Subject, indices: Tensor, threat: LpBall) -> tuple[Tensor, Tensor]:
        """What the attack adds, and uniform noise of the ball."""
        x, x_adv, _ = attacked_pair(subject, self.attack, indices, threat)
        control = sample_streams(subject.seed, indices).child("perturbations").to(x.device)
        return x_adv - x, threat.random_start(x, control) - x

    def _finding(self, subject: Subject, threat: LpBall, side: int | None, state: State) -> Finding:
        shown = subject.indices[: len(state["kept"])]
        x = subject.batch(shown, clean_images(subject))[0].float().cpu().numpy()
        scale = threat.eps if threat.norm == "inf" else float(max(np.abs(state["kept"]).max(), 1e-30))
        columns = ("image", "perturbation", "in gray", "adversarial image")
        delta = state["kept"]
        gray = np.repeat(as_picture(delta, scale).mean(1, keepdims=True), 3, 1)
        pictures = np.stack([x, as_picture(delta, scale), gray, (x + delta).clip(0, 1)], axis=1)
        names = tuple(f"image {index}" for index in shown.tolist())
        measured = self._measured(side, state) if side is not None else ((), (), "")
        unknown = (
            " The network has no patches of its own; patch=N measures their borders anyhow." if side is None else ""
        )
        arrays = {"pictures": pictures.astype(np.float32)}
        if side is not None:
            arrays |= {"change": state[ATTACK], "change-of-noise": state[NOISE]}
        return Finding(
            "Perturbations",
            f"What {attack_name(subject, self.attack)} adds within {threat}. {len(subject.indices)} images of "
            f"{subject.images.title}. In the pictures [-{scale:.3g}, {scale:.3g}] is [0, 1], so that gray is no change."
            f"{measured[2]}{unknown}",
            tables=measured[0],
            charts=measured[1],
            pictures=(Pictures("Perturbations", "pictures", columns, names),),
            arrays=arrays,
        )

    def _measured(self, side: int, state: State) -> tuple[tuple[Table, ...], tuple[Chart, ...], str]:
        offsets, half = tuple(map(float, range(side))), side // 2
        rows, lines = [], []
        for name in (ATTACK, NOISE):
            change = state[name]
            means = change.mean(0)
            intervals = tuple(
                mean_interval(column, 0.0, np.inf) or (m, m) for column, m in zip(change.T, means, strict=True)
            )
            lines.append(Line(name, offsets, tuple(means.tolist()), intervals))
            more = change[:, 0] - change[:, half]
            low, high = mean_interval(more, -np.inf, np.inf) or (more.mean(), more.mean())
            rows.append(
                (name, f"{means[0]:.3f}", f"{means[half]:.3f}", f"{more.mean():+.3f} ({low:+.3f} to {high:+.3f})")
            )
        columns = (
            "perturbation",
            "on the borders of patches",
            "on a grid shifted by half a patch",
            "difference (95 %)",
        )
        chart = Chart(
            "Change between neighbors, by position in the patch", "pixels from the border", tuple(lines),
            y_title="change",
            note="1 is the mean over all pairs of neighboring pixels; 0 pixels are the borders of patches.",
        )  # fmt: skip
        said = f" Change is the absolute difference between neighbors, 1 on average over all; patches of {side} pixels."
        return (Table("Change between neighboring pixels", columns, tuple(rows)),), (chart,), said


def as_picture(delta: np.ndarray, scale: float) -> np.ndarray:
    """[-scale, scale] as [0, 1]: no change is 0.5."""
    picture: np.ndarray = ((delta + scale) / (2 * scale)).clip(0, 1)
    return picture


def change_by_offset(delta: Tensor, side: int) -> Tensor:
    """(B, side) mean absolute difference across lines that lie so many pixels from the borders of patches.

    Relative to the mean over all lines, rows and columns alike; 1 everywhere where nothing changes at all.
    """
    delta = delta.double()
    totals = torch.zeros(len(delta), side, dtype=torch.float64, device=delta.device)
    counts = torch.zeros(side, dtype=torch.float64, device=delta.device)
    for dim in (2, 3):
        change = delta.diff(dim=dim).abs().mean(dim=(1, 5 - dim))  # (B, lines): line i lies before pixel i + 1
        offset = (torch.arange(change.shape[1], device=delta.device) + 1) % side
        totals.index_add_(1, offset, change)
        counts.index_add_(0, offset, torch.ones_like(change[0]))
    mean = totals.sum(1, keepdim=True) / counts.sum()
    return torch.where(mean > 0, totals / counts / mean.clamp_min(1e-300), 1.0)
