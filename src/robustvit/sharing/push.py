"""What is uploaded, written to a folder; and the upload of that folder."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import write_json, write_text
from robustvit.core.progress import say
from robustvit.core.result import Result
from robustvit.core.result_files import FILE, read_result
from robustvit.core.run import versions
from robustvit.models.export import NotInTimmError, export_model
from robustvit.models.hub import CONFIG, OWN, RECIPE, WEIGHTS
from robustvit.models.normalize import Normalized
from robustvit.models.reference import ModelRef
from robustvit.models.weights import save_model
from robustvit.models.zoo import PREFIX, zoo_result
from robustvit.sharing.card import model_card

CARD = "README.md"


def push(ref: ModelRef, repository: str, *, private: bool = False, **options: Any) -> str:
    """Upload a model to the hub; returns its address. `options` are those of `write_repository`."""
    from huggingface_hub import HfApi

    check_repository(repository)
    with TemporaryDirectory() as folder:
        write_repository(ref, repository, Path(folder), **options)
        try:
            api = HfApi()
            address = api.create_repo(repository, exist_ok=True, private=private)
            message = f"Weights and card by robustvit {versions()['robustvit']}"
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
            return str(address)
        except Exception as error:  # of the network, the login, the rights: whatever the client runs into
            raise UserError(
                f"{repository}: could not be uploaded ({first_line(error)}); is `hf auth login` done?"
            ) from error


def write_repository(
    ref: ModelRef,
    repository: str,
    folder: Path,
    *,
    license: str | None = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> Path:
    """All files of the repository: weights, configuration, recipe and card."""
    check_repository(repository)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: isn't empty; all of it would be part of the repository, so choose another folder")
    results, model = results_of(ref), ref.module()
    if not isinstance(model, Normalized):
        raise UserError(f"{ref.source}: only a model of robustvit's own can be pushed")
    folder.mkdir(parents=True, exist_ok=True)
    not_in_timm = ""
    try:
        export_model(model, folder, preprocessing)
    except NotInTimmError as error:
        not_in_timm = error.reason
        say(f"{ref.source}: {not_in_timm}, so that what is written can be loaded by robustvit alone")
        save_model(model, folder / WEIGHTS)
        write_json(folder / CONFIG, {OWN: versions()["robustvit"], "model": to_dict(model.settings)})
    if ref.recipe is not None:
        write_text(folder / RECIPE, yaml.safe_dump(ref.recipe, sort_keys=False))
    write_text(folder / CARD, model_card(ref, model, results, repository, license, not_in_timm))
    return folder


def results_of(ref: ModelRef) -> list[Result]:
    """Of these very weights."""
    if ref.source.startswith(PREFIX):
        return [zoo_result(ref.source)]
    if ref.run is None:
        raise UserError(f"{ref.source}: push takes a run folder or zoo:NAME, whose results become the card")
    folders = sorted(path.parent for path in ref.run.evaluations.glob(f"*/{FILE}"))
    results = [result for result in map(read_result, folders) if _is_of(result, ref)]
    if not results:
        raise UserError(
            f"{ref.source}: has no result of these weights for the card; evaluate them first: "
            f"robustvit evaluate {ref.source}"
        )
    return results


def _is_of(result: Result, ref: ModelRef) -> bool:
    return bool(result.provenance.checkpoint.get("sha256") == ref.checkpoint["sha256"])


def check_repository(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{name}: no name of a repository, OWNER/NAME ({first_line(error)})") from None
    if "/" not in name:
        raise UserError(f"{name}: no name of a repository; expected OWNER/NAME")
