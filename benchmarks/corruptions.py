"""Speed of the corruptions in CPU time on one thread, and a picture of all of them.

Writes docs/benchmarks-corruptions.md and docs/images/corruptions.png.
"""

import time

import torch
import torch.nn.functional as F
from measure import ROOT, table, write_page
from PIL import Image, ImageDraw
from torch import Tensor

import robustvit as rv
from robustvit.core.component import build
from robustvit.core.run import processor
from robustvit.data import images_from
from robustvit.data.corruptions import EXTRA, SEVERITIES, STANDARD, ParameterSet, corrupted, jpeg

ROUNDS = 3
NAMES = STANDARD + EXTRA
SHOWN, TILE, GAP, LABEL = 77, 64, 3, 112
"""Which picture of the sample, and pixels of the sheet."""


def seconds(images: Tensor, name: str, severity: int, parameters: ParameterSet) -> float:
    """Of one image: the least of several rounds, since others compute on the machine, too."""
    corruption, streams, found = build("corruption", name), rv.sample_streams(0, range(len(images))), []
    corrupted(images[:1], corruption, severity, parameters, streams[torch.arange(1)])  # tables are made once
    for _ in range(ROUNDS):
        begin = time.process_time()
        corrupted(images, corruption, severity, parameters, streams)
        found.append((time.process_time() - begin) / len(images))
    return min(found)


def rows() -> tuple[list[list[str]], list[float]]:
    """A row for each corruption, and seconds of an image under all 95 at both sizes."""
    sample, _ = images_from("cifar10_sample").take(torch.arange(100))
    large = F.interpolate(sample[::25].float(), 224, mode="bicubic").clamp(0, 255).to(torch.uint8)
    found, totals = [], [0.0, 0.0]
    for name in NAMES:
        line = [name]
        sets: list[tuple[Tensor, ParameterSet]] = [(sample, "cifar"), (large, "imagenet")]
        for place, (images, parameters) in enumerate(sets):
            each = [seconds(images, name, severity, parameters) for severity in SEVERITIES]
            totals[place] += sum(each)
            line.append(f"{len(each) / sum(each):,.0f}")
        found.append(line)
    begin = time.process_time()
    jpeg(large, 85)
    return found, [*totals, (time.process_time() - begin) / len(large)]


def sheet() -> Image.Image:
    """Every corruption of one photograph, the image itself first, then severities 1 to 5; two columns of types."""
    image, _ = images_from("cifar10_sample").take(torch.tensor([SHOWN]))
    each, half = TILE + GAP, -(-len(NAMES) // 2)
    wide = LABEL + (1 + len(SEVERITIES)) * each
    whole = Image.new("RGB", (2 * wide, half * each), "white")
    draw = ImageDraw.Draw(whole)
    for place, name in enumerate(NAMES):
        left, top = (place // half) * wide, (place % half) * each
        draw.text((left + 2, top + TILE // 2 - 6), name, fill="black")
        corruption, streams = build("corruption", name), rv.sample_streams(0, [SHOWN])
        tiles = [image, *(corrupted(image, corruption, severity, "cifar", streams) for severity in SEVERITIES)]
        for number, tile in enumerate(tiles):
            picture = Image.fromarray(tile[0].permute(1, 2, 0).numpy()).resize((TILE, TILE), Image.Resampling.NEAREST)
            whole.paste(picture, (left + LABEL + number * each, top))
    return whole


def main() -> None:
    torch.set_num_threads(1)
    found, (small, large, compressed) = rows()
    total = ["all 95, seconds per image", f"{small:.4f}", f"{large:.3f}"]
    lines = [
        "# Benchmarks of corruptions",
        "",
        "Images per second of one core, mean over the five severities, in CPU time (`benchmarks/corruptions.py`):",
        "batches of 100 images with the parameters of CIFAR-10-C at 32 px, of 4 with those of ImageNet-C at 224 px.",
        f"There, JPEG 85, which follows by default, takes {1000 * compressed:.1f} ms more for each image.",
        f"Processor: {processor()}.",
        "",
        *table(["corruption", "32 px", "224 px"], [*found, total]),
    ]
    write_page("benchmarks-corruptions.md", lines)
    sheet().save(ROOT / "docs" / "images" / "corruptions.png", optimize=True)


if __name__ == "__main__":
    main()
