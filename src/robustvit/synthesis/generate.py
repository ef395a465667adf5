"""A denoiser into shards of images: resumed after a kill, shared by processes, the same bytes whoever makes them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter

from robustvit.core.checksum import read_json_with_checksum, with_checksum
from robustvit.core.component import settings, to_dict
from robustvit.core.errors import UserError, check_counts, shortened
from robustvit.core.files import is_file, locked, write_json
from robustvit.core.numbers import Count
from robustvit.core.processes import run_processes
from robustvit.core.progress import Progress, say
from robustvit.core.run import command, versions
from robustvit.core.streams import sample_streams
from robustvit.core.world import World, is_out_of_memory, resolve_device
from robustvit.synthesis.denoiser import Denoiser, to_levels
from robustvit.synthesis.sampler import Heun
from robustvit.synthesis.shards import Growing, Shards
from robustvit.synthesis.source import Source, open_source

FILE = "generation.json"
MOST_SHARDS = 20_000
"""Files that a reader maps at once; Linux allows 65,530 maps."""


@settings
class Generation:
    """What the images of a folder depend on."""

    sampler: Heun
    """From noise to an image."""
    seed: int
    """Of the noise."""
    classes: Annotated[tuple[int, ...], Field(min_length=1)]
    """Image i is of class i modulo their number."""
    batch_size: Count
    """Images made at once; another one rounds differently."""
    shard_size: Count
    """Images of a file."""
    weights: str
    """SHA-256 of the file with the denoiser."""

    def labels(self, indices: np.ndarray) -> np.ndarray:
        classes = np.array(self.classes)
        labels: np.ndarray = classes[indices % len(classes)].astype(np.min_scalar_type(max(self.classes)))
        return labels


@dataclass(frozen=True)
class _Work:
    """What a process needs to know."""

    source: Source
    generation: Generation
    shards: Shards
    quiet: bool


def generate(
    source: str | Path,
    out: str | Path,
    images: int,
    *,
    sampler: Heun = Heun(),  # noqa: B008 - frozen
    seed: int = 0,
    classes: Sequence[int] | None = None,
    batch_size: int = 100,
    shard_size: int = 1000,
    processes: int | None = 1,
    device: str = "auto",
    quiet: bool = False,
    world: World | None = None,
) -> Path:
    """Images of a denoiser (a run folder, its weights, or a .pkl of NVlabs) in shards that the data `generated` reads.

    Image i follows from the seed and i. `classes` are all by default. On a CPU, `processes` of one thread each share
    the work (None: one for each core); so may any number of processes that were started with the same arguments.
    """
    check_counts(
        images=images, batch_size=batch_size, shard_size=shard_size, processes=1 if processes is None else processes
    )
    if -(-images // shard_size) > MOST_SHARDS:
        raise UserError(
            f"shard_size: {images:,} images in files of {shard_size:,} are too many files; choose larger ones"
        )
    opened, folder = open_source(source), Path(out)
    denoiser = opened.load(quiet)
    world = world or World(device=resolve_device(device))
    known = denoiser.settings
    assert known is not None, "every source has settings"
    wanted = tuple(range(known.num_classes)) if classes is None else tuple(classes)
    _check_classes(wanted, known.num_classes)
    generation = Generation(sampler, seed, wanted, batch_size, shard_size, opened.sha256)
    work = _Work(opened, generation, Shards(folder, images, shard_size, batch_size, known.img_size), quiet)
    with locked(folder / ".generation.lock", "beginning to generate images", wait=True):
        _open_folder(folder, work)
    count = processes or min(os.cpu_count() or 1, len(work.shards))
    if count > 1 and world.size == 1:
        if not world.device.startswith("cpu"):
            raise UserError("processes: share the work on a CPU; for several GPUs start it with torchrun")
        run_processes(count, _process, {"work": work}, folder)
    else:
        _make(work, world, denoiser)
    missing = images - work.shards.count_made()
    if missing and world.is_first:
        say(f"{folder}: {missing} images are still being made by other processes")
    return folder


def _check_classes(wanted: tuple[int, ...], num_classes: int) -> None:
    unknown = [number for number in wanted if not 0 <= number < num_classes]
    if unknown or not wanted:
        shown = unknown[0] if unknown else "none"
        raise UserError(f"classes: the denoiser has the classes 0 to {num_classes - 1}, not {shown}")
    if len(set(wanted)) < len(wanted):
        raise UserError("classes: one is named twice")


def _open_folder(folder: Path, work: _Work) -> None:
    """Refuse what was made otherwise; write down how this is made."""
    remedy = "choose another folder"
    identity = to_dict(work.generation)
    if is_file(folder / FILE):
        stored = read_json_with_checksum(folder / FILE, TypeAdapter(dict[str, Any]), "description of images", remedy)
        before = stored.get("generation")
        if not isinstance(before, dict):
            raise UserError(f"{folder / FILE}: not a description of images; {remedy}")
        other = [name for name in identity if identity[name] != before.get(name)]
        if other:
            differs = _difference(other[0], before.get(other[0]), identity[other[0]])
            raise UserError(f"{folder}: holds images that were made otherwise ({differs}); {remedy}")
        if stored.get("images", 0) > work.shards.total:
            raise UserError(f"{folder}: is to hold {stored['images']:,} images; ask for at least so many, or {remedy}")
    elif any(folder.glob("images-*.npy")):
        raise UserError(f"{folder}: holds images that robustvit generate did not make; {remedy}")
    about = {"source": str(work.source.path), "license": work.source.license, "versions": versions()}
    content = {"generation": identity, "images": work.shards.total, **about, "command": command()}
    write_json(folder / FILE, with_checksum(content))


def _difference(name: str, before: Any, now: Any) -> str:
    """Of the settings inside a setting, the first that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = next((key for key in now if now[key] != before.get(key)), None)
        if inner is not None:
            return _difference(f"{name}.{inner}", before.get(inner), now[inner])
    return f"{name}: {shortened(str(before), 40)} there, {shortened(str(now), 40)} here"


def _process(work: _Work, world: World) -> None:
    """One of several: only the first shows progress, which is that of all."""
    _make(replace(work, quiet=work.quiet or not world.is_first), world, work.source.load(quiet=True))


def _make(work: _Work, world: World, denoiser: Denoiser) -> None:
    """The shards of this process, then any that nobody else makes."""
    shards = work.shards
    denoiser = denoiser.to(world.device)
    numbers = sorted(range(len(shards)), key=lambda number: (number - world.rank) % world.size)
    quiet = work.quiet or not world.is_first
    with _one_thread(world.device), Progress("images", shards.total, shards.count_made(), quiet=quiet) as progress:
        for number in numbers:
            if shards.is_whole(number):
                continue
            try:
                with shards.growing(number) as growing:
                    if growing is not None:
                        _grow(growing, work.generation, denoiser, world.device, progress)
            except OSError as error:
                reason = error.strerror or error
                raise UserError(
                    f"{shards.folder}: could not be written ({reason}); the same command goes on"
                ) from error


def _grow(growing: Growing, generation: Generation, denoiser: Denoiser, device: str, progress: Progress) -> None:
    shards, rows = growing.shards, growing.shards.rows(growing.number)
    for number in growing.missing:
        # always a whole batch, as a smaller one would round differently; what is beyond the end isn't kept
        indices = rows.start + number * shards.batch_size + np.arange(shards.batch_size)
        labels = torch.from_numpy(generation.labels(indices).astype(np.int64)).to(device)
        random = sample_streams(generation.seed, indices.tolist()).child("generated").to(device)
        try:
            x = generation.sampler(denoiser, (3, shards.side, shards.side), labels, random)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(f"out of memory at batch_size {shards.batch_size}; choose a smaller one") from None
        if not x.isfinite().all():
            raise UserError(
                "the denoiser makes numbers that are not finite; is it trained, and for these noise levels?"
            )
        growing.append(to_levels(x).permute(0, 2, 3, 1).contiguous().cpu().numpy())
        progress.update(shards.count_made() if not progress.quiet else 0)
    growing.finish(generation.labels(np.arange(rows.start, rows.stop)))


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """On a CPU, several threads would round differently than one."""
    before = torch.get_num_threads()
    if device.startswith("cpu"):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
