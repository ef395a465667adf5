"""What a plan has to know of the data: how many training images of which size."""

from dataclasses import dataclass

import torch

from robustvit.core.errors import UserError
from robustvit.data.base import Images
from robustvit.data.mixture import Mixture
from robustvit.models.normalize import backbone_of
from robustvit.training.opening import open_images
from robustvit.training.recipe import Phase, Recipe


@dataclass(frozen=True)
class TrainingData:
    """The images that are trained on; `pictures` where they are here."""

    count: int
    held: int
    img_size: int
    pictures: Images | None = None

    def steps(self, phase: Phase) -> int:
        return phase.epochs * self._mixture(phase).steps_per_epoch

    def rows(self, phase: Phase) -> int:
        """Images of a step."""
        return self._mixture(phase).rows * (1 + phase.repeats)

    def _mixture(self, phase: Phase) -> Mixture:
        images, generated, ratio = range(self.count), None, 0.0  # only their number is asked for
        if phase.generated is not None:
            generated, ratio = images, phase.generated.ratio
        return Mixture(images, phase.batch_size, 0, generated=generated, ratio=ratio)  # type: ignore[arg-type]


def open_data(recipe: Recipe, images: int | None) -> TrainingData:
    """The recipe's own, or so many `images` where the data are elsewhere."""
    held = recipe.validation.hold_out
    if images is not None:
        if images <= held:
            problem = f"the recipe holds out {held} of them; say how many there are in all"
            raise UserError(f"{images} training images: {problem}")
        return TrainingData(min(recipe.train_images or images, images - held), held, _usual_size(recipe))
    try:
        pictures, _ = open_images(recipe)
    except UserError as error:
        raise UserError(f"{error}\n--images N (of sweep: --training-images N) plans without the data") from None
    size = pictures.take(torch.tensor([0]))[0].shape[-1]
    return TrainingData(len(pictures), held, size, pictures)


def _usual_size(recipe: Recipe) -> int:
    """By the settings of the model or the data, or as the model was made."""
    preprocess = getattr(recipe.data, "preprocess", None)
    size = recipe.model.img_size or getattr(preprocess, "size", None)
    if size is None:
        with torch.device("meta"):
            size = backbone_of(recipe.model.build()).pretrained_cfg["input_size"][-1]  # type: ignore[index]
    return int(size)
