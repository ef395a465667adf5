"""Two processes of one thread against one process of two threads; writes the table of docs/processes.md.

Both train the same batches in the same parts, in turn. Starting, the first steps and reading of data are left out. The
machine must be quiet, with two free cores. `python benchmarks/processes.py 2 20` measures 2 rounds of 20 steps.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from measure import ROOT, table

from robustvit.core.processes import run_processes
from robustvit.core.progress import Progress
from robustvit.core.world import World
from robustvit.training import recipe_from
from robustvit.training.loop import Loop
from robustvit.training.recorder import NullRecorder

WRN = "model={name: wideresnet, num_classes: 10, settings: {depth: 10, width: 1}}"
SIZE = "settings: {embed_dim: 128, depth: 4, num_heads: 4}"
VIT = f"model={{name: vit_tiny_patch16_224, img_size: 8, patch_size: 1, num_classes: 10, {SIZE}}}"
SETTINGS = ["epochs=1000", "accumulate=2", "validation.hold_out=0", "checkpoints.select=last"]
RECIPES = {
    "`digits/trades`": [],
    "`digits/trades`, WideResNet-10-1": [WRN],
    "`digits/trades`, ViT 128 x 4 of 64 patches, batch 32, 2 steps": [VIT, "batch_size=32", "objective.attack.steps=2"],
}
WARM_UP = 3
PAGE = ROOT / "docs/processes.md"
BEGIN, END = "<!-- throughput -->\n", "<!-- end of throughput -->"


def measure(*, world: World, title: str, threads: int, steps: int, file: str) -> None:
    """Images a second, written by the first process."""
    torch.set_num_threads(threads)
    recipe = recipe_from("digits/trades", [*SETTINGS, *RECIPES[title]]).resolved("cpu")
    loop = Loop(recipe, recipe.task.build(recipe, NullRecorder(), world), NullRecorder(), world)
    batches, bar = [loop.feed[step] for step in range(WARM_UP + steps)], Progress("", 1, quiet=True)
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            world.barrier()
            begin = time.perf_counter()
        loop.step(batch, bar)
    if world.is_first:
        Path(file).write_text(str(steps * recipe.phases[0].batch_size / (time.perf_counter() - begin)))


def images_a_second(title: str, processes: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/speed"
        work = {"title": title, "threads": 2 // processes, "steps": steps, "file": file}
        run_processes(processes, measure, work, Path(folder), connected=True)
        return float(Path(file).read_text())


def main(rounds: int = 5, steps: int = 30) -> None:
    os.environ.pop("OMP_NUM_THREADS", None)  # it would hold for the fresh processes
    rows = []
    for title in RECIPES:
        speeds = [(images_a_second(title, 1, steps), images_a_second(title, 2, steps)) for _ in range(rounds)]
        one, two = (statistics.median(column) for column in zip(*speeds, strict=True))
        ratio = statistics.median(b / a for a, b in speeds)
        rows.append([title, f"{one:.0f}", f"{two:.0f}", f"{ratio:.2f}"])
        print(*rows[-1], sep="  ", flush=True)
    lines = table(["training", "1 process, 2 threads (images/s)", "2 processes, 1 thread each", "ratio"], rows)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + rest.partition(END)[2])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
