"""Where parts meet: processes that decide together, evaluators by settings, commands that run in one process."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.world import World
from robustvit.evaluation import (
    Accuracy,
    Attacked,
    Job,
    evaluate_curve,
    evaluate_subject,
    evaluator_from,
    needs_threat,
    open_subject,
    suite_from,
)
from robustvit.evaluation.store import Store
from robustvit.training.recipe import recipe_from

THREAT = rv.LpBall("inf", 0.1)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_first_process_decides_when_all_is_known(trained, digits, tmp_path, monkeypatch):
    """A process that reads the ledgers late may find them complete when the first one did not."""
    data = tuple(part[:16] for part in digits)
    subject, evaluator = open_subject(trained, data, quiet=True), Attacked(THREAT, "fgsm")
    job = Job(tmp_path, checks=False)
    whole = evaluate_subject(subject, evaluator, job)
    decisions = iter([False, False, True])
    advanced = []

    def broadcast(self, value):
        return next(decisions) if isinstance(value, bool) else value

    from robustvit.evaluation.attacked import AttackedEvaluation

    advance = AttackedEvaluation.advance

    def counted(self, *rest):
        advanced.append(rest)
        advance(self, *rest)

    monkeypatch.setattr(AttackedEvaluation, "advance", counted)
    monkeypatch.setattr(World, "broadcast", broadcast)
    monkeypatch.setattr(World, "barrier", lambda self: None)
    monkeypatch.setattr(World, "gather", lambda self, value: [value, value])
    monkeypatch.setattr("robustvit.evaluation.store.is_shared", lambda folder, world: True)
    late = evaluate_subject(subject, evaluator, job, World(1, 2))
    assert len(advanced) == 1, "it takes part in the round, although its own ledger lacks nothing"
    assert np.array_equal(late.is_robust, whole.is_robust)
    assert list(decisions) == []


def test_sessions_are_written_by_the_first_process_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(World, "broadcast", lambda self, value: ["of the first"])
    store = Store(tmp_path, World(1, 2))
    assert store.note_session({"threads": 1, "versions": {}}) == ["of the first"]
    assert not list(tmp_path.iterdir())


def test_a_world_brings_its_device(trained, digits):
    with pytest.raises(UserError, match="device 'cuda:7' can't be used"):
        rv.evaluate(trained, digits, suite="fgsm", threat=THREAT, world=World(0, 1, "cuda:7"))
    options = {"suite": "clean", "threat": THREAT, "quiet": True}
    result = rv.evaluate(trained, digits, world=World(0, 1, "cuda:7"), device="cpu", **options)
    assert result.provenance.device == "cpu"


def test_a_process_group_of_another_size_is_refused(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/group", world_size=1, rank=0)
    try:
        with pytest.raises(UserError, match="process 0 of 2, but the process group of this program has process 0 of 1"):
            World(0, 2).barrier()
    finally:
        dist.destroy_process_group()


def test_a_command_of_one_process_refuses_a_launcher(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = run("quickstart")
    assert done.exit_code == 2
    assert "quickstart: runs in one process so far; start it without a launcher" in done.output
    monkeypatch.setenv("RANK", "x")
    assert "RANK is 'x' in the environment" in run("quickstart").output


def test_evaluators_are_given_by_name_settings_or_instance():
    for given in ("accuracy:worst=true", {"name": "accuracy", "worst": True}, "{name: accuracy, worst: true}"):
        assert evaluator_from(given, None) == Accuracy(worst=True)
    assert evaluator_from("attacked", THREAT) == Attacked(threat=THREAT)
    assert evaluator_from("{name: attacked, suite: fgsm}", THREAT).suite.plan(THREAT).name == "fgsm"
    own = {"name": "attacked", "threat": {"norm": "inf", "eps": 0.3}}
    assert evaluator_from(own, None).threat.eps == 0.3
    needs = ["attacked", "pgd-20", "{name: attacked}", [rv.attacks.FGSM()]]
    assert all(map(needs_threat, needs))
    assert not any(map(needs_threat, ["accuracy", "clean", "{name: accuracy}", own, Attacked(threat=THREAT)]))
    with pytest.raises(UserError, match="threat: how large a change"):
        evaluator_from("attacked", None)
    with pytest.raises(UserError, match="an attack has a name and settings that are text"):
        suite_from({"name": ["a"]})


def test_settings_that_would_be_ignored_are_refused(trained, digits):
    with pytest.raises(UserError, match="quantized: a setting of attacks"):
        evaluator_from("accuracy", THREAT, quantized=True)
    with pytest.raises(UserError, match="threat: the evaluator has Linf 0.1 already, not Linf 0.2"):
        evaluator_from(Attacked(threat=THREAT), rv.LpBall("inf", 0.2))
    assert evaluator_from(Attacked(threat=THREAT), THREAT).threat == THREAT
    with pytest.raises(UserError, match="several eps make a curve of attacks"):
        evaluate_curve(trained, digits, suite="accuracy", threats=[THREAT, rv.LpBall("inf", 0.2)])


def test_validation_and_sweeps_take_nested_suites_and_evaluators(tmp_path):
    nested = "{name: restarts, inner: fgsm, times: 2}"
    recipe = recipe_from("digits/trades", [f"validation.suite={nested}", "epochs=1"])
    assert recipe.validation.suite == {"name": "restarts", "inner": "fgsm", "times": 2}
    assert recipe_from(recipe.to_dict()) == recipe
    assert recipe_from("digits/trades", ["validation.suite=accuracy"]).validation.suite == "accuracy"
    with pytest.raises(UserError, match="no suite 'accuraci'; did you mean 'accuracy'"):
        recipe_from("digits/trades", ["validation.suite=accuraci"])


def test_names_of_suites_say_what_is_missing():
    with pytest.raises(UserError, match=r"suite 'pgd': how many steps\? the name is pgd-N\[xR\].*, such as pgd-20"):
        suite_from("pgd")
    assert suite_from({"name": "attacks", "members": []}).plan(THREAT).name == "clean"
    with pytest.raises(UserError, match="'fgsm' searches for nothing that chance could replace"):
        suite_from({"name": "control", "of": "fgsm"})


def test_overrides_of_the_threat_must_be_maps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ("evaluate", "resnet18", "--random-weights", "--num-classes", "10", "--data", "digits")
    for value in ("3", "null"):
        done = run(*model, "-o", f"threat={value}")
        assert done.exit_code == 2
        assert "-o threat: a map such as {norm: inf, eps: 8/255}, not" in done.output
    done = run("train", "digits/trades", "-o", "task={name: classify, foo: 1}")
    assert done.exit_code == 2
    assert done.output.strip() == "robustvit: recipe.task: foo: no such setting"


def test_verify_puts_a_model_back_where_it_was(trained, digits, tmp_path, monkeypatch):
    data = tuple(part[:16] for part in digits)
    result = rv.evaluate(trained, data, suite="fgsm", threat=THREAT, save_images=True, run=tmp_path, quiet=True)
    moved = []
    monkeypatch.setattr(type(trained), "to", lambda self, place: (moved.append(place), self)[1])
    rv.verify(f"{result.folder}/adversarial.npy", trained, device="cpu")
    assert moved == ["cpu", "cpu"]


def test_callables_that_differ_on_few_images_have_other_behavior(digits):
    x, y = digits

    def late(images):
        known = torch.isclose(images.flatten(1).sum(1)[:, None], x[200:].flatten(1).sum(1)[None]).any(1)
        return torch.eye(10)[torch.where(known, 1, 0)]

    def never(images):
        return torch.eye(10)[torch.zeros(len(images), dtype=torch.long)]

    with open_subject(late, (x, y)).ready() as one, open_subject(never, (x, y)).ready() as other:
        assert one.behavior != other.behavior
