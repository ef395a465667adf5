"""The handwritten digits inside scikit-learn: 1,797 gray images of 8x8 (Alpaydin and Kaynak 1998), no download."""

from typing import ClassVar

import torch

from robustvit.core.component import component
from robustvit.core.streams import seeded_subset
from robustvit.data.arrays import InMemory
from robustvit.data.base import Images, Split
from robustvit.data.select import Selection, selected


@component("data", "digits")
class Digits:
    """Gray levels 0..16 as three equal channels; 360 images, drawn once and for all, are for testing."""

    select: Selection | None = None
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        from sklearn.datasets import load_digits

        bundle = load_digits()
        gray = torch.from_numpy(bundle.images * (255 / 16)).round().to(torch.uint8)  # (1797, 8, 8)
        labels = torch.from_numpy(bundle.target).long()
        tested = torch.zeros(len(labels), dtype=torch.bool)
        tested[seeded_subset(len(labels), 360, 0, "digits/test")] = True
        chosen = tested == (split == "test")
        pixels = gray[chosen].unsqueeze(1).expand(-1, 3, -1, -1)
        return selected(InMemory(pixels, labels[chosen], f"digits/{split}", 10), self.select)
