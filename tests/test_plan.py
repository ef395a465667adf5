"""What a training takes, planned without training."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.core.world import World
from robustvit.models.cost import model_cost, num_parameters
from robustvit.models.precision import compute_in
from robustvit.planning import Hardware, Plan, hardware_from, parse_utilization, plan, plan_sweep, plan_text
from robustvit.planning.hardware import PLAIN
from robustvit.planning.memory import TEMPORARIES, optimizer_bytes
from robustvit.planning.opening import _usual_size, open_data
from robustvit.planning.passes import IMAGES, count_passes
from robustvit.planning.text import ROOM
from robustvit.planning.work import count_work
from robustvit.training import recipe_from
from robustvit.training.parts import Parts
from robustvit.training.recipe import Phase
from robustvit.training.step import take_step
from robustvit.training.sweep_grid import sweep_from
from test_training import TINY

runner = CliRunner()
QUICK = ["objective.attack.steps=1"]
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


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_kept_activations_are_those_of_a_real_pass(precision):
    recipe = recipe_from("digits/trades")
    with torch.device("meta"):
        work = count_work(recipe.model.build(), 8, precision)
    model = recipe.model.build().train()
    compute_in(model, precision)
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    saved = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.rand(16, 3, 8, 8))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert 16 * work.kept_in_loss + work.kept_once == measured
    assert (work.kept_once > num_parameters(model)) == (precision == "bf16"), "two bytes for almost all of them"
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


@pytest.mark.parametrize(("images", "steps"), [(None, 8), (10_000, 8), (400, 2)])
def test_a_part_of_the_images_is_planned_as_such(images, steps):
    recipe = recipe_from({**TINY, "train_images": 1000, "batch_size": 125, "epochs": 1})
    assert open_data(recipe, images).steps(recipe.phases[0]) == steps


def test_what_does_not_fit_names_a_setting_that_does():
    given = {"hardware": Hardware("device", 1, 1e12, memory=20e9), "images": 50_000}
    text = plan_text(plan("cifar10/vit_b2_trades", **given))
    assert "does not fit into 20 GB; accumulate=" in text
    parts = text.partition("accumulate=")[2].partition(" ")[0]
    assert "are there" in plan_text(plan("cifar10/vit_b2_trades", [f"accumulate={parts}"], **given))
    assert "accumulate=" in plan_text(plan("cifar10/vit_b2_trades", [f"accumulate={int(parts) - 1}"], **given))


@pytest.mark.parametrize(("accumulate", "images"), [(1, 4), (2, 4), (8, 4), (16, 2)])
def test_parts_on_several_devices_are_those_of_a_training(accumulate, images):
    made = plan("digits/trades", [*QUICK, f"accumulate={accumulate}"], hardware=Hardware("device", 8, 1e12))
    parts = Parts.of(32, accumulate, World(0, 8))
    (phase,) = made.phases
    assert (phase.parts, parts.size) == (parts.count, images)
    assert [len(range(parts.rows)[rows]) for _, rows in parts] == [images] * (parts.count // 8)
    kept = phase.passes.held_in_loss * phase.work.kept_in_loss
    assert made.memory["activations"] == pytest.approx(TEMPORARIES * images * kept)


def test_devices_that_a_training_refuses_have_no_plan():
    with pytest.raises(UserError, match="a batch of 32 images can't be cut into 64 parts for 64 processes"):
        plan("digits/trades", QUICK, hardware=Hardware("device", 64, 1e12))


def test_what_does_not_fit_on_several_devices_names_a_multiple_of_them():
    """And one that both phases can take."""
    phases = [{"name": "a", "batch_size": 128}, {"name": "b", "batch_size": 66, "accumulate": 6}]
    recipe = merge(TINY, {"phases": [{"epochs": 1, "objective": "standard", **phase} for phase in phases]})

    def on(memory: float, *given: str) -> Plan:
        return plan(recipe, given, hardware=Hardware("device", 3, 1e12, memory=memory))

    wanted = sum(on(1e9, "accumulate=9").memory.values())
    text = plan_text(on((wanted + 1) / ROOM))
    assert "does not fit" in text
    assert "; accumulate=9 would take" in text
    assert "are there" in plan_text(on((wanted + 1) / ROOM, "accumulate=9"))
    assert "a device with more memory is needed" in plan_text(on(1e8))


def test_repeated_images_allow_no_more_parts_than_a_batch_has():
    given = [*QUICK, "batch_size=4", "repeats=3", "augmentation=pad_crop"]
    memory = sum(plan("digits/trades", given, hardware=Hardware("d", 1, 1e12)).memory.values())
    least = plan("digits/trades", [*given, "accumulate=4"], hardware=Hardware("d", 1, 1e12))
    below = sum(least.memory.values()) - 1
    text = plan_text(plan("digits/trades", given, hardware=Hardware("d", 1, 1e12, memory=below / ROOM)))
    assert below < memory
    assert "accumulate" not in text


def test_sharding_divides_all_but_what_is_gathered():
    given = [*QUICK, "ema={decay: 0.9}", "optimizer={opt: adamw}"]
    hardware = Hardware("device", 4, 1e12)
    whole, spread = (plan("digits/trades", [*given, f"shard={on}"], hardware=hardware) for on in ("false", "true"))
    for name in ("weights", "gradients", "optimizer", "average of the weights"):
        assert spread.memory[name] == pytest.approx(whole.memory[name] / 4)
    weights = whole.memory["weights"]
    search, loss, save = (moment["gathered weights"] for moment in spread.phases[0].moments)
    assert (search, save) == (weights, 2 * weights)
    assert 0 < loss < 2.1 * weights, "two blocks and their gradients, of a network of two"
    of_search = spread.phases[0].moments[0]["activations"]
    assert of_search > whole.phases[0].moments[0]["activations"], "gathered parameters can't be frozen"
    (alone,) = plan("digits/trades", [*given, "shard=true"], hardware=Hardware("device", 1, 1e12)).phases
    assert alone.memory["gathered weights"] == 0, "one process has the whole network"
    with pytest.raises(UserError, match="'adamp' does not work on shards"):
        plan("digits/trades", [*QUICK, "shard=true", "optimizer={opt: adamp}"], hardware=hardware)


def test_bfloat16_takes_less_memory():
    full, half = (
        plan("digits/trades", [*QUICK, f"precision={name}"], hardware="a100-80gb") for name in ("float32", "bf16")
    )
    assert half.memory["activations"] < 0.8 * full.memory["activations"]
    assert half.memory["cast weights"] == 2 * half.phases[0].work.kept_once > 0, "two passes are held"
    assert full.memory["cast weights"] == 0


def test_the_command_prints_energy_and_cost():
    command = ["plan", "digits/trades", "--hardware", "a100-80gb:8", "--price", "2", "--grid-intensity", "400"]
    output = runner.invoke(app, command).output
    assert [line.split()[0] for line in output.splitlines()] == [
        "recipe", "phase", "work", "memory", "time", "energy", "cost"
    ]  # fmt: skip
    printed = json.loads(runner.invoke(app, [*command, "--json"]).output)
    assert printed["count"] == 8
    assert printed["watts"] == 400
    low, high = printed["kilowatt_hours"]
    assert printed["kilograms_of_co2"] == pytest.approx([0.4 * low, 0.4 * high])
    assert printed["cost"] == pytest.approx([2 * low / 0.4, 2 * high / 0.4])
    assert printed["memory"]["activations"] > 0


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
        (["--hardware", "a100-80gb", "--devices", "4"], "--devices 4: goes with --flops; --hardware NAME:4 takes"),
        (["--devices", "4"], "--devices 4: goes with --flops"),
        (["--flops", "1e12", "--precision", "fp8"], "--precision fp8: goes with --hardware"),
        (["--precision", "bf16"], "--precision bf16: goes with --hardware; this machine computes in that"),
        (["--flops", "1e12", "--grid-intensity", "400"], "--grid-intensity 400: needs the power of a device"),
        (["--grid-intensity", "400"], "--grid-intensity 400: needs the power of a device"),
        (["--utilization", "0.3,0.4"], "--utilization 0.3,0.4: goes with --hardware or --flops"),
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
    with pytest.raises(UserError, match=r"--images N \(of sweep: --training-images N\) plans without the data"):
        plan("cifar10/vit_b2_trades", hardware=hardware_from("v100-32gb"))
    with pytest.raises(UserError, match="LOW,HIGH"):
        parse_utilization("1,2")


def test_a_sweep_is_planned_without_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path))
    sweep = ["sweep", "cifar10/vit_tiny_trades", "-o", "epochs=1,2"]
    planning = [*sweep, "--plan", "--hardware", "a100-80gb"]
    refused = runner.invoke(app, planning)
    assert (refused.exit_code, "--training-images N" in refused.output) == (2, True)
    planned = runner.invoke(app, [*planning, "--training-images", "50000"])
    assert (planned.exit_code, len(planned.output.splitlines())) == (0, 3)
    refused = runner.invoke(app, [*sweep, "--training-images", "50000"])
    assert (refused.exit_code, "--training-images: goes with --plan" in refused.output) == (2, True)


def test_every_point_of_a_sweep_has_the_rate_of_its_precision():
    names = ["float32", "tf32", "bf16"]
    changes = [f"precision={','.join(names)}", "objective=standard"]
    planned = plan_sweep(sweep_from("digits/trades", changes), "a100-80gb")
    for name, made in zip(names, planned.plans.values(), strict=True):
        rate = hardware_from("a100-80gb", name).flops
        assert made.seconds[0] == pytest.approx(made.operations / (rate * PLAIN[1]))
    with pytest.raises(UserError, match="^--hardware a100-80g: not in the list"):
        plan_sweep(sweep_from("digits/trades", ["epochs=1,2"]), "a100-80g")


def test_the_usual_size_of_a_model_with_adapters_is_that_of_its_backbone():
    recipe = recipe_from("digits/tora", ["start=null", "model.img_size=null", "model.patch_size=null"])
    assert _usual_size(recipe) == 224


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


def test_runs_that_differ_in_their_seeds_alone_are_planned_once(monkeypatch):
    made = []

    def counted(recipe, **given):
        made.append(recipe)
        return plan(recipe, **given)

    monkeypatch.setattr("robustvit.planning.sweep.plan", counted)
    planned = plan_sweep(sweep_from("digits/trades", ["seed=0,1,2", "epochs=1,2"]), "a100-80gb")
    assert (len(planned.plans), len(made)) == (6, 2)
    assert len({each.operations for each in planned.plans.values()}) == 2
