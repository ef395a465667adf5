"""Adversarial images on disk: parts while the suite runs, one file once all were verified again in other batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from robustvit.attacks.base import Classifier, check_pixels
from robustvit.core.adversarial import FILE, REMEDY, Adversarial
from robustvit.core.binary import INDICES, ArrayType, read_arrays
from robustvit.core.checksum import KEY, row_checksums, with_checksum
from robustvit.core.component import to_dict
from robustvit.core.config import validated
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import is_file, write_atomic, write_json
from robustvit.core.progress import say
from robustvit.core.readers import unreadable
from robustvit.core.result import Result, ResultWarning
from robustvit.core.streams import seeded_globals
from robustvit.core.world import model_device, resolve_device
from robustvit.data.base import Split, as_pixels
from robustvit.data.open import images_from
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.subject import checked_logits
from robustvit.losses import is_correct, is_fooled
from robustvit.models import eval_mode
from robustvit.threats import LpBall

if TYPE_CHECKING:
    from robustvit.evaluation.attacked import AttackedEvaluation


PARTS = "adversarial-parts"
"""The folder of what was kept so far."""


class Saver:
    """A sink that keeps every fooled image, each batch in a file of its own, so that a kill loses none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PARTS

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None:
        if not bool(fooled.any()):
            return
        index = batch[fooled.cpu()].numpy()
        images = x_adv[fooled].detach().float().cpu().numpy()
        path = self._folder / f"{index[0]:08d}.npz"  # an image is fooled once, so no other part has this name
        sums = row_checksums({"index": index, "images": images}, self._folder.parent)
        write_atomic(path, lambda file: np.savez(file, index=index, images=images, checksum=sums))

    def known(self) -> set[int]:
        return {int(i) for _, index, _ in self.parts() for i in index}

    def parts(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Name, indices and images of each part."""
        for path in sorted(self._folder.glob("*.npz")):
            part = self.part(path.name)
            if part is not None:
                yield path.name, *part

    def part(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Indices and images; None, and the file is removed, if it isn't as it was written."""
        path = self._folder / name
        try:
            arrays = read_arrays(path, {"index": INDICES, "images": ArrayType("f", 4), KEY: INDICES})
            is_whole = np.array_equal(arrays.pop(KEY), row_checksums(arrays, self._folder.parent))
        except UserError:
            is_whole = False
        if is_whole:
            return arrays["index"], arrays["images"]
        if path.is_dir():
            raise unreadable(path, "a folder, where a file is expected", "remove it")
        path.unlink(missing_ok=True)  # as if it had never been
        say(f"{path}: damaged or of another evaluation, removed; its images are attacked again")
        return None

    def clear(self) -> None:
        for path in self._folder.glob("*.npz"):
            path.unlink()
        if self._folder.is_dir():
            self._folder.rmdir()


def save_images(
    folder: Path, evaluation: "AttackedEvaluation", ledger: Ledger, smaller: Result | None
) -> list[ResultWarning]:
    """Every adversarial image as one file; what was fooled without being kept then is attacked once more."""
    saver, carried = Saver(folder), evaluation.evaluator.carried
    if smaller is not None and smaller.folder is not None:
        _carry_saved(Path(smaller.folder), saver, set(carried.images))
    known = saver.known()
    evaluation.attack_again(ledger, saver, [i for i in evaluation.subject.indices.tolist() if i not in known])
    size = evaluation.subject.batch_size // 2 or 2
    labels, rows = _verified(saver, evaluation, size)
    sums = [one for images in _chosen(saver, rows) for one in row_checksums({"images": images}).tolist()]
    facts = {**_facts(evaluation, labels, size), "checksums": sums}
    write_json((folder / FILE).with_suffix(".json"), with_checksum(facts))
    write_atomic(folder / FILE, lambda file: _write(file, saver, rows))
    lost = len(saver.known()) - len(labels)
    saver.clear()
    if not lost:
        return []
    observation = f"{lost} adversarial images fool only in the batch that found them, and were not saved"
    return [ResultWarning("not-saved", observation)]


def _verified(saver: Saver, evaluation: "AttackedEvaluation", size: int) -> tuple[dict[int, int], dict[str, list[int]]]:
    """What fools in batches of this size too: labels by image, and rows by part."""
    subject, threat = evaluation.subject, evaluation.threat
    labels: dict[int, int] = {}
    rows_of: dict[str, list[int]] = {}
    with evaluation.judged_model():
        for name, index, images in saver.parts():
            rows_of[name] = []
            for rows in torch.split(torch.arange(len(index)), size):
                chosen = torch.from_numpy(index)[rows]
                x, y = subject.batch(chosen)
                x_adv = torch.from_numpy(images)[rows].to(x.device, x.dtype)
                with torch.no_grad(), seeded_globals(subject.seed, "saved", name):
                    fooled = is_fooled(subject.model(x_adv), y) & threat.contains(x, x_adv)
                for row, image, label, fools in zip(*(v.tolist() for v in (rows, chosen, y, fooled)), strict=True):
                    if fools and image not in labels:  # a kill may have left an image in two parts
                        labels[image] = label
                        rows_of[name].append(row)
    return labels, rows_of


def _facts(evaluation: "AttackedEvaluation", labels: dict[int, int], batch_size: int) -> dict[str, Any]:
    subject, evaluator = evaluation.subject, evaluation.evaluator
    return {
        "images": len(labels),
        "threat": to_dict(evaluator.threat),
        "quantized": evaluator.quantized,
        "suite": evaluation.plan.name,
        "notes": evaluation.notes(),
        "seed": subject.seed,
        "data": subject.images.title,
        "weights_sha256": subject.fingerprint(),
        "verified_in_batches_of": batch_size,
        "indices": list(labels),
        "labels": list(labels.values()),
    }


def _write(file: BinaryIO, saver: Saver, rows: dict[str, list[int]]) -> None:
    """Part after part, because all of them may not fit into memory."""
    shape = next((images.shape[1:] for _, _, images in saver.parts()), (3, 0, 0))
    header = {"descr": "<f4", "fortran_order": False, "shape": (sum(map(len, rows.values())), *shape)}
    np.lib.format.write_array_header_1_0(file, header)
    for images in _chosen(saver, rows):
        file.write(images.tobytes())


def _chosen(saver: Saver, rows: dict[str, list[int]]) -> Iterator[np.ndarray]:
    for name, _, images in saver.parts():
        yield np.ascontiguousarray(images[rows[name]], "<f4")


def saved_batches(file: str | Path, saved: Adversarial, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices, images and labels, checked to be as they were saved."""
    for begin in range(0, len(saved), size):
        rows = slice(begin, begin + size)
        changed = row_checksums({"images": saved.images[rows]}) != saved.facts["checksums"][rows]
        if changed.any():
            problem = f"the pixels of image {saved.index[rows][changed][0]} were changed after they were saved"
            raise unreadable(file, problem, REMEDY)
        images = torch.from_numpy(saved.images[rows].copy())
        check_pixels(images)
        yield torch.from_numpy(saved.index[rows]), images, torch.from_numpy(saved.labels[rows])


def in_memory_only(result: Result) -> Result:
    """A result whose folder will be gone, with the adversarial images that lie there."""
    if result.folder is None:
        return result
    saved = Adversarial.load(Path(result.folder) / FILE)
    return replace(result, folder=None, kept_images=replace(saved, images=np.array(saved.images)))


def _carry_saved(folder: Path, saver: Saver, wanted: set[int]) -> None:
    """Images that were fooled at a smaller eps, from where they were saved."""
    if is_file(folder / FILE):
        for index, images, labels in saved_batches(folder / FILE, Adversarial.load(folder / FILE), 256):
            fresh = torch.tensor([int(i) in wanted for i in index], dtype=torch.bool)
            saver.offer(index, images, images, labels, images, fresh)


@dataclass(frozen=True)
class Verdict:
    """How a saved set fares against a model; the last three are None where the clean images weren't given."""

    images: int
    fooled: int
    threat: LpBall
    inside: int | None
    """Of the images, how many lie within the threat."""
    right: int | None
    """How many clean images the model gets right."""
    fooled_of_right: int | None
    notes: tuple[str, ...] = ()
    """What the evaluation that made them said of how they were judged."""


def verify(
    file: str | Path,
    model: Classifier,
    *,
    data: Any = None,
    split: Split = "test",
    batch_size: int = 128,
    device: str = "auto",
) -> Verdict:
    """Judge the images of `evaluate(..., save_images=True)` on a model; with `data`, also against the clean images."""
    saved = Adversarial.load(file)
    threat: LpBall = validated(LpBall, saved.facts.get("threat"), f"{Path(file).with_suffix('.json')}: threat")
    check_counts(batch_size=batch_size)
    place = resolve_device(device, model)
    clean = None if data is None else images_from(data, split)
    if clean is not None and len(saved) and int(saved.index.max()) >= len(clean):
        raise UserError(f"{clean.title} has {len(clean)} images, the saved set names image {saved.index.max()}")
    before = model_device(model)
    if isinstance(model, torch.nn.Module):
        model = model.to(place)
    fooled, counts = 0, torch.zeros(3, dtype=torch.int64)
    with eval_mode(model), torch.no_grad():
        for index, x_adv, y in saved_batches(file, saved, batch_size):
            falls = is_fooled(_logits(model, x_adv.to(place), y), y.to(place)).cpu()
            fooled += int(falls.sum())
            if clean is None:
                continue
            images, labels = clean.take(index)
            if not torch.equal(labels, y) or images.shape != x_adv.shape:
                raise UserError(f"{clean.title}: not the images that {file} was made from ({saved.facts.get('data')})")
            x = as_pixels(images)
            knows = is_correct(_logits(model, x.to(place), y), y.to(place)).cpu()
            counts += torch.stack([threat.contains(x, x_adv), knows, knows & falls]).sum(1)
    if isinstance(model, torch.nn.Module) and before is not None:
        model.to(before)
    inside, right, both = (None, None, None) if clean is None else counts.tolist()
    notes = tuple(map(str, saved.facts.get("notes", ())))
    return Verdict(len(saved), fooled, threat, inside, right, both, notes)


def _logits(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = checked_logits(model, x)
    if int(y.max()) >= logits.shape[1]:
        raise UserError(f"the model's outputs {tuple(logits.shape)} don't fit labels up to {int(y.max())}")
    return logits
