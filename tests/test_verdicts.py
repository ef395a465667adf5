"""The reference's verdicts on models of four kinds, adversarially trained here for a minute each."""

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.data import Digits
from robustvit.evaluation import Plan, evaluate, suite_from
from robustvit.models import load_model

pytestmark = pytest.mark.slow
MODELS = {
    "vit": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 8,
            "settings": {"embed_dim": 64, "depth": 2, "num_heads": 4, "qk_norm": True, "class_token": False,
                         "global_pool": "avg"}},
    "xcit": {"name": "xcit_nano_12_p16_224", "img_size": 32,
             "settings": {"depth": 2, "embed_dim": 64, "num_heads": 4, "eta": 1.0}},
    "swin": {"name": "swin_tiny_patch4_window7_224", "img_size": 32,
             "settings": {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}},
    "resnet": {"name": "resnet10t", "img_size": 32},
}  # fmt: skip
TRAINING = {
    "vit": {"epochs": 30, "eps": 0.06, "lr": 4e-3},
    "xcit": {"epochs": 8, "eps": 0.02, "lr": 1e-3},
    "swin": {"epochs": 24, "eps": 0.01, "lr": 3e-3},
    "resnet": {"epochs": 4, "eps": 0.02, "lr": 2e-3},
}


@pytest.fixture(scope="module")
def large_digits(tmp_path_factory):
    """The digits at 32x32, each pixel four by four, as arrays."""
    root = tmp_path_factory.mktemp("digits32")
    for split in ("train", "test"):
        images = Digits().open(split)
        x, y = images.take(torch.arange(len(images)))
        x = x.repeat_interleave(4, 2).repeat_interleave(4, 3).permute(0, 2, 3, 1)
        np.savez(root / f"{split}.npz", image=x.numpy(), label=y.numpy())
    return root


def robust(model, x, y, threat, suite="pgd-10"):
    return evaluate(model, (x, y), suite=suite, threat=threat, batch_size=100, quiet=True).is_robust


def reference(model, x, y, threat, attacks):
    from pyautoattack import AutoAttack

    norm = "Linf" if threat.norm == "inf" else "L2"
    judge = AutoAttack(model, attacks=attacks, norm=norm, eps=threat.eps, version="custom", seed=0)
    judge.apgd.n_restarts = 1
    judge.fab.n_restarts = 1
    judge.verbose = False
    _, labels = judge.run_standard_evaluation(x, y, batch_size=100)
    return (labels == y).numpy()


def only(prefix):
    stages = tuple(
        stage for stage in suite_from("autoattack").plan(rv.LpBall("inf", 0.1)).stages if stage.name.startswith(prefix)
    )
    return Plan(prefix, stages)


@pytest.mark.parametrize("kind", MODELS)
def test_verdicts_are_the_references(kind, large_digits, tmp_path):
    training = TRAINING[kind]
    recipe = {
        "name": kind, "model": {"num_classes": 10, "mean": [0.3], "std": [0.38], **MODELS[kind]},
        "data": {"name": "arrays", "path": str(large_digits / "{split}.npz")},
        "threat": {"norm": "inf", "eps": training["eps"]}, "epochs": training["epochs"], "batch_size": 64,
        "clip_norm": 1.0, "optimizer": {"opt": "adamw", "lr": training["lr"]},
        "eps_schedule": {"name": "linear_warmup", "until": 0.5},
        "objective": {"name": "adversarial", "attack": {"name": "pgd", "steps": 1, "step": "1.25*eps"}},
    }  # fmt: skip
    run = rv.train(recipe, run=tmp_path, quiet=True)
    model = load_model(run.checkpoints / "last.safetensors").eval()
    images = rv.evaluate(model, str(large_digits / "test.npz"), suite="clean", threat=rv.LpBall("inf", 0), quiet=True)
    right = torch.from_numpy(np.flatnonzero(images.is_correct))[:200]
    pixels = np.load(large_digits / "test.npz")
    x = torch.from_numpy(pixels["image"])[right].permute(0, 3, 1, 2).contiguous().float() / 255
    y = torch.from_numpy(pixels["label"])[right]
    assert len(y) >= 150
    threat = rv.LpBall("inf", 0.1)
    for _ in range(20):
        share = robust(model, x, y, threat).mean()
        if 0.5 <= share <= 0.68:  # of which APGD leaves fewer
            break
        threat = threat.scaled(0.85 if share < 0.5 else 1.12)
    ours = robust(model, x, y, threat, only("apgd"))
    theirs = reference(model, x, y, threat, ["apgd-ce", "apgd-t"])
    assert 0.2 <= theirs.mean() <= 0.7, "the models of some machines need another eps"
    print(
        f"\n{kind} eps {threat.eps:.4f}: apgd robust ours {ours.sum()}, theirs {theirs.sum()} of {len(y)}; "
        f"differ {(ours != theirs).sum()}"
    )
    assert (ours != theirs).sum() <= len(y) / 100
    assert ours.sum() <= theirs.sum() + len(y) / 100
    left = torch.from_numpy(np.flatnonzero(ours & theirs))[:40]
    for prefix, name in (("fab-t", "fab-t"), ("square", "square")):
        ours = robust(model, x[left], y[left], threat, only(prefix))
        theirs = reference(model, x[left], y[left], threat, [name])
        print(
            f"{kind} {name} at {threat.eps:.4f}: robust ours {ours.sum()}, theirs {theirs.sum()} of {len(left)}; "
            f"differ {(ours != theirs).sum()}"
        )
        assert (ours != theirs).sum() <= 1
