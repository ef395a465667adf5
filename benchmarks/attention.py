"""The attention probe, idle and at work; the AAS search against 20 steps of PGD; AAS-AT against its training.

Writes docs/benchmarks-attention.md.
"""

import tempfile
import warnings
from functools import partial

import numpy as np
import torch
from measure import ratio, seconds, table, write_page

import robustvit as rv
from robustvit.attacks import PGD, FactorSearch, Search
from robustvit.core.progress import Progress
from robustvit.core.world import World
from robustvit.data.arrays import InMemory
from robustvit.models import create_model
from robustvit.models.attention_factors import set_attention_factors
from robustvit.models.attention_probe import Scaling, attention_blocks, install
from robustvit.training.attention_event import AttentionScalingEvent
from robustvit.training.classify import Classify
from robustvit.training.loop import Loop
from robustvit.training.recipe import recipe_from
from robustvit.training.recorder import NullRecorder

BATCH = 32
MODELS = {
    "ViT-Ti/4 at 32 px": ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4}),
    "XCiT-N12/4 at 32 px": ("xcit_nano_12_p16_224", {"img_size": 32, "patch_size": 4}),
    "Swin-T at 32 px": ("swin_tiny_patch4_window7_224", {"img_size": 32, "patch_size": 2, "window_size": 4}),
}


def probe_row(name: str, settings: dict, rounds: int) -> list[str]:
    plain, idle, active = (create_model(name, num_classes=10, **settings).eval() for _ in range(3))
    factors = torch.full((len(attention_blocks(plain)),), 0.5)
    install(idle, [Scaling(factors)]).is_paused = True
    install(active, [Scaling(factors)])
    x = torch.rand(BATCH, 3, 32, 32)
    with torch.no_grad():
        return [f"{ratio(partial(probed, x), partial(plain, x), rounds):.3f}" for probed in (idle, active)]


def search_ratio(rounds: int) -> float:
    """On the same images: the search with its defaults, and 20 steps of PGD."""
    model = create_model("vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=4).eval().requires_grad_(False)
    x, y = torch.rand(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    random, threat = rv.sample_streams(0, range(BATCH)), rv.LpBall("inf", 8 / 255)
    search = FactorSearch(batches=1)
    return ratio(
        lambda: search(model, model, [(x, y)], 0), lambda: PGD(steps=20)(model, x, y, threat, Search(random)), rounds
    )


def training_fraction() -> tuple[float, float, float]:
    """Seconds of one event and one step of TRADES-10, and the fraction of events in 10 epochs of 50,000 images."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        images = random.integers(0, 256, (1280, 32, 32, 3), dtype=np.uint8)
        np.savez(f"{folder}/train.npz", image=images, label=random.integers(0, 10, len(images)))
        recipe = {
            "name": "bench",
            "model": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "num_classes": 10},
            "data": {"name": "arrays", "path": f"{folder}/train.npz"}, "threat": {"norm": "inf", "eps": 8 / 255},
            "epochs": 100, "batch_size": BATCH,
            "objective": {"name": "trades", "attack": {"steps": 10, "step": "2/255"}},
        }  # fmt: skip
        task = Classify(recipe_from(recipe), NullRecorder(), World())
        loop = Loop(task.recipe, task, NullRecorder())
        set_attention_factors(task.model, [1.0] * len(attention_blocks(task.model)))
        bar = Progress("", 1, quiet=True)
        step = min(seconds(lambda: loop.step(loop.feed[loop.position.step], bar)) for _ in range(4))
        # a tenth of the usual batches, so that it is over soon; the time of all is ten times that
        small = AttentionScalingEvent(search=FactorSearch(batches=1, batch_size=128))
        pictures = InMemory(torch.from_numpy(images).permute(0, 3, 1, 2), torch.zeros(len(images)).long(), "noise")
        event = 10 * min(seconds(lambda: small(task.model, pictures, "cpu", 0)) for _ in range(2))
    return event, step, event / (10 * step * 50_000 / BATCH)


def main(rounds: int = 81) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = [[title, *probe_row(name, settings, rounds)] for title, (name, settings) in MODELS.items()]
    print(rows, flush=True)
    search = search_ratio(3)
    event, step, fraction = training_fraction()
    lines = ["# Benchmarks of attention scaling", ""]
    lines += ["Ratios of times, measured alternately in one run (`make bench`) on one thread.", ""]
    lines += [f"A forward pass of {BATCH} images with the attention probe, relative to one without:", ""]
    lines += table(["model", "installed, idle", "scaling"], rows)
    lines += [f"The search for factors, relative to 20 steps of PGD on the same images (ViT-Ti/4): {search:.2f}.", ""]
    lines += [
        f"AAS-AT with its defaults (10 batches of 128 images every 10 epochs) on ViT-Ti/4: {event:.0f} s for a search, "
        f"{step:.1f} s for a TRADES-10 step",
        f"on {BATCH} images, so {100 * fraction:.2f} % of a training on 50,000 images (the paper: under 1 %).",
        "",
    ]
    write_page("benchmarks-attention.md", lines)


if __name__ == "__main__":
    main()
