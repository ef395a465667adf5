"""What the blocks of a network put out, batch by batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from robustvit.analysis.base import network
from robustvit.core.errors import UserError
from robustvit.data.base import Images
from robustvit.evaluation.attacked_images import clean_images
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import recording
from robustvit.models.layout import feature_blocks, layout_of

RECORDED, SUMMED = 4, 8
"""Bytes of a number: as the network puts it out, and as float64, in which it is summed."""


class BlockOutputs:
    """The blocks of a subject's network, whose outputs are recorded; on adversarial images, those of clean ones too."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.module = subject, network(subject)
        self.names = feature_blocks(self.module)
        self.clean: Images | None = clean_images(subject)
        x, _ = subject.batch(subject.indices[:1])
        outputs = self.outputs(x)
        self.shapes = [tuple(one.shape[1:]) for one in outputs]
        self.sizes = [one[0].numel() for one in outputs]
        layouts = [layout_of(self.module, tuple(one.shape), (x.shape[2], x.shape[3])) for one in outputs]
        self.prefix = [0 if layout is None else layout.prefix for layout in layouts]

    @property
    def kinds(self) -> int:
        """Of images: adversarial ones, or these and the clean ones."""
        return 1 if self.clean is None else 2

    def outputs(self, x: Tensor) -> list[Tensor]:
        """(B, ...) of each block."""
        with torch.no_grad(), recording(self.module, self.names) as seen:
            self.subject(x)
            found = [seen[name][: len(x)] for name in self.names]  # small batches are filled up
        if any(len(one) != len(x) for one in found):
            raise UserError("a block's output has no row for each image")
        return found

    def of(self, indices: Tensor) -> list[list[Tensor]]:
        """Outputs on clean images, if those of the subject are adversarial, and on its own."""
        sources = [None] if self.clean is None else [self.clean, None]
        return [self.outputs(self.subject.batch(indices, source)[0]) for source in sources]

    def rows_in(self, memory: float, sizes: Sequence[int], copies: int = 1) -> int:
        """How many images' features of these sizes fit: as recorded, and as float64 so many times."""
        needed = self.kinds * sum(sizes) * (RECORDED + copies * SUMMED)
        return max(1, min(len(self.subject.indices), int(memory * 1e9 / needed)))
