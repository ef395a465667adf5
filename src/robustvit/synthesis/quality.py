"""How good generated images are: distances to real ones, agreement with their labels, uniqueness; as a finding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.errors import UserError, check_counts
from robustvit.core.figures import Pictures, Table, percent
from robustvit.core.files import hash8, is_folder
from robustvit.core.finding import Finding, interval_text, write_finding
from robustvit.core.numbers import wilson_interval
from robustvit.core.result import Measure
from robustvit.core.run import RunFolder, command, versions
from robustvit.core.streams import seeded_order
from robustvit.core.world import resolve_device
from robustvit.data.base import Images, as_pixels, check_labels, choose_images, class_names
from robustvit.data.generated import GeneratedImages
from robustvit.data.open import images_from
from robustvit.evaluation.subject import checked_logits
from robustvit.models.modes import eval_mode
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.synthesis.features import Features, InceptionFeatures, ModelFeatures, PixelFeatures, extract
from robustvit.synthesis.frechet import Moments, frechet_distance, precision_and_recall

SUBSETS = 5
"""Disjoint ones, over which the spread of a distance is measured."""
MOST = 50_000
"""Images of a set; FID is defined with so many."""
MOST_NEIGHBORS = 10_000
"""Images of a set that precision and recall compare, whose time grows with the square."""
_COLUMNS = 8
"""Pictures of a class, as many as a page is wide."""


@dataclass(frozen=True)
class _Chosen:
    """Some images of a data set."""

    name: str
    images: Images
    rows: Tensor


@dataclass(frozen=True)
class _Set(_Chosen):
    """Images with their features."""

    features: np.ndarray

    @property
    def is_enough(self) -> bool:
        """The covariance of fewer is far from that of the distribution."""
        return len(self.features) >= 2 * int(self.features.shape[1])


def quality(
    path: str | Path,
    reference: Any,
    *,
    inception: str | Path | None = None,
    model: Any = None,
    judge: Any = None,
    images: int | None = None,
    real_images: int = MOST,
    seed: int = 0,
    batch_size: int = 100,
    device: str = "auto",
    quiet: bool = False,
) -> Finding:
    """Compare generated images with the training and test images of a data set; the finding is kept next to them.

    Features are Inception's (`inception`: its weights as TorchScript), those of a `model`, or pixels. The `judge`, by
    default the model, says whether images show the class of their label. At most `real_images` of each split are
    compared, chosen at random by the `seed`.
    """
    check_counts(batch_size=batch_size, real_images=real_images)
    if inception is not None and model is not None:
        raise UserError("features are either Inception's or a model's: give --inception or --model")
    place = resolve_device(device)
    generated, real = GeneratedImages(path=Path(path)).open("train"), _real(reference)
    features = _features(inception, None if model is None else resolve_model(model), real[0][1], place)

    counted = [("generated", generated, min(MOST, len(generated)) if images is None else images)]
    counted += [(name, given, min(real_images, len(given))) for name, given in real]
    chosen = [_Chosen(name, given, choose_images(given, count, seed)[0]) for name, given, count in counted]
    # before the features of thousands of images are computed for nothing
    _check_sizes(chosen)
    width = features(as_pixels(generated.take(chosen[0].rows[:1])[0]).to(place)).shape[1]
    for one in chosen[:2]:
        _check_enough(one.images.title, len(one.rows), width, features.title)
    given = judge if judge is not None else model
    judged_by = None if given is None else resolve_model(given)
    agreement: tuple[Table, ...] = ()
    if judged_by is not None:
        agreement = (_agreement(chosen[0], chosen[-1], judged_by, batch_size, place),)
    made, *sets = (
        _Set(one.name, one.images, one.rows, extract(features, one.images, one.rows, batch_size, place, quiet))
        for one in chosen
    )
    tables = (_distances(made, sets, features, seed), _uniqueness(made, sets[0]), *agreement)
    pictures, samples = _samples(made, class_names(real[0][1]))
    finding = Finding(
        f"Quality of {len(made.rows):,} generated images",
        _caption(features, made, sets),
        tables,
        pictures=(pictures,),
        facts={"features": features.title, "seed": seed, "versions": versions(), "command": command()},
        arrays={"samples": samples},
    )
    by = [features.title, features.kept_as, None if judged_by is None else f"{judged_by.title} {judged_by.digest}"]
    key = hash8([*by, [(one.name, one.images.title, len(one.rows)) for one in sets], len(made.rows), seed])
    write_finding(RunFolder(finding_folder(Path(path))).analyses / f"quality-{key}", finding)
    return finding


def finding_folder(path: Path) -> Path:
    """The folder of the images, or one next to their file."""
    return path if is_folder(path) else path.with_name(f"{path.stem}-quality")


def _real(reference: Any) -> list[tuple[str, Images]]:
    train, test = (images_from(reference, split) for split in ("train", "test"))
    same = train.title == test.title and len(train) == len(test)
    return [("training images", train)] + ([] if same else [("test images", test)])


def _features(inception: str | Path | None, ref: ModelRef | None, real: Images, device: str) -> Features:
    if inception is not None:
        return InceptionFeatures(Path(inception), device)
    return PixelFeatures(real) if ref is None else ModelFeatures(ref, device)


def _check_sizes(chosen: Sequence[_Chosen]) -> None:
    shapes = [tuple(one.images.take(one.rows[:1])[0].shape[2:]) for one in chosen]
    for one, shape in zip(chosen, shapes, strict=True):
        if shape != shapes[0]:
            first, other = (" x ".join(map(str, sides)) for sides in (shapes[0], shape))
            raise UserError(
                f"{chosen[0].images.title}: images of {first} pixels, where those of {one.images.title} have {other}"
            )


def _check_enough(title: str, count: int, width: int, features: str) -> None:
    if count < 2 * width:
        need = f"{features} have {width} numbers, so that a distance needs at least {2 * width} images"
        raise UserError(f"{title}: {count} images, where {need}; take more, or a model's features")


def _caption(features: Features, made: _Set, sets: Sequence[_Set]) -> str:
    against = " and ".join(f"{len(one.rows):,} {one.name}" for one in sets)
    name = "FID" if features.is_fid else "Not FID, which only the standard Inception's features give: Frechet distance"
    small = [one.name for one in sets if not one.is_enough]
    left = f" No distance to the {small[0]}, which are fewer than twice the features' number." if small else ""
    spread = f"The spread is the standard deviation over {SUBSETS} disjoint subsets"
    return f"{name} of {len(made.rows):,} generated images to {against}, by {features.title}. {spread}.{left}"


def _distances(made: _Set, sets: Sequence[_Set], features: Features, seed: int) -> Table:
    """Of the generated images, and of the test images for comparison, to each set of real ones."""
    name = "FID" if features.is_fid else "Frechet distance"
    columns = ("", name, f"mean of {SUBSETS} subsets", "spread", "images of each", "precision", "recall")
    rows = [_row(made, other, seed) for other in sets if other.is_enough]
    if len(sets) > 1 and sets[1].is_enough:
        rows.append(_row(sets[1], sets[0], seed))
    return Table(f"{name}, {features.title}", columns, tuple(rows))


def _row(one: _Set, other: _Set, seed: int) -> tuple[str, ...]:
    whole = Moments.of(other.features)
    title = f"{len(one.rows):,} {one.name} to {len(other.rows):,} {other.name}"
    size = len(one.features) // SUBSETS
    spread = ("", "", f"fewer than {2 * one.features.shape[1]}")
    if size >= 2 * one.features.shape[1]:
        parts = torch.split(seeded_order(len(one.features), seed, "subsets")[: SUBSETS * size], size)
        values = [frechet_distance(Moments.of(one.features[part.numpy()]), whole) for part in parts]
        spread = (f"{np.mean(values):.3f}", f"{np.std(values, ddof=1):.3f}", f"{size:,}")
    fewer = min(MOST_NEIGHBORS, len(one.features), len(other.features))
    some = [
        torch.from_numpy(item.features)[seeded_order(len(item.features), seed, "neighbors")[:fewer]]
        for item in (other, one)
    ]
    precision, recall = precision_and_recall(some[0], some[1])
    return (
        title,
        f"{frechet_distance(Moments.of(one.features), whole):.3f}",
        *spread,
        percent(precision),
        percent(recall),
    )


def _uniqueness(made: _Chosen, train: _Chosen) -> Table:
    """By their pixels."""

    def contents(one: _Chosen) -> list[bytes]:
        chunks = (one.images.take(rows)[0] for rows in torch.split(one.rows, 1000))
        return [image.numpy().tobytes() for chunk in chunks for image in chunk]

    generated, real = contents(made), set(contents(train))
    unique, copies = len(set(generated)), sum(image in real for image in generated)
    rows = (
        ("unique", f"{unique:,}", percent(unique / len(generated))),
        ("copies of training images", f"{copies:,}", percent(copies / len(generated))),
    )
    return Table("Uniqueness", ("generated images", "number", "fraction"), rows)


def _agreement(made: _Chosen, held: _Chosen, judge: ModelRef, batch_size: int, device: str) -> Table:
    """Accuracy of a classifier on the generated images, over all and by class, next to that on real ones."""
    rows = []
    hits, labels = _hits(made, judge, batch_size, device)
    real_hits, _ = _hits(held, judge, batch_size, device)
    for name, values in ((f"real: {held.name}", real_hits), ("generated", hits)):
        rows.append(_accuracy(name, values))
    rows += [_accuracy(f"generated, class {label}", hits[labels == label]) for label in np.unique(labels)]
    return Table(f"Accuracy of {judge.title} {judge.digest}", ("images", "accuracy", "95 %", "number"), tuple(rows))


def _accuracy(name: str, hits: np.ndarray) -> tuple[str, ...]:
    right = int(hits.sum())
    measure = Measure("accuracy", right / len(hits), wilson_interval(right, len(hits)))
    return name, percent(measure.value), interval_text(measure), f"{len(hits):,}"


@torch.no_grad()
def _hits(one: _Chosen, judge: ModelRef, batch_size: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    right, labels = [], []
    with eval_mode(module := judge.module().to(device)):
        for rows in torch.split(one.rows, batch_size):
            pixels, y = one.images.take(rows)
            logits = checked_logits(module, as_pixels(pixels).to(device)).cpu()
            check_labels(y, logits.shape[1], one.images.title)
            right.append(logits.argmax(1) == y)
            labels.append(y)
    return torch.cat(right).numpy(), torch.cat(labels).numpy()


def _samples(made: _Chosen, names: Sequence[str] | None) -> tuple[Pictures, np.ndarray]:
    """The first generated images of each class."""
    labels = torch.cat([made.images.take(rows)[1] for rows in torch.split(made.rows, 1000)])
    classes = torch.unique(labels).tolist()
    columns = min(_COLUMNS, *(int((labels == label).sum()) for label in classes))
    rows = [made.rows[labels == label][:columns] for label in classes]
    pixels = np.stack([as_pixels(made.images.take(row)[0]).numpy() for row in rows])
    titles = tuple(str(names[label]) if names and label < len(names) else f"class {label}" for label in classes)
    numbers = tuple(str(number + 1) for number in range(columns))
    return Pictures("Generated images, a row for each class", "samples", numbers, titles), pixels
