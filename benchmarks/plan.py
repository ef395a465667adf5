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
SECONDS = 5.0
"""Of CPU time that a training is measured for."""


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
        rows = []
        for what in ("planned", "measured"):
            done = subprocess.run(
                [sys.executable, __file__, title, what], stdout=subprocess.PIPE, check=True, text=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        (planned, memory), (measured, peak) = rows
        error = f"{100 * (planned / measured - 1):+.0f} %"
        print(
            f"| {title} | {planned:.3f} | {measured:.3f} | {error} | {memory / 1e9:.2f} | {peak / 1e9:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) > 1 else main()
