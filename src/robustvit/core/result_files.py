"""A result on disk: result.json, and the outcomes of its images as arrays next to it."""

from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from robustvit.core.errors import UserError
from robustvit.core.files import read_arrays, read_json, read_record, write_arrays, write_json
from robustvit.core.result import VERSION, Outcomes, Result

FILE, OUTCOMES = "result.json", "outcomes.npz"


def write_result(folder: Path, result: Result) -> None:
    """The outcomes first: a result.json means that all is there."""
    write_arrays(folder / OUTCOMES, result.outcomes.arrays())
    write_json(folder / FILE, result.to_dict())


def read_result(folder: Path) -> Result:
    """The result stored in the folder of an evaluation."""
    remedy = "remove it to have it written anew from the ledger"
    content = read_json(folder / FILE)
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise UserError(f"{folder / FILE}: not a whole result of version {VERSION} (but {version!r}); {remedy}")
    arrays = read_arrays(folder / OUTCOMES)
    try:
        outcomes = Outcomes(**arrays)
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder / OUTCOMES}: not the outcomes of a result ({error}); {remedy}") from None
    result: Result = read_record(folder / FILE, "result", _ADAPTER, {"outcomes": outcomes}, remedy)
    return replace(result, folder=str(folder))


_ADAPTER: TypeAdapter[Result] = TypeAdapter(Result)
