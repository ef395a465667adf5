"""How far `robustvit plan` is from trainings on this machine: prints the table of docs/plan.md.

Each recipe gets a process of its own with one thread. Plan and training are compared by the CPU time of that process,
which other work on the machine changes less than the time on the clock; memory is the largest resident set.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from robustvit.core.world import World
from robustvit.planning import plan, timing
from robustvit.training import recipe_from
from robustvit.training.loop import Loop, Stop
from robustvit.training.recorder import NullRecorder

WRN = "model={name: wideresnet, num_classes: 10, settings: {depth: 10, width: 1}}"
SETTINGS = ["validation.hold_out=0", "checkpoints.select=last"]
RECIPES = {
    "digits/trades": [],
    "digits/pgd_at": [],
    "digits/trades, WideResNet-10-1": [WRN],
    "cifar10/vit_tiny_trades, batch 64": ["batch_size=64"],
    "cifar10/speedrun, 2 epochs of 1,280 images": [
        "epochs=2", f"data={{name: cifar10, select: {{images: {list(range(1280))}}}}}"
    ],
}  # fmt: skip
"""The last one whole, because it begins without attacks."""
ROUNDS = 3
"""Plan and training in turn; the median of their ratios counts."""
SECONDS = 20.0
"""Of CPU time that a training is measured for, at most."""


def measure(title: str, what: str) -> None:
    """Planned or measured seconds of a step, and bytes at the peak, as JSON."""
    torch.set_num_threads(1)
    recipe = recipe_from(title.partition(",")[0], [*RECIPES[title], *SETTINGS]).resolved("cpu")
    if what == "planned":
        timing.time.perf_counter = time.process_time  # type: ignore[assignment]
        made = plan(recipe)
        seconds = made.seconds[0] / sum(phase.steps for phase in made.phases)
        print(json.dumps([seconds, sum(made.memory.values())]))
        return
    loop = Loop(recipe, recipe.task.build(recipe, NullRecorder(), World()), NullRecorder(), World())
    loop.run(Stop(), 2)
    steps, begin = 0, time.process_time()
    while time.process_time() - begin < SECONDS and not loop.finished and loop.position.phase == 0:
        loop.run(Stop(), 2)
        steps += 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([(time.process_time() - begin) / steps, peak]))


def main() -> None:
    print("| recipe | planned seconds a step | measured | error | planned GB | measured peak |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title in RECIPES:
        rounds = [[_apart(title, what) for what in ("planned", "measured")] for _ in range(ROUNDS)]
        times, bytes_ = ([[pair[kind][i] for pair in rounds] for kind in (0, 1)] for i in (0, 1))
        planned, measured = map(statistics.median, times)
        error = f"{100 * (statistics.median(a / b for a, b in zip(*times, strict=True)) - 1):+.0f} %"
        memory, peak = min(bytes_[0]) / 1e9, max(bytes_[1]) / 1e9
        print(f"| {title} | {planned:.3f} | {measured:.3f} | {error} | {memory:.2f} | {peak:.2f} |", flush=True)


def _apart(title: str, what: str) -> list[float]:
    """Seconds and bytes, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, title, what], stdout=subprocess.PIPE, check=True, text=True)
    numbers: list[float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) > 1 else main()
