"""What a model's reference says of itself: its data, its threat and its checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robustvit.attacks.base import Classifier
from robustvit.core.config import validated
from robustvit.core.errors import UserError
from robustvit.core.files import is_file
from robustvit.core.result import ResultWarning
from robustvit.data.base import AnyDataset, Dataset
from robustvit.models import ModelRef, resolve_model, through
from robustvit.models.heads import check_head
from robustvit.models.weights import load_facts
from robustvit.threats import LpBall


class Given(NamedTuple):
    """What a reference such as a run folder says of itself, where the caller doesn't."""

    model: Classifier
    data: Any
    threat: LpBall | None
    checkpoint: dict[str, Any]
    warnings: tuple[ResultWarning, ...] = ()
    """The data may have no images but those that the model was trained on."""


def resolve_given(model: Any, data: Any, threat: LpBall | None, head: str | None = None) -> Given:
    """The model through one of its heads, and the data and the threat of its run for what is None."""
    ref = resolve_model(model) if isinstance(model, str | Path | ModelRef) else None
    if ref is None and not callable(model):
        raise UserError(f"model: a run folder, a name, an nn.Module or a callable, not {type(model).__name__}")
    recipe = {} if ref is None or ref.recipe is None else ref.recipe
    warnings = []
    if data is None:
        data = recipe.get("data")
        if data is None:
            raise UserError("data: which images? a name such as 'cifar10', a pair (x, y), a torch Dataset, a path")
        warnings += training_images_warning(validated(AnyDataset, data, "recipe.data"))
    if threat is None and recipe.get("threat") is not None:
        threat = validated(LpBall, recipe["threat"], "recipe.threat")
    if ref is None:
        return Given(_through(model, head), data, threat, {})
    return Given(_through(ref.module(), head), data, threat, ref.checkpoint, tuple(warnings))


def _through(model: Any, head: str | None) -> Any:
    if head is not None:
        check_head(model, head)  # a bare callable has none
    return model if head is None else through(model, head)


def training_images_warning(data: Dataset) -> list[ResultWarning]:
    if data.has_splits:
        return []
    observation = "the data of this run has no test split: these are images that it was trained on"
    advice = "conclude nothing about new images; evaluate data with a test split (--data)"
    return [ResultWarning("training-images", observation, advice)]


def recipe_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """That the weights were trained by, as their file tells; empty where it doesn't."""
    path = checkpoint.get("path")
    recipe = load_facts(Path(path)).get("recipe") if path and is_file(Path(path)) else None
    return recipe if isinstance(recipe, Mapping) else {}
