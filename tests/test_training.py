"""Training: schedules, position, phases; the same weights however often it was stopped."""

import json
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import robustvit as rv
from robustvit.core.component import registered
from robustvit.core.config import load_recipe
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.run import processor
from robustvit.data.augment.crops import PadCrop
from robustvit.data.published import Digits
from robustvit.models import fingerprint, load_model
from robustvit.training import recipe_from
from robustvit.training.opening import open_images
from robustvit.training.optimizer import Ema

TINY: dict = {
    "name": "tiny",
    "model": {
        "name": "vit_tiny_patch16_224",
        "num_classes": 10,
        "img_size": 8,
        "patch_size": 2,
        "mean": [0.3],
        "std": [0.38],
        "settings": {"embed_dim": 16, "depth": 1, "num_heads": 2, "drop_rate": 0.1, "drop_path_rate": 0.1},
    },
    "data": "digits",
    "augmentation": {"name": "pad_crop", "pad": 1, "flip": False},
    "threat": {"norm": "inf", "eps": 0.1},
    "epochs": 2,
    "batch_size": 128,
    "objective": {"name": "trades", "attack": {"steps": 2, "start": "uniform"}, "label_smoothing": 0.1},
    "optimizer": {"opt": "adamw", "lr": 3e-3},
    "eps_schedule": {"name": "linear_warmup", "until": 0.5},
    "ema": {"decay": 0.9},
    "clip_norm": 1.0,
    "validation": {"suite": "pgd-2", "hold_out": 64},
    "checkpoints": {"select": "best", "every": 1, "seconds": 1000},
    "log_every": 3,
}


RESNET = {"name": "resnet10t", "num_classes": 10, "mean": [0.3], "std": [0.38]}


def final(folder):
    return {name: fingerprint(load_model(folder / "checkpoints" / f"{name}.safetensors")) for name in ("last", "best")}


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    return rv.train(TINY, run=tmp_path_factory.mktemp("unbroken"), quiet=True).path


@pytest.mark.parametrize("stops", [[1], [5, 1, 7], [10, 9]])
def test_a_stopped_run_ends_with_the_weights_of_the_unbroken_one(stops, unbroken, tmp_path):
    for steps in stops:
        rv.train(TINY, run=tmp_path, quiet=True, max_steps=steps)
        newest = max((tmp_path / "checkpoints").glob("state-*.pt"))
        assert not torch.load(newest, weights_only=True)["finished"]
    rv.train(TINY, run=tmp_path, quiet=True)
    assert final(tmp_path) == final(unbroken)
    assert (tmp_path / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()


@pytest.mark.parametrize("objective", registered("objective"))
@pytest.mark.parametrize("opt", ["sgd", "lion"])
def test_every_objective_resumes_exactly(objective, opt, tmp_path):
    recipe = {**TINY, "objective": objective, "epochs": 1, "batch_size": 256, "optimizer": {"opt": opt, "lr": 1e-3}}
    recipe["around_step"] = "awp" if opt == "sgd" else None
    recipe["checkpoints"] = {"select": "last"}
    recipe["validation"] = {"hold_out": 0}
    whole, broken = (
        rv.train(recipe, run=tmp_path / name, quiet=True, max_steps=n) for name, n in (("a", None), ("b", 2))
    )
    rv.train(recipe, run=broken.path, quiet=True)
    assert fingerprint(load_model(whole.checkpoints / "last.safetensors")) == fingerprint(
        load_model(broken.checkpoints / "last.safetensors")
    )


def test_metrics_written_after_the_last_checkpoint_are_cut_back(unbroken, tmp_path):
    rv.train(TINY, run=tmp_path, quiet=True, max_steps=7)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"total_step": 9, "phase": "main", "loss": 0}) + '\n{"total_step": 12, "lo')
    rv.train(TINY, run=tmp_path, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "bit"])
def test_a_damaged_state_gives_way_to_the_one_before(damage, unbroken, tmp_path, capsys):
    for _ in range(2):
        rv.train(TINY, run=tmp_path, quiet=True, max_steps=4)
    newest = max((tmp_path / "checkpoints").glob("state-*.pt"))
    data = newest.read_bytes()
    middle = len(data) // 2
    changed = {
        "cut": data[:-200],
        "noise": b"noise" * 50,
        "empty": b"",
        "bit": data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :],
    }[damage]
    newest.write_bytes(changed)
    rv.train(TINY, run=tmp_path, quiet=True)
    assert "damaged" in capsys.readouterr().err
    assert final(tmp_path) == final(unbroken)


def test_damaged_states_never_push_out_good_ones(tmp_path, unbroken, capsys):
    for _ in range(2):
        rv.train(TINY, run=tmp_path, quiet=True, max_steps=4)
    for path in (tmp_path / "checkpoints").glob("state-*.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    rv.train(TINY, run=tmp_path, quiet=True, max_steps=3)
    assert capsys.readouterr().err.count("damaged (") == 2
    (state,) = (tmp_path / "checkpoints").glob("state-*.pt")
    assert torch.load(state, weights_only=True)["total_step"] == 3
    rv.train(TINY, run=tmp_path, quiet=True)
    assert final(tmp_path) == final(unbroken)
    assert (tmp_path / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()


def test_metrics_of_a_run_killed_before_its_first_state_are_cut(tmp_path, unbroken):
    (tmp_path / "metrics.jsonl").write_text('{"total_step": 3, "kind": "train", "loss": 9}\n')
    rv.train(TINY, run=tmp_path, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()


def test_a_finished_run_gives_its_weights_away_again(tmp_path):
    recipe = {**TINY, "epochs": 1, "validation": {"hold_out": 0}, "checkpoints": {"select": "last"}}
    run = rv.train(recipe, run=tmp_path, quiet=True)
    data = (run.checkpoints / "last.safetensors").read_bytes()
    (run.checkpoints / "last.safetensors").unlink()
    rv.train(recipe, run=tmp_path, quiet=True)
    assert (run.checkpoints / "last.safetensors").read_bytes() == data


def test_overrides_hold_for_every_phase_of_a_stored_recipe(unbroken):
    assert [phase.epochs for phase in recipe_from(unbroken / "recipe.yaml", ["epochs=9"]).phases] == [9]
    assert recipe_from(unbroken / "recipe.yaml", ["phases.0.epochs=7"]).phases[0].epochs == 7


def test_a_finished_run_is_left_as_it_is(unbroken):
    before = {path: path.stat().st_mtime_ns for path in (unbroken / "checkpoints").iterdir()}
    environment = (unbroken / "environment.json").read_text()
    rv.train(TINY, run=unbroken, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in (unbroken / "checkpoints").iterdir()} == before
    assert (unbroken / "environment.json").read_text() == environment


def test_another_recipe_is_refused_and_harmless_changes_are_not(unbroken):
    with pytest.raises(UserError, match=r"recipe.phases.0.objective.beta: 6.0 there, 5.0 here"):
        rv.train({**TINY, "objective": {**TINY["objective"], "beta": 5}}, run=unbroken, quiet=True)
    rv.train({**TINY, "log_every": 99, "checkpoints": {**TINY["checkpoints"], "seconds": 5}}, run=unbroken, quiet=True)


def test_the_run_folder_tells_everything(unbroken):
    kept = {path.name for path in (unbroken / "checkpoints").glob("*.safetensors")}
    assert kept == {
        "last.safetensors",
        "best.safetensors",
        "main-epoch-0001.safetensors",
        "main-epoch-0002.safetensors",
    }
    rows = read_rows(unbroken / "metrics.jsonl")
    assert {row["kind"] for row in rows} == {"train", "validation"}
    training = [row for row in rows if row["kind"] == "train"]
    assert {"loss", "natural", "stability", "lr", "eps", "robust_accuracy"} <= set(training[0])
    assert training[-1]["eps"] == pytest.approx(0.1)
    assert all("clean_accuracy" in row for row in training), "TRADES knows it in every step"
    assert yaml.safe_load((unbroken / "recipe.yaml").read_text())["phases"][0]["objective"]["name"] == "trades"
    from robustvit.models import load_state

    assert "held out" in load_state(unbroken / "checkpoints" / "best.safetensors")[1]["rule"]


def test_what_is_given_away_is_the_average(tmp_path):
    recipe = {**TINY, "epochs": 1, "validation": {"hold_out": 0}, "checkpoints": {"select": "last"}}
    run = rv.train(recipe, run=tmp_path, quiet=True)
    state = torch.load(max(run.checkpoints.glob("state-*.pt")), weights_only=True)
    given = load_model(run.checkpoints / "last.safetensors").state_dict()
    assert all(torch.equal(given[key], state["task"]["average"][key]) for key in given)
    assert any(not torch.equal(given[key], state["task"]["model"][key]) for key in given)


def test_phases_train_what_they_name(tmp_path):
    recipe = {
        **TINY,
        "validation": {"hold_out": 0},
        "checkpoints": {"select": "last", "every": 1},
        "epochs": 1,
        "ema": None,
        "phases": [{"name": "body"}, {"name": "head", "trainable": ["head.*"], "objective": "standard"}],
    }
    run = rv.train(recipe, run=tmp_path / "whole", quiet=True)
    body, head = (
        load_model(run.checkpoints / f"{name}-epoch-0001.safetensors").state_dict() for name in ("body", "head")
    )
    changed = {key for key in body if not torch.equal(body[key], head[key])}
    assert changed == {"backbone.head.weight", "backbone.head.bias"}
    for steps in (9, 4):
        rv.train(recipe, run=tmp_path / "broken", quiet=True, max_steps=steps)
    broken = rv.train(recipe, run=tmp_path / "broken", quiet=True)
    assert fingerprint(load_model(broken.checkpoints / "last.safetensors")) == fingerprint(
        load_model(run.checkpoints / "last.safetensors")
    )
    with pytest.raises(UserError, match="trains nothing"):
        rv.train({**recipe, "phases": [{"name": "x", "trainable": ["*.nose.*"]}]}, run=tmp_path / "none", quiet=True)


def test_training_lowers_the_loss_and_repeats_to_the_digit(tmp_path):
    recipe = {**load_recipe("digits/standard"), "epochs": 1, "log_every": 8, "seed": 3}
    first, second = (rv.train(recipe, run=tmp_path / name, quiet=True) for name in ("a", "b"))
    losses = [row["loss"] for row in read_rows(first.metrics.path) if row["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.2
    assert first.metrics.path.read_text() == second.metrics.path.read_text()


GOLDEN_CASES = {
    "standard": ["objective=standard"],
    "adversarial": ["objective=adversarial"],
    "fgsm": ["objective={name: adversarial, attack: {name: fgsm, start: uniform+1e-5, step: 1.5*eps}}"],
    "n_fgsm": ["objective=n_fgsm"],
    "trades": [],
    "mart": ["objective=mart"],
    "random_dropping": ["objective={name: random_dropping, patch_size: 2}"],
    "weighted_sum": [
        "objective={name: weighted_sum, terms: [{objective: standard, weight: 0.1}, {objective: adversarial}]}"
    ],
    "trade_off": ["objective={name: trade_off, robust_weight: 0.8}"],
    "awp": ["around_step={name: awp, gamma: 0.01}"],
}
GOLDEN_TOLERANCE = 2e-3
GOLDEN = {
    "standard": [2.32798, 2.38594, 2.25851, 2.19235],
    "adversarial": [2.54896, 2.37819, 2.34064, 2.34973],
    "fgsm": [2.54264, 2.38114, 2.34128, 2.3481],
    "n_fgsm": [2.53264, 2.38489, 2.34217, 2.34752],
    "trades": [2.3624, 2.38636, 2.32523, 2.33545],
    "mart": [2.71037, 2.51029, 2.46491, 2.46319],
    "random_dropping": [2.37484, 2.41045, 2.34408, 2.35279],
    "weighted_sum": [2.7835, 2.61662, 2.57396, 2.58401],
    "trade_off": [2.50814, 2.37956, 2.33914, 2.34833],
    "awp": [2.39178, 2.3975, 2.33945, 2.35152],
}


def test_every_objective_has_golden_losses():
    assert set(registered("objective")) <= set(GOLDEN)


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_losses(case, tmp_path):
    """Numbers seen once, where the loss falls fast; kernels of other machines may move the later digits."""
    overrides = ["epochs=2", "eps_schedule=null", "log_every=5", "validation.hold_out=0", *GOLDEN_CASES[case]]
    recipe = recipe_from("digits/trades", ["accumulate=1", *overrides])
    rows = read_rows(rv.train(recipe, run=tmp_path, quiet=True, max_steps=20).metrics.path)
    assert [row["loss"] for row in rows] == pytest.approx(GOLDEN[case], rel=GOLDEN_TOLERANCE)


def test_the_parts_of_a_batch_are_chosen_once_and_belong_to_the_run(tmp_path, monkeypatch):
    """Small ones on a CPU; the whole batch for batch norms, for AWP, and on other devices."""

    def parts(device="cpu", **changes):
        return [phase.accumulate for phase in recipe_from({**TINY, **changes}).resolved(device).phases]

    assert parts(batch_size=130) == [3]
    assert parts(batch_size=64) == [1]
    assert parts(batch_size=130, precision="bf16") == [2], "half the memory"
    assert parts(batch_size=64, repeats=2, augmentation="pad_crop") == [3]
    assert parts(batch_size=130, accumulate=5) == [5]
    assert parts("cuda:1", batch_size=130) == [1]
    assert parts(batch_size=130, around_step="awp") == [1]
    resnet = {"name": "preact_resnet18", "num_classes": 10}
    assert parts(batch_size=130, model=resnet) == [1]
    run = rv.train({**TINY, "batch_size": 130}, run=tmp_path, quiet=True, max_steps=1)
    assert run.read_recipe()["phases"][0]["accumulate"] == 3
    monkeypatch.setattr("robustvit.training.recipe._PART", 200)  # as another device or version has it
    rv.train({**TINY, "batch_size": 130}, run=tmp_path, quiet=True, max_steps=1)
    assert run.read_recipe()["phases"][0]["accumulate"] == 3
    with pytest.raises(UserError, match=r"phases\.0\.accumulate: 3 there, 2 here"):
        rv.train({**TINY, "batch_size": 130, "accumulate": 2}, run=tmp_path, quiet=True)


def test_the_cost_of_a_run_is_the_cpu_time_of_all_its_sessions(tmp_path, monkeypatch):
    """Loading and data workers included."""

    def busy(call):
        def slow(*given):
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
            return call(*given)

        return slow

    def used(**more):
        """By this process and by its children."""
        before = np.array(os.times()[:4])
        rv.train({**TINY, **more}, run=tmp_path, quiet=True, max_steps=2)
        return (np.array(os.times()[:4]) - before).reshape(2, 2).sum(1)

    def cost():
        return json.loads((tmp_path / "cost.json").read_text())

    monkeypatch.setattr(Digits, "open", busy(Digits.open))
    first = used().sum()
    assert cost() == {"cpu_seconds": pytest.approx(first, abs=0.2), "processor": processor()}
    monkeypatch.setattr(PadCrop, "__call__", busy(PadCrop.__call__))
    own, children = used(workers=1)
    assert children > 0.3
    assert cost()["cpu_seconds"] == pytest.approx(first + own + children, abs=0.25)


def test_mistakes_in_training_settings_are_reported(tmp_path):
    np.savez(tmp_path / "bad.npz", image=np.zeros((300, 8, 8, 3), np.uint8), label=np.full(300, 77))
    for change, message in [
        ({"phases": [3]}, "each phase is a map"),
        ({"optimizer": {"opt": "bnbadam"}}, "'bnbadam' can't be built here"),
        ({"optimizer": {"lr": float("inf")}}, "finite"),
        ({"model": {**TINY["model"], "settings": {"num_classes": 4}}}, "belongs next to 'settings'"),
        ({"optimizer": {"opt": "adamm"}}, "no optimizer 'adamm'; did you mean 'adam"),
        (
            {"model": {**TINY["model"], "num_classes": 7}},
            "the model has 7 classes, the labels of digits/train are of 10",
        ),
        ({"model": {**TINY["model"], "img_size": 12}}, r"fails on images of shape \(3, 8, 8\)"),
        ({"data": {"name": "arrays", "path": str(tmp_path / "bad.npz"), "num_classes": 10}}, "label 77 is outside"),
        ({"validation": {"hold_out": 5000}}, "can't be held out"),
        ({"validation": {"hold_out": 0}}, "best needs images to select by"),
        ({"validation": {"hold_out": 64, "suite": "pgg-3"}}, "no suite 'pgg-3'"),
        ({"phases": []}, "at least one phase"),
        ({"accumulate": 200}, "a batch of 128 has no 200 parts"),
        ({"schedule": {"name": "cosine", "warmup": 0.7, "cooldown": 0.5}}, "more than the whole training"),
        ({"objective": {"name": "random_dropping"}, "model": RESNET}, "no attention block"),
        ({"phases": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"data": {"name": "arrays", "path": str(tmp_path / "none.npz")}}, "no file"),
    ]:
        with pytest.raises(UserError, match=message):
            rv.train({**TINY, **change}, run=tmp_path / "run", quiet=True)


def test_a_recipe_that_cannot_begin_leaves_nothing_behind(tmp_path):
    wrong = {**TINY, "model": {**TINY["model"], "num_classes": 3}}
    with pytest.raises(UserError):
        rv.train(wrong, run=tmp_path / "new", quiet=True)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    with pytest.raises(UserError):
        rv.train(wrong, run=tmp_path / "old", quiet=True)
    assert (tmp_path / "old" / "notes.txt").read_text() == "mine"


def test_validation_neither_probes_the_model_nor_hashes_anything(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("not inside a training")

    for place in ("subject.fingerprint", "subject.data_fingerprint", "attacked.probe_model"):
        monkeypatch.setattr(f"robustvit.evaluation.{place}", refuse)
    overrides = ["epochs=1", "validation.hold_out=40", "validation.suite=pgd-2", "objective.attack.steps=1"]
    folder = rv.train("digits/trades", run=tmp_path / "run", overrides=overrides, quiet=True)
    assert any(row["kind"] == "validation" for row in read_rows(folder.metrics.path))


def test_the_average_begins_anew_with_each_phase(tmp_path, monkeypatch):
    rates = []
    monkeypatch.setattr(Ema, "update", lambda ema, average, model, decay: rates.append(decay))
    phases = [{"name": "first"}, {"name": "second", "objective": "standard"}]
    recipe = {**TINY, "validation": {"hold_out": 0}, "checkpoints": {"select": "last"}, "epochs": 1, "phases": phases}
    rv.train({**recipe, "ema": {"decay": 0.9, "warmup": 0.2}}, run=tmp_path, quiet=True)
    half = len(rates) // 2
    assert half > 9
    assert rates[:half] == rates[half:] == [Ema(decay=0.9, warmup=0.2).rate(step, half) for step in range(half)]


def test_the_best_checkpoint_is_that_of_the_best_validation(tmp_path, monkeypatch):
    scores = iter([0.2, 0.6, 0.4, 0.6])

    def scored(*arguments):
        score = next(scores)
        facts = {"title": "pgd-2", "num_images": 10, "clean_accuracy": 1.0, "robust_accuracy": score}
        return SimpleNamespace(**facts, is_robust=torch.arange(10) < 10 * score)

    monkeypatch.setattr("robustvit.training.classify.evaluate_subject", scored)
    recipe = {**TINY, "epochs": 4, "batch_size": 512, "objective": "standard"}
    run = rv.train(recipe, run=tmp_path, quiet=True)
    best, *epochs = (
        fingerprint(load_model(run.checkpoints / f"{name}.safetensors"))
        for name in ("best", *(f"main-epoch-000{epoch}" for epoch in (1, 2, 3, 4)))
    )
    assert [epoch == best for epoch in epochs] == [False, True, False, False]


def test_some_of_the_training_images_are_drawn_by_the_seed_apart_from_the_hold_out():
    def drawn(**changes):
        images, held = open_images(recipe_from({**TINY, **changes}))
        return images.of.indices[images.indices].tolist(), held.indices.tolist()

    some, held = drawn(train_images=100)
    assert len(set(some)) == 100
    assert not set(some) & set(held)
    assert held == open_images(recipe_from(TINY))[1].indices.tolist(), "validation is on the same images"
    assert set(some) < set(drawn(train_images=200)[0]), "more images are these and others"
    chosen = [open_images(recipe_from({**TINY, "train_images": 100, "seed": seed}))[0].indices for seed in (0, 1)]
    assert not torch.equal(*chosen)


def test_more_training_images_than_there_are_is_refused():
    with pytest.raises(UserError, match="train_images: digits.* has 1373 that are not held out, not 1400"):
        open_images(recipe_from({**TINY, "train_images": 1400}))
