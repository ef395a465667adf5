"""Steps that take turns, each with an objective, trainable parameters and a head of its own: TORA-ViT's training."""

import pytest
import torch
from torch import Tensor

import robustvit as rv
from conftest import TINY_VIT, token_vit
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.world import World
from robustvit.models import fingerprint, load_model, save_model
from robustvit.training import recipe_from
from robustvit.training.classify import Classify
from robustvit.training.opening import never_trained
from robustvit.training.recorder import NullRecorder
from robustvit.training.task import Position

PGD: dict = {"name": "adversarial", "attack": {"name": "pgd", "steps": 2}}
FIXED = ("num_classes", "img_size", "patch_size", "mean", "std")
MODEL = {
    "name": "vit_tiny_patch16_224",
    **{name: TINY_VIT[name] for name in FIXED},
    "settings": {"embed_dim": 32, "depth": 1, "num_heads": 2, "drop_path_rate": 0.1},
    "adapters": "tora",
}
TURNS = [
    {"objective": PGD, "head": "rob", "trainable": ["adapters.*.rob.*", "adapters.*.fusion.*", "heads.rob.*"]},
    {"objective": "standard", "head": "acc", "trainable": ["adapters.*.acc.*", "adapters.*.fusion.*", "heads.acc.*"]},
]
TORA: dict = {
    "name": "tora",
    "model": MODEL,
    "data": "digits",
    "threat": {"norm": "inf", "eps": 0.1},
    "batch_size": 200,
    "epochs": 1,
    "schedule": {"name": "cosine", "warmup": 0},
    "optimizer": {"opt": "adamw", "lr": 3e-3},
    "clip_norm": 1.0,
    "checkpoints": {"seconds": 1000},
    "log_every": 4,
    "phases": [
        {"name": "independent", "alternate": TURNS},
        {"name": "joint", "trainable": ["adapters.*.fusion.*"], "objective": {"name": "trade_off", "robust": PGD}},
    ],
}


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> dict:
    """The recipe with weights to start from."""
    file = tmp_path_factory.mktemp("backbone") / "backbone.safetensors"
    save_model(token_vit(depth=1), file)
    return {**TORA, "start": {"weights": str(file)}}


def task_of(recipe: dict) -> Classify:
    checked = recipe_from(recipe)
    task = Classify(checked.resolved("cpu"), NullRecorder(), World())
    task.initialize()
    return task


def parameters(task: Classify) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in task.model.backbone.named_parameters()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """What kind of parameters moved: adapters of all blocks are one."""
    names = [name for name in before if not torch.equal(before[name], after[name])]
    return {name.split(".")[0] + "." + name.split(".")[2 if name.startswith("adapters") else 1] for name in names}


def weights(folder) -> str:
    return fingerprint(load_model(folder / "checkpoints" / "last.safetensors"))


def test_a_step_moves_the_parameters_of_its_turn_alone(started):
    task, seen = task_of(started), []
    for phase, steps in ((0, 5), (1, 1)):
        feed = task.begin_phase(phase)
        for step in range(steps):
            before = parameters(task)
            result = task.step(feed[step], Position(phase, "", len(feed), feed.steps_per_epoch, step))
            seen.append((moved(before, parameters(task)), set(result.means) - {"loss"}))
    rob, acc = {"adapters.rob", "adapters.fusion", "heads.rob"}, {"adapters.acc", "adapters.fusion", "heads.acc"}
    assert [names for names, _ in seen[:5]] == [rob, acc, rob, acc, rob]
    assert [names for names, _ in seen[5:]] == [{"adapters.fusion"}]
    assert seen[2][1] == {"rob_loss", "robust_accuracy"}
    assert seen[3][1] == {"acc_loss", "clean_accuracy"}


def test_a_step_goes_through_the_head_of_its_turn(started):
    phase = {"objective": "standard", "head": "acc", "trainable": ["heads.*"]}
    task = task_of({**started, "phases": [phase]})
    feed, before = task.begin_phase(0), parameters(task)
    task.step(feed[0], Position(0, "", len(feed), feed.steps_per_epoch))
    assert moved(before, parameters(task)) == {"heads.acc"}


def test_the_frozen_backbone_has_no_gradient_and_no_optimizer_state(started):
    task = task_of(started)
    for phase in (0, 1):
        feed = task.begin_phase(phase)
        for step in range(2):
            task.step(feed[step], Position(phase, "", len(feed), feed.steps_per_epoch, step))
        frozen = {id(parameter) for parameter in task.model.backbone.vit.parameters()}
        assert all(parameter.grad is None for parameter in task.model.backbone.vit.parameters())
        assert not frozen & {id(parameter) for parameter in task.optimizer.state}
        assert not frozen & {id(one) for group in task.optimizer.param_groups for one in group["params"]}
    kept = [name for name, value in task.model.backbone.vit.state_dict().items()
            if not torch.equal(value, token_vit(depth=1).backbone.state_dict()[name])]  # fmt: skip
    assert not kept


def test_a_run_resumes_exactly_in_every_phase_and_between_turns(started, tmp_path):
    whole = rv.train(started, run=tmp_path / "whole", quiet=True)
    for steps in (1, 2, 4, 3, 1):  # after the first turn, after the second, at the end of the phase, within the next
        rv.train(started, run=tmp_path / "broken", quiet=True, max_steps=steps)
    broken = rv.train(started, run=tmp_path / "broken", quiet=True)
    assert weights(whole.path) == weights(broken.path)
    assert whole.metrics.path.read_text() == broken.metrics.path.read_text()
    rows = read_rows(whole.metrics.path)
    assert {"rob_loss", "acc_loss", "robust_accuracy", "clean_accuracy"} <= set(rows[0])


def test_one_turn_is_a_plain_phase(started, tmp_path):
    turn = {"objective": PGD, "head": "rob", "trainable": ["adapters.*", "heads.rob.*"]}
    base = {key: value for key, value in started.items() if key != "phases"}
    plain = rv.train({**base, **turn}, run=tmp_path / "plain", quiet=True, max_steps=5)
    turns = rv.train({**base, "alternate": [turn]}, run=tmp_path / "turns", quiet=True, max_steps=5)
    states = [torch.load(next(run.checkpoints.glob("state-*.pt")), weights_only=True) for run in (plain, turns)]
    tensors = [state["task"]["model"] for state in states]
    assert all(torch.equal(value, tensors[1][name]) for name, value in tensors[0].items())


def test_the_parts_of_the_paper_combine_in_one_recipe(started, tmp_path):
    """TRADES as L_ROB, eps warm-up, EMA, attention factors and weight perturbation, stopped between two turns."""
    trades = {"name": "trades", "attack": {"steps": 1}}
    first = {"name": "independent", "alternate": [{**TURNS[0], "objective": trades}, TURNS[1]]}
    second = {**TORA["phases"][1], "objective": {"name": "trade_off", "robust": trades, "robust_weight": 0.9}}
    recipe = {
        **started,
        "phases": [first, second],
        "eps_schedule": {"name": "linear_warmup", "until": 0.5},
        "ema": {"decay": 0.9},
        "around_step": "awp",
        "events": [{"name": "attention_scaling", "every": 1, "search": {"batches": 1, "steps": 1}}],
        "batch_size": 400,
    }
    whole = rv.train(recipe, run=tmp_path / "whole", quiet=True)
    for steps in (1, 3):
        rv.train(recipe, run=tmp_path / "broken", quiet=True, max_steps=steps)
    broken = rv.train(recipe, run=tmp_path / "broken", quiet=True)
    assert weights(whole.path) == weights(broken.path)
    assert load_model(whole.path).attention_factors is not None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"phases": [{"alternate": TURNS, "objective": "standard"}]}, "objective: every turn of alternate has its own"),
        ({"phases": [{"alternate": TURNS, "head": "acc"}]}, "head: every turn of alternate has its own"),
        ({"phases": [{"alternate": TURNS, "trainable": ["heads.*"]}]}, "trainable: every turn of alternate"),
        ({"phases": [{"alternate": []}]}, "alternate"),
        ({"phases": [{}]}, "objective: missing"),
        ({"phases": [{"objective": "standard", "head": "robust"}]}, "'main': head 'robust': .*did you mean 'rob'"),
        ({"phases": [{"alternate": [{**TURNS[0], "trainable": ["nose.*"]}]}]}, "trains nothing"),
        ({"model": {**MODEL, "adapters": None}}, "trains nothing"),
        (
            {"model": {**MODEL, "adapters": None}, "phases": [{"objective": "standard", "head": "acc"}]},
            "'main': head 'acc': the model VisionTransformer has one output and no heads",
        ),
        (
            {"phases": [{"objective": {"name": "trade_off", "robust_weight": 1.5}}]},
            r"objective.*robust_weight: .*less than or equal to 1.*1\.5",
        ),
    ],
)
def test_mistakes_are_reported(change, problem, tmp_path):
    with pytest.raises(UserError, match=problem):
        rv.train({**TORA, **change}, run=tmp_path / "run", quiet=True)


def test_a_frozen_backbone_without_weights_is_warned_about(tmp_path, capsys):
    rv.train(TORA, run=tmp_path, max_steps=1)
    text = " ".join(capsys.readouterr().err.split())
    assert "such as vit.cls_token, are drawn at random and never trained; set start.weights to a trained model" in text


def test_adapters_that_are_neither_loaded_nor_trained_are_warned_about(started, tmp_path, capsys):
    """The second phase alone, from a backbone instead of the first; heads begin as copies of the backbone's."""
    rv.train({**started, "phases": TORA["phases"][1:]}, run=tmp_path, max_steps=1)
    text = " ".join(capsys.readouterr().err.split())
    assert "8 tensors, such as adapters.0.acc.down.weight, are drawn at random and never trained: " in text
    assert "lacks them; start from a run that trained them, or add them to trainable" in text
    recipe = recipe_from(started)
    model = recipe.model.build()
    assert not never_trained(recipe, model, recipe.start(model))
