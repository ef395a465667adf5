"""Corruptions of ImageNet-C as an augmentation."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.numbers import UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import AnyAugmentation, OnTop, levels, like, scaled, whole
from robustvit.data.corruptions.base import ParameterSet, corrupted, parameters_for
from robustvit.data.corruptions.choice import Frost, Severities, Which, chosen_corruptions


@component("augmentation", "corruptions")
class Corruptions(OnTop):
    """One of several corruptions at random, on some of the images; types used here are no test of generalization."""

    which: Which = "extra"
    """`standard`: the 15 of ImageNet-C; `extra`: the 4 that it has for validation; `all`; or a list of names."""
    severities: Severities = (1, 2, 3)
    """One of these for each image."""
    probability: UnitInterval = 0.5
    """That an image is changed."""
    parameters: Literal["auto"] | ParameterSet = "auto"
    """Whose constants; auto: CIFAR-10-C's up to 32 pixels, ImageNet-C's above."""
    frost: Frost = "drawn"
    """Textures of frost: robustvit's own, or a folder with the published files."""
    base: AnyAugmentation | None = None
    """Comes before."""

    def on_top(self, images: Tensor, random: SampleStreams) -> Tensor:
        parameters = parameters_for(*images.shape[2:]) if self.parameters == "auto" else self.parameters
        corruptions = chosen_corruptions(self.which, self.frost)
        changes = random.uniform((), at="change") < self.probability
        kinds = random.integers(len(corruptions) * len(self.severities), (), at="kind").masked_fill(~changes, -1)
        made, pixels = images.clone(), whole(levels(images))
        for kind in torch.unique(kinds[changes]).tolist():
            rows = (kinds == kind).nonzero().squeeze(1)
            which, level = divmod(kind, len(self.severities))
            streams = random[rows].child("corruption")
            changed = corrupted(pixels[rows], corruptions[which], self.severities[level], parameters, streams)
            made[rows] = like(images, changed)
        return made

    def scaled(self, intensity: float) -> "Corruptions":
        base = None if self.base is None else scaled(self.base, intensity)
        return replace(self, probability=self.probability * intensity, base=base)
