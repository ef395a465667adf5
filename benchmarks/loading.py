"""What loading delivers against what a training step eats: FGSM adversarial training of ViT-Ti/4 at 32 pixels.

Writes docs/benchmarks-loading.md. The pictures are made here; loading is what the trainer does before a step: take a
random batch, augment it, turn it into floats. Both run on one thread in turn, and processor time is counted, which
other jobs on the machine hardly touch; the step is then given two cores and perfect speed-up, loading none.
"""

import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import robustvit as rv
from robustvit.attacks import FGSM
from robustvit.core.run import versions
from robustvit.core.streams import sample_streams, seeded_order
from robustvit.data import Folder, Images, PadCrop, Shards, as_pixels, shards as shards_module
from robustvit.objectives import Adversarial

THREAT = rv.LpBall("inf", 8 / 255)
COUNT, SIZE, BATCH, ROUNDS, CLASSES = 4096, 32, 128, 5, 10
CORES = 2
ROOT = Path(__file__).parents[1]


def make_pictures(folder: Path) -> None:
    """Smooth random pictures as JPEG, in folders, in a plain and in a zipped shard."""
    coarse = torch.rand(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.interpolate(coarse, size=SIZE, mode="bicubic").clamp(0, 1)
    arrays = (smooth * 255).byte().permute(0, 2, 3, 1).numpy()
    for label in range(CLASSES):
        (folder / "folder" / str(label)).mkdir(parents=True)
    with (
        tarfile.open(folder / "plain.tar", "w") as plain,
        tarfile.open(folder / "zipped.tar.gz", "w:gz", compresslevel=1) as zipped,
    ):
        for number, array in enumerate(arrays):
            buffer = io.BytesIO()
            Image.fromarray(array).save(buffer, "jpeg", quality=90)
            label = number % CLASSES
            (folder / "folder" / str(label) / f"{number:06d}.jpg").write_bytes(buffer.getvalue())
            for suffix, data in (("jpg", buffer.getvalue()), ("cls", str(label).encode())):
                for archive in (plain, zipped):
                    info = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def loader(images: Images) -> Callable[[int], object]:
    augmentation, order = PadCrop(), seeded_order(len(images), 0, "order")

    def load(number: int) -> object:
        first = number * BATCH % (len(images) - BATCH)
        indices = order[first : first + BATCH]
        pixels, _ = images.take(indices)
        return as_pixels(augmentation(pixels, sample_streams(0, indices).child("augmentation")))

    return load


def stepper() -> Callable[[int], object]:
    model = rv.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=SIZE, patch_size=4).train()
    optimizer = torch.optim.AdamW(model.parameters())
    objective = Adversarial(attack=FGSM())
    x, y = torch.rand(BATCH, 3, SIZE, SIZE), torch.arange(BATCH) % CLASSES

    def step(number: int) -> None:
        perturbed = objective.perturb(model, x, y, THREAT, random=sample_streams(number, range(BATCH)))
        loss = objective.loss(model, x, perturbed, y).total.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def rate(job: Callable[[int], object], first: int, times: int) -> float:
    """Images for a second of one core."""
    begin = time.process_time()
    for number in range(first, first + times):
        job(number)
    return times * BATCH / (time.process_time() - begin)


def opened(data: Shards | Folder) -> tuple[Images, float]:
    begin = time.process_time()
    images = data.open("train")
    return images, time.process_time() - begin


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# Benchmarks of data loading",
        "",
        f"`make bench` writes this page: {COUNT} JPEG pictures of {SIZE}x{SIZE}, batches of {BATCH}, pad-and-crop and "
        "flips included, against steps of",
        f"FGSM adversarial training of ViT-Ti/4. Processor time of one thread, medians of {ROUNDS} alternating rounds. "
        f"Steps count as if {CORES} cores did",
        f"{CORES} times as many, loading as if one core did it alone. The goal is a ratio of at least 5.",
        "",
        "| data | first open, s | later opens, s | loading, images/s | training, images/s | loading / training |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as place:
        os.environ["ROBUSTVIT_CACHE"] = str(Path(place) / "cache")
        make_pictures(Path(place))
        step = stepper()
        for title, data, small in (
            ("zipped shard (decoded once, mapped)", Shards(path=f"{place}/zipped.tar.gz"), shards_module.SMALL),
            ("plain shard, too large to be decoded once", Shards(path=f"{place}/plain.tar"), 0),
            ("folder of pictures", Folder(path=Path(place) / "folder"), 0),
        ):
            shards_module.SMALL = small
            first = opened(data)[1]
            images, again = opened(data)
            load = loader(images)
            rate(load, 0, 2), rate(step, 0, 1)
            pairs = [(rate(load, 8 * i, 8), CORES * rate(step, i, 1)) for i in range(ROUNDS)]
            loading, training = (statistics.median(values) for values in zip(*pairs, strict=True))
            ratio = statistics.median(load / step for load, step in pairs)
            lines.append(f"| {title} | {first:.2f} | {again:.2f} | {loading:,.0f} | {training:,.0f} | {ratio:.0f} |")
            print(lines[-1], flush=True)
    lines += ["", f"Made with {', '.join(f'{key} {value}' for key, value in versions().items())}, {sys.platform}.", ""]
    (ROOT / "docs" / "benchmarks-loading.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
