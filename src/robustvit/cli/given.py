"""What the command line says about a model, its images and a threat, opened."""

from typing import Any

from robustvit.cli.options import ThreatOptions
from robustvit.core.component import to_dict
from robustvit.core.config import apply_overrides, validated
from robustvit.core.errors import UserError
from robustvit.core.result import ResultWarning
from robustvit.data.base import AnyDataset, Dataset, Split
from robustvit.data.open import dataset_by_name
from robustvit.evaluation.given import training_images_warning
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.threats import LpBall, Norm


def open_given(
    reference: str, options: ThreatOptions, eps: str | None, eps_needed: bool, has_own_data: bool = False
) -> tuple[ModelRef, list[LpBall], dict[str, Any], list[ResultWarning]]:
    """The model, a threat for each eps, what else `evaluate` and `analyze` take alike, and warnings for the result.

    `has_own_data`: whether the suite brings its images.
    """
    split = validated(Split, options.split, "--split")
    overrides = options.override or []
    of_model = [change for change in overrides if change.startswith("model.")]
    others = [change for change in overrides if change not in of_model]
    changes = tuple(change.removeprefix("model.") for change in of_model)
    ref = resolve_model(reference, options.hints(model=options.model, overrides=changes))
    tree: dict[str, Any] = {"threat": _threat(ref, options.norm, eps, eps_needed)}
    if not has_own_data:
        tree = {"data": _data(ref, options), **tree}
    elif options.data is not None:
        raise UserError("--data: this suite has images of its own; leave --data out")
    known, tree = set(tree), apply_overrides(tree, others)
    if set(tree) != known:
        places = "model." if has_own_data else "data., threat. and model."
        raise UserError(f"-o {others[-1]}: there are settings below {places}")
    if not isinstance(tree["threat"], dict):
        raise UserError(f"-o threat: a map such as {{norm: inf, eps: 8/255}}, not {tree['threat']!r}")
    if tree["threat"].get("eps") is None:
        raise UserError(_WHICH_EPS)
    sizes = str(tree["threat"]["eps"]).split(",")
    threats = [validated(LpBall, {**tree["threat"], "eps": size}, "threat") for size in sizes]
    dataset: Dataset | None = None if has_own_data else validated(AnyDataset, tree["data"], "data")
    warnings = training_images_warning(dataset) if dataset is not None and options.data is None else []
    alike = {"data": dataset, "split": split, "run": options.run or ref.folder, "seed": options.seed}
    return ref, threats, alike | {"batch_size": options.batch_size}, warnings


def threat_of(ref: ModelRef, norm: str | None, eps: str | None) -> LpBall:
    """The run's, changed by what the command line says; an eps is needed where there is no run."""
    tree = _threat(ref, norm, eps, eps_needed=True)
    if tree["eps"] is None:
        raise UserError(_WHICH_EPS)
    made: LpBall = validated(LpBall, tree, "threat")
    return made


_WHICH_EPS = "--eps: how large a change is allowed? such as 8/255"


def _data(ref: ModelRef, options: ThreatOptions) -> Any:
    if options.data is not None:
        return to_dict(dataset_by_name(options.data))
    data = (ref.recipe or {}).get("data")
    if data is None:
        forms = "a name (see robustvit list data), a folder, an .npz or .npy file, tar shards"
        raise UserError(f"--data: which images? {forms}")
    return data


def _threat(ref: ModelRef, norm: str | None, eps: str | None, eps_needed: bool) -> dict[str, Any]:
    threat = {"norm": "inf", "eps": None if eps_needed else 0}
    if ref.recipe is not None and ref.recipe.get("threat") is not None:  # other tasks than classification have none
        of_run = validated(LpBall, ref.recipe.get("threat"), "recipe.threat")
        if norm is not None and validated(Norm, norm, "--norm") != of_run.norm and eps is None:
            raise UserError(f"--norm {norm}: another norm than the run's needs an --eps of its own")
        threat = to_dict(of_run)
    return threat | {key: value for key, value in (("norm", norm), ("eps", eps)) if value is not None}


def timm_preprocessing(ref: ModelRef) -> dict[str, Any] | None:
    """How the images of the model's run were brought to its size, in timm's words."""
    data = None if ref.recipe is None else validated(AnyDataset, ref.recipe.get("data"), "recipe.data")
    preprocess = getattr(data, "preprocess", None)
    return None if preprocess is None else preprocess.timm_config()
