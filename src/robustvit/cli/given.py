"""What the command line says about a model, its images and a threat, opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustvit.cli.options import parse_numbers
from robustvit.core.component import to_dict
from robustvit.core.config import apply_overrides, validated
from robustvit.core.errors import UserError
from robustvit.data.base import AnyDataset, Split
from robustvit.data.open import dataset_by_name
from robustvit.models.reference import ModelHints, ModelRef, resolve_model
from robustvit.threats import LpBall, Norm


@dataclass(frozen=True)
class Given:
    data: str | None
    split: str
    norm: str | None
    eps: str | None
    overrides: Sequence[str]
    model: str | None
    num_classes: int | None
    img_size: int | None
    mean: str | None
    std: str | None
    random_weights: bool
    checkpoint: str | None
    weights_key: str | None

    @property
    def wanted_split(self) -> Split:
        found: Split = validated(Split, self.split, "--split")
        return found

    def opened(self, what: str, eps_needed: bool = True) -> tuple[ModelRef, Any, list[LpBall], list[str]]:
        """The model, the data set, a threat for each eps, and what the result should say."""
        of_model = [change for change in self.overrides if change.startswith("model.")]
        others = [change for change in self.overrides if change not in of_model]
        found = resolve_model(what, self._hints(of_model))
        _ = self.wanted_split
        data = to_dict(dataset_by_name(self.data)) if self.data is not None else (found.recipe or {}).get("data")
        if data is None:
            raise UserError(
                "--data: which images? a name (see robustvit list data), a folder, an .npz or .npy file, tar shards"
            )
        tree = apply_overrides({"data": data, "threat": self._threat(found, eps_needed)}, others)
        if set(tree) != {"data", "threat"}:
            raise UserError(f"-o {others[-1]}: there are settings below data., threat. and model.")
        if tree["threat"].get("eps") is None:
            raise UserError("--eps: how large a change is allowed? such as 8/255")
        sizes = str(tree["threat"]["eps"]).split(",")
        threats = [validated(LpBall, {**tree["threat"], "eps": size}, "threat") for size in sizes]
        dataset = validated(AnyDataset, tree["data"], "data")
        notes = []
        if self.data is None and not dataset.has_splits:
            notes.append("the data of this run has no test split: these are images that it was trained on")
        return found, dataset, threats, notes

    def _hints(self, of_model: Sequence[str]) -> ModelHints:
        return ModelHints(
            model=self.model,
            num_classes=self.num_classes,
            img_size=self.img_size,
            mean=parse_numbers(self.mean, "--mean"),
            std=parse_numbers(self.std, "--std"),
            random_weights=self.random_weights,
            checkpoint=self.checkpoint,
            weights_key=self.weights_key,
            overrides=tuple(change.removeprefix("model.") for change in of_model),
            command_line=True,
        )

    def _threat(self, found: ModelRef, eps_needed: bool) -> dict[str, Any]:
        of_run = None if found.recipe is None else validated(LpBall, found.recipe.get("threat"), "recipe.threat")
        stored = {"norm": "inf", "eps": None if eps_needed else 0, **(to_dict(of_run) if of_run else {})}
        norm = None if self.norm is None else validated(Norm, self.norm, "--norm")
        if norm is not None and self.eps is None and of_run is not None and norm != of_run.norm:
            raise UserError(f"--norm {norm}: another norm than the run's needs an --eps of its own")
        given = {"norm": self.norm, "eps": self.eps}
        return {key: stored[key] if value is None else value for key, value in given.items()}
