"""Where the strongest feature of a layer lies in the image: EigenCAM (Muhammad and Yeasin 2020).

Figure 3 of Vision Transformers Beat WideResNets on Small Scale Datasets Adversarial Robustness shows it on adversarial
images; the sign of the component, which the paper leaves open, is chosen here so that strong activations are positive.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.analysis.base import network
from robustvit.analysis.checks import few_images, needing
from robustvit.analysis.objects import difference_text, inside_of, masks_contents, weighted_mean, where
from robustvit.analysis.pictures import over_image
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.base import Classifier
from robustvit.core.component import component
from robustvit.core.errors import UserError, nearest
from robustvit.core.figures import Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import recording
from robustvit.models.layout import Layout, feature_blocks, layout_of


@component("analysis", "eigen_cam")
class EigenCam:
    """Pictures of the first principal component of a layer's features, over the image that they are of."""

    layer: str | None = None
    """A module by its name; null: norm1 of a ViT's last block, or the last block whose output is a grid."""
    shown: Count = 6
    """Images in the pictures; the table is about all."""
    masks: Path | None = None
    """An .npy file of shape (images of the split, H, W), above 0 on the object; null: the middle half of each side."""

    def check(self, subject: Subject) -> None:
        layer = self._layer(subject)
        maps, _ = maps_of(network(subject), subject, few_images(subject), layer)
        inside_of(subject, self.masks, (maps.shape[1], maps.shape[2]), "eigen_cam.masks")

    def contents(self, subject: Subject) -> dict[str, Any]:
        return masks_contents(self.masks)

    def passes(self, subject: Subject) -> int:
        return len(subject.indices) + 2

    def __call__(self, subject: Subject, store: Store) -> Finding:
        layer, module, total = self._layer(subject), network(subject), len(subject.indices)
        _, layout = maps_of(module, subject, subject.batch(subject.indices[:1])[0], layer)
        state: State = {"maps": np.zeros((total, layout.height, layout.width))}

        def add(rows: Tensor) -> int:
            found, _ = maps_of(module, subject, subject.batch(subject.indices[rows])[0], layer)
            state["maps"][rows.numpy()] = found.cpu().numpy()
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "EigenCAM", total, subject.quiet)
        maps = torch.from_numpy(state["maps"])
        shown = subject.indices[: self.shown]
        x, _ = subject.batch(shown)
        original, _ = subject.batch(shown, clean_images(subject))
        columns = [over_image(x, maps[: len(shown)].to(x.device)), original.float().cpu().numpy()]
        rows = tuple(f"image {index}" for index in shown.tolist())
        return Finding(
            "EigenCAM",
            f"The first principal component of the features of {layer.removeprefix('backbone.')} ({layout.height} x "
            f"{layout.width} positions) over the image, each from its smallest to its largest value. Its sign is that "
            f"of strong activations. {len(maps)} images of {subject.images.title}.",
            tables=(self._over_the_object(subject, maps),),
            pictures=(Pictures("EigenCAM", "pictures", ("EigenCAM", "original image"), rows),),
            arrays={"pictures": np.stack(columns, axis=1).astype(np.float32), "maps": maps.numpy()},
        )

    def _over_the_object(self, subject: Subject, maps: Tensor) -> Table:
        """By chance the means are equal, and as many maxima lie inside as positions do."""
        inside = inside_of(subject, self.masks, (maps.shape[1], maps.shape[2]), "eigen_cam.masks").double()
        low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
        scaled = (maps - low) / (high - low).clamp_min(1e-300)
        within, without = weighted_mean(scaled, inside), weighted_mean(scaled, 1 - inside)
        largest = inside.expand_as(maps).flatten(1).gather(1, maps.flatten(1).argmax(1, keepdim=True))
        row = (
            f"{float(within.mean()):.3f}",
            f"{float(without.mean()):.3f}",
            difference_text(within - without),
            percent(float(largest.mean())),
            percent(float(inside.mean())),
        )
        of = where(self.masks)
        columns = (f"mean inside {of}", "outside", "difference (95 %)", "largest value inside", "positions inside")
        return Table("Maps from 0 to 1 inside and outside", columns, (row,))

    def _layer(self, subject: Subject) -> str:
        x, _ = subject.batch(subject.indices[:1])
        with needing("shows the features of the last block", "name a layer of its own with eigen_cam.layer"):
            return layer_on_grid(network(subject), x, self.layer)


def maps_of(module: nn.Module, call: Classifier, x: Tensor, layer: str) -> tuple[Tensor, Layout]:
    """(B, h, w) of a layer's features, and where they lie in the image; `call` passes images through the module."""
    with torch.no_grad(), recording(module, [layer]) as seen:
        call(x)
        features = seen[layer][: len(x)]
    layout = layout_of(module, tuple(features.shape), (x.shape[2], x.shape[3]))
    assert layout is not None, "checked before"
    return eigen_cam(layout.as_map(features)), layout


def layer_on_grid(module: nn.Module, x: Tensor, layer: str | None = None) -> str:
    """The name of a layer whose features lie on a grid of positions: the one asked for, or the usual one."""
    known = dict(module.named_modules())
    if layer is not None:
        found = [name for name in (layer, f"backbone.{layer}") if name in known]
        if not found:
            raise UserError(f"eigen_cam.layer: no module '{layer}'{nearest(layer, list(known))}")
        candidates = found[:1]
    else:
        blocks = feature_blocks(module)[::-1]
        norms = [f"{name}.norm1" for name in blocks if f"{name}.norm1" in known and f"{name}.attn" in known]
        candidates = [*norms, *blocks]
    with torch.no_grad(), recording(module, candidates) as seen:
        module(x)
    for name in candidates:
        layout = None
        if name in seen and len(seen[name]) == len(x):
            layout = layout_of(module, tuple(seen[name].shape), (x.shape[2], x.shape[3]))
        if layout is not None and layout.positions > 1:
            return name
    raise UserError(
        f"{', '.join(candidates[:3])}: its features don't lie on a grid of positions in the image; name another layer"
    )


def eigen_cam(features: Tensor) -> Tensor:
    """(B, C, h, w) to (B, h, w): positions along the first right singular vector of the centered features."""
    vectors = features.double().flatten(2).mT  # (B, positions, C)
    centered = vectors - vectors.mean(1, keepdim=True)
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    component = (centered @ directions[:, 0, :, None]).squeeze(2)  # (B, positions)
    strength = vectors.norm(dim=2)
    is_strong = strength >= strength.median(dim=1, keepdim=True).values
    towards = (component * is_strong).sum(1) / is_strong.sum(1)
    signed: Tensor = component * torch.where(towards < 0, -1.0, 1.0)[:, None]
    return signed.reshape(len(features), *features.shape[2:])
