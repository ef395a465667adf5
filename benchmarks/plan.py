"""How far `robustvit plan` is from trainings on this machine: prints the table of docs/plan.md.

Each recipe gets a process of its own with one thread. Plan and training are compared by the CPU time of that process,
which other work on the machine changes less than the time on the clock; memory is the largest resident set.
"""

import json
import resource
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
    "cifar10/speedrun": [],
}
SECONDS = 8.0
"""Of CPU time that a training is measured for."""


def measure(title: str) -> None:
    """Predicted and measured seconds of a step, and bytes at the peak, as JSON."""
    torch.set_num_threads(1)
    timing.time.perf_counter = time.process_time  # type: ignore[assignment]
    overrides = [*RECIPES[title], *SETTINGS]
    recipe = recipe_from(title.partition(",")[0], overrides).resolved("cpu")
    task = recipe.task.build(recipe, NullRecorder(), World())
    loop = Loop(recipe, task, NullRecorder(), World())
    loop.run(Stop(), 2)
    steps, begin = 0, time.process_time()
    while time.process_time() - begin < SECONDS and not loop.finished and loop.position.phase == 0:
        loop.run(Stop(), 2)
        steps += 2
    measured = (time.process_time() - begin) / steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    made = plan(recipe)
    seconds = made.seconds[0] / sum(phase.steps for phase in made.phases)
    memory = sum(made.memory.values())
    print(json.dumps({"planned": seconds, "measured": measured, "memory": memory, "peak": peak}))


def main() -> None:
    print("| recipe | planned seconds a step | measured | error | planned GB | measured peak |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title in RECIPES:
        made = subprocess.run([sys.executable, __file__, title], stdout=subprocess.PIPE, check=True, text=True)
        row = json.loads(made.stdout.splitlines()[-1])
        error = f"{100 * (row['planned'] / row['measured'] - 1):+.0f} %"
        sizes = f"{row['memory'] / 1e9:.2f} | {row['peak'] / 1e9:.2f}"
        print(f"| {title} | {row['planned']:.3f} | {row['measured']:.3f} | {error} | {sizes} |", flush=True)


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
