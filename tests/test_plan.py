"""What a training takes, planned without training."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.models.cost import model_cost
from robustvit.planning import Hardware, hardware_from, parse_utilization, plan, plan_sweep, plan_text
from robustvit.planning.memory import count_work, optimizer_bytes
from robustvit.planning.passes import IMAGES, count_passes
from robustvit.training import recipe_from
from robustvit.training.recipe import Phase
from robustvit.training.step import take_step
from robustvit.training.sweep_grid import sweep_from

runner = CliRunner()
PGD = {"name": "pgd", "steps": 3}
OBJECTIVES = {
    "standard": {"name": "standard"},
    "adversarial": {"name": "adversarial", "attack": PGD},
    "fgsm": {"name": "adversarial", "attack": "fgsm"},
    "trades": {"name": "trades", "attack": PGD},
    "mart": {"name": "mart", "attack": PGD},
    "n-fgsm": {"name": "n_fgsm"},
    "dropping": {"name": "random_dropping", "inner": {"name": "trades", "attack": PGD}},
    "sum": {"name": "weighted_sum", "terms": [{"weight": 1, "objective": "standard"},
                                          {"weight": 2, "objective": {"name": "trades", "attack": PGD}}]},
}  # fmt: skip


class Counted:
    """Passes of a real model, by hooks on its input and on one of its parameters."""

    def __init__(self, model):
        self.counts = Counter()
        self.parameter = next(p for name, p in model.named_parameters() if name.endswith("head.weight"))
        model.register_forward_pre_hook(self._before)
        self.parameter.register_hook(lambda gradient: self.counts.update(gradients=1))

    def _before(self, module, inputs):
        (x,) = inputs
        self.counts["forward"] += len(x)
        x = x * 1
        if x.requires_grad and not self.parameter.requires_grad:
            x.register_hook(lambda gradient: self.counts.update(input_gradient=len(x)))
        return x


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("wrapper", [None, "awp"])
def test_counted_passes_are_those_of_a_real_step(name, wrapper):
    given = ["objective=" + json.dumps(OBJECTIVES[name]), f"around_step={wrapper or 'null'}", "eps_schedule=null"]
    recipe = recipe_from("digits/trades", given).resolved("cpu")
    (phase,) = recipe.phases
    model = recipe.model.build()
    counted, optimizer = Counted(model), phase.optimizer.build(model)
    x, y = torch.rand(IMAGES, 3, 8, 8), torch.arange(IMAGES)
    random = sample_streams(0, torch.arange(IMAGES))
    take_step(model, optimizer, phase, phase.turns[0], x, y, recipe.threat, random, 0.5)
    passes = count_passes(recipe.model.build(), phase, recipe.threat, 8, 10)
    asked = 0.05 if name in ("adversarial", "fgsm", "n-fgsm") else 0.0  # clean accuracy, every 20th step
    assert passes.forward == pytest.approx(counted.counts["forward"] / IMAGES + asked)
    assert passes.input_gradient == pytest.approx(counted.counts["input_gradient"] / IMAGES)
    assert (passes.gradient > 0) == (counted.counts["gradients"] > 0)


def test_a_phase_without_an_attack_has_fewer_passes():
    given = [
        "eps_schedule={name: linear_warmup, begin: 0.5, until: 0.5}",
        "objective={name: adversarial, attack: fgsm}",
    ]
    recipe = recipe_from("digits/trades", given).resolved("cpu")
    passes = count_passes(recipe.model.build(), recipe.phases[0], recipe.threat, 8, 10)
    assert passes.input_gradient == pytest.approx(0.5)


def test_losses_on_two_batches_keep_twice_the_activations():
    def held(objective):
        recipe = recipe_from("digits/trades", [f"objective={json.dumps(OBJECTIVES[objective])}"]).resolved("cpu")
        return count_passes(recipe.model.build(), recipe.phases[0], recipe.threat, 8, 10).held_in_loss

    assert (held("standard"), held("adversarial"), held("trades")) == (1, 1, 2)


def test_operations_are_those_of_the_cost():
    recipe = recipe_from("digits/trades")
    with torch.device("meta"):
        model = recipe.model.build()
    work = count_work(model, 8)
    assert work.forward == 2 * model_cost(model, 8).multiply_adds
    assert work.forward < work.input_gradient < 1.1 * work.forward
    assert 1.9 * work.forward < work.gradient < 2.1 * work.forward
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.backbone.head.weight.requires_grad_(True)
    assert count_work(model, 8).gradient < 0.1 * work.gradient, "frozen parameters get no gradient"


def test_kept_activations_are_those_of_a_real_pass():
    recipe = recipe_from("digits/trades")
    with torch.device("meta"):
        work = count_work(recipe.model.build(), 8)
    model = recipe.model.build().train()
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    saved = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.rand(16, 3, 8, 8))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / 16
    assert measured <= work.kept_in_loss * 1.02
    assert work.kept_in_loss < 1.25 * measured
    assert work.kept_in_search < 0.8 * work.kept_in_loss, "frozen parameters keep less"


@pytest.mark.parametrize(("opt", "copies"), [("sgd", 1), ("lion", 1), ("adamw", 2)])
def test_states_of_optimizers(opt, copies):
    recipe = recipe_from("digits/trades", [f"optimizer={{opt: {opt}}}"])
    with torch.device("meta"):
        model = recipe.model.build()
    size = 4 * sum(p.numel() for p in model.parameters())
    assert size * copies <= optimizer_bytes(model, recipe.phases[0].optimizer) < size * copies + 1_000


def test_time_on_hardware_follows_from_operations_and_rate():
    made = plan("digits/trades", hardware=Hardware("device", 2, 1e9), utilization=(0.1, 0.5))
    assert made.seconds == pytest.approx((made.operations / 1e9, made.operations / 2e8))
    phase = made.phases[0]
    assert (phase.steps, phase.rows) == (800, 32)
    assert plan("digits/trades", ["epochs=1"], hardware=Hardware("d", 1, 1e9)).phases[0].steps == 800 // 20


def test_a_plan_without_the_data():
    made = plan("cifar10/vit_b2_trades", hardware=hardware_from("tpu-v4:128"), images=50_000)
    (phase,) = made.phases
    assert phase.work.forward == pytest.approx(46.10e9, rel=1e-3)
    paper = 10.34  # steps a second on TPU v4-256, which are 128 chips (Wang et al.)
    assert phase.steps / made.seconds[1] < paper < phase.steps / made.seconds[0]


def test_what_does_not_fit_names_a_setting_that_does():
    given = {"hardware": Hardware("device", 1, 1e12, memory=20e9), "images": 50_000}
    text = plan_text(plan("cifar10/vit_b2_trades", **given))
    assert "does not fit into 20 GB; accumulate=" in text
    parts = text.partition("accumulate=")[2].partition(" ")[0]
    assert "are there" in plan_text(plan("cifar10/vit_b2_trades", [f"accumulate={parts}"], **given))
    assert "accumulate=" in plan_text(plan("cifar10/vit_b2_trades", [f"accumulate={int(parts) - 1}"], **given))


def test_the_command_prints_energy_and_cost():
    command = ["plan", "digits/trades", "--hardware", "a100-80gb:8", "--price", "2", "--grid-intensity", "400"]
    output = runner.invoke(app, command).output
    assert [line.split()[0] for line in output.splitlines()] == [
        "recipe", "phase", "work", "memory", "time", "energy", "cost"
    ]  # fmt: skip
    printed = json.loads(runner.invoke(app, [*command, "--json"]).output)
    assert printed["count"] == 8
    assert printed["watts"] == 400


def test_time_here_is_measured():
    made = plan("digits/trades", ["epochs=1"])
    assert made.is_measured
    assert made.seconds[0] == made.seconds[1] > 0
    assert "on this machine" in plan_text(made)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--hardware", "a100-80g:8"], "did you mean 'a100-80gb'"),
        (["--hardware", "a100-80gb:0"], "NAME or NAME:COUNT"),
        (["--hardware", "a100-80gb", "--flops", "1e12"], "give one of them"),
        (["--hardware", "a100-80gb", "--precision", "fp8"], "one of float32, tf32, bf16"),
        (["--flops", "-1"], "--flops -1: a number above 0"),
        (["--flops", "1e12", "--utilization", "0.5"], "LOW,HIGH between 0 and 1"),
        (["--flops", "1e12", "--price", "nan"], "--price nan: a number above 0"),
        (["--flops", "1e12", "--images", "10"], "the recipe holds out 128 of them"),
    ],
)
def test_mistakes(options, problem):
    result = runner.invoke(app, ["plan", "digits/trades", *options])
    assert result.exit_code == 2
    assert problem in result.output


def test_missing_data_name_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path))
    with pytest.raises(UserError, match="--images N plans without the data"):
        plan("cifar10/vit_b2_trades", hardware=hardware_from("v100-32gb"))
    with pytest.raises(UserError, match="LOW,HIGH"):
        parse_utilization("1,2")


def test_turns_are_averaged():
    """Of a phase whose steps take turns, one of them attacked."""
    recipe = recipe_from("digits/tora_independent", ["start=null"])
    (phase,) = recipe.phases
    alone = [replace(phase, alternate=(turn,)) for turn in phase.turns]

    def passes(phase: Phase) -> float:
        with torch.device("meta"):
            model = recipe.model.build()
        return count_passes(model, phase, recipe.threat, 8, 10).forward

    both, (attacked, standard) = passes(phase), map(passes, alone)
    assert attacked > standard > 0
    assert both == pytest.approx((attacked + standard) / 2)


def test_a_sweep_is_planned_as_the_sum_of_its_runs():
    command = ["sweep", "digits/trades", "-o", "epochs=1,2", "--plan", "--hardware", "a100-80gb"]
    lines = runner.invoke(app, command).output.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epochs=1", "epochs=2", "all 2 runs, one after the other"]
    planned = plan_sweep(sweep_from("digits/trades", ["epochs=1,2"]), Hardware("device", 1, 1e9))
    one, two = planned.plans.values()
    assert planned.operations == one.operations + two.operations
    assert planned.seconds == pytest.approx([one.seconds[i] + two.seconds[i] for i in range(2)])
    refused = runner.invoke(app, ["sweep", "digits/trades", "-o", "epochs=1,2", "--hardware", "a100-80gb"])
    assert (refused.exit_code, "--hardware: goes with --plan" in refused.output) == (2, True)
