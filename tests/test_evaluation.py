"""Numbers that can be trusted: the judge, the ledger, and independence of how the work was cut."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import APGD, FGSM, GAMA, MIM, PGD, CarliniWagner, Ensemble, FromSurrogate, Restarts
from robustvit.core.checksum import with_checksum
from robustvit.core.component import component, registered
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.numbers import wilson_interval
from robustvit.core.result_files import read_result
from robustvit.core.streams import seeded_order
from robustvit.core.world import World
from robustvit.data import Digits
from robustvit.evaluation import Attacked, evaluate, suite_from
from robustvit.evaluation.batches import in_memory
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.store import read_identity
from robustvit.evaluation.subject import (
    CountedModel,
    Subject,
    json_numbers,
    logits_spread,
    open_subject,
    spread_of_each,
    steady_rows,
)
from robustvit.models import eval_mode

THREAT = rv.LpBall("inf", 0.1)


@component("attack", "test-cheat")
class Cheat:
    """Leaves the ball and claims success."""

    def __call__(self, model, x, y, threat, search):
        far = (x + 3 * threat.eps).clamp(0, 1) if threat.eps < 0.3 else torch.full_like(x, float("nan"))
        far = 1 - far
        model(far)
        return far


def same(a, b):
    return np.array_equal(a.is_correct, b.is_correct) and np.array_equal(a.is_robust, b.is_robust)


def test_the_result_adds_up(trained, digits):
    result = evaluate(trained, digits, suite=["fgsm", "pgd-10"], threat=THREAT, quiet=True)
    assert result.num_images == 360
    assert np.array_equal(result.is_correct, (trained(digits[0]).argmax(1) == digits[1]).numpy())
    assert [attack.name for attack in result.stages] == ["fgsm", "pgd-10"]
    fallen = sum(attack.num_fooled for attack in result.stages)
    assert result.robust_accuracy == pytest.approx(result.clean_accuracy - fallen / 360, abs=1e-12)
    assert result.stages[-1].robust_accuracy == result.robust_accuracy
    assert 0.05 < result.robust_accuracy < result.clean_accuracy - 0.05, "the laws below need both outcomes"
    assert not (result.is_robust & ~result.is_correct).any()
    low, high = result.interval
    assert low < result.robust_accuracy < high
    assert result.stages[0].passes == 3 * result.is_correct.sum(), "a forward, a backward and the judge's forward"


@pytest.mark.parametrize(
    "suite", ["fgsm", "pgd-7", "pgd-5x3", "pgd-8:step=eps/8,start=none", "pgd-6:loss=cw,step=2/255"]
)
def test_verdicts_do_not_depend_on_batch_size_or_order(suite, trained, digits):
    model = tiny_vit() if suite == "pgd-7" else trained
    x, y = digits[0][:120], digits[1][:120]
    whole = evaluate(model, (x, y), suite=suite, threat=THREAT, batch_size=64, quiet=True)
    for batch_size in (8, 23):
        assert same(whole, evaluate(model, (x, y), suite=suite, threat=THREAT, batch_size=batch_size, quiet=True))
    assert whole.robust_accuracy < whole.clean_accuracy


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_keeps_its_bits_whatever_its_neighbours(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name, settings in [("vit_tiny_patch16_224", {"patch_size": 4, "depth": 2}), ("resnet18", {})]:
            model = rv.create_model(name, num_classes=10, img_size=32, **settings).eval()
            subject = Subject(model, Digits().open("test"), torch.arange(2), 0, 64, "cpu")
            x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))

            def outputs(rows, subject=subject, x=x):
                point = x[rows].requires_grad_()
                logits = subject(point)
                return logits.detach(), torch.autograd.grad(logits.square().sum(), point)[0]

            with eval_mode(model):
                logits, gradient = outputs(torch.arange(64))
                for count in (1, 3, 7, 9, 23, 41):
                    some = torch.arange(11, 11 + count)
                    for whole, part in zip((logits, gradient), outputs(some), strict=True):
                        assert torch.equal(whole[some], part), f"{name}, {count} rows, {threads} threads"
    finally:
        torch.set_num_threads(before)


def test_verdicts_do_not_depend_on_the_order_of_the_images(trained):
    def outcomes(indices):
        ledger = Ledger()
        with Subject(trained, Digits().open("test"), indices, 0, 23, "cpu").ready() as subject:
            Attacked(threat=THREAT, suite="pgd-5x2").begin(subject).advance(ledger, World(), [], quiet=True)
        return {i: ledger.outcome("pgd-5x2", i) for i in range(100)}

    forward = outcomes(torch.arange(100))
    assert outcomes(torch.arange(100).flip(0)) == outcomes(seeded_order(100, 0)) == forward
    assert {"fooled", "survived"} <= set(forward.values())


def test_in_float64_even_one_by_one_and_alone(trained, digits):
    model, x, y = trained.double(), digits[0][:40].double(), digits[1][:40]
    try:
        whole = evaluate(model, (x, y), suite="pgd-5x2", threat=THREAT, quiet=True)
        assert whole.provenance.precision == "float64"
        assert same(whole, evaluate(model, (x, y), suite="pgd-5x2", threat=THREAT, batch_size=1, quiet=True))
    finally:
        trained.float()


def test_a_subset_gets_the_verdicts_of_the_whole(trained):
    whole = evaluate(trained, "digits", suite="pgd-5", threat=THREAT, quiet=True)
    some = evaluate(trained, "digits", suite="pgd-5", threat=THREAT, images=50, quiet=True)
    assert some.provenance.images_rule == "50 of 360 at random, seed 0"
    assert np.array_equal(some.is_robust, whole.is_robust[some.indices])


def test_more_stages_never_raise_robust_accuracy(trained, digits):
    one = evaluate(trained, digits, suite="fgsm", threat=THREAT, quiet=True)
    two = evaluate(trained, digits, suite=["fgsm", "pgd-20"], threat=THREAT, quiet=True)
    assert (two.is_robust <= one.is_robust).all()
    assert two.robust_accuracy < one.robust_accuracy


def test_an_interrupted_ledger_goes_on_to_the_same_result(trained, digits, tmp_path):
    kwargs = {"suite": ["fgsm", "pgd-10x2"], "threat": THREAT, "batch_size": 32, "quiet": True}
    whole = evaluate(trained, digits, run=tmp_path / "whole", **kwargs)
    folder = tmp_path / "whole" / "eval"
    (ledger,) = folder.glob("*/ledger-0.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    for cut in (0, 1, 100, 365, len(lines) - 7):
        again = tmp_path / f"cut{cut}"
        copy = again / "eval" / ledger.parent.name
        copy.mkdir(parents=True)
        (copy / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:9])
        result = evaluate(trained, digits, run=again, **kwargs)
        assert same(result, whole)
        rows = read_rows(copy / "ledger-0.jsonl")
        assert len(rows) == len(lines)
        assert len({(row["stage"], row["image"]) for row in rows}) == len(rows), "something was computed twice"


def test_a_finished_evaluation_computes_nothing_again(trained, digits, tmp_path):
    first = evaluate(trained, digits, suite="pgd-5", threat=THREAT, run=tmp_path, quiet=True)
    stored = (Path(first.folder) / "result.json").read_text()
    torch.set_num_threads(2)
    calls = []
    hook = trained.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    second = evaluate(trained, digits, suite="pgd-5", threat=THREAT, run=tmp_path, quiet=True)
    hook.remove()
    torch.set_num_threads(1)
    assert same(first, second)
    assert len(calls) == 3, "three forward passes to know the model, none for the images"
    assert (Path(first.folder) / "result.json").read_text() == stored
    assert second.provenance.threads == 1, "what made the numbers, not who asked again"
    assert second.stages[0].seconds == first.stages[0].seconds


def test_a_finished_evaluation_whose_ledger_was_damaged_fills_the_gap(trained, digits, tmp_path):
    kwargs = {"suite": ["fgsm", "pgd-5"], "threat": THREAT, "run": tmp_path, "quiet": True}
    first = evaluate(trained, digits, **kwargs)
    ledger = Path(first.folder) / "ledger-0.jsonl"
    for kept in (900, 200, 0):
        ledger.write_bytes(ledger.read_bytes()[: kept * 20])
        assert same(evaluate(trained, digits, **kwargs), first)


def test_another_model_seed_or_threat_has_a_ledger_of_its_own(trained, digits, tmp_path):
    folders = {
        evaluate(model, digits, suite=suite, threat=threat, seed=seed, run=tmp_path, quiet=True).folder
        for model, suite, threat, seed in [
            (trained, "pgd-2", THREAT, 0),
            (tiny_vit(), "pgd-2", THREAT, 0),
            (trained, "pgd-3", THREAT, 0),
            (trained, "pgd-2", THREAT.scaled(2), 0),
            (trained, "pgd-2", THREAT, 1),
            (lambda x: trained(x), "pgd-2", THREAT, 0),
        ]
    }
    assert len(folders) == 6
    (tmp_path / "x").mkdir()
    folder = evaluate(trained, digits, suite="pgd-2", threat=THREAT, run=tmp_path / "x", quiet=True).folder
    path = Path(folder) / "identity.json"
    path.write_text(json.dumps(with_checksum({**read_identity(path), "seed": 9})))
    with pytest.raises(UserError, match="another seed"):
        evaluate(trained, digits, suite="pgd-2", threat=THREAT, run=tmp_path / "x", quiet=True)


def test_changed_data_or_behaviour_never_gets_an_old_result(trained, digits, tmp_path):
    x, y = digits[0].clone(), digits[1].clone()

    def folder(model, x, y):
        return evaluate(model, (x, y), suite="clean", threat=THREAT, run=tmp_path, quiet=True).folder

    class Signed(nn.Module):
        def __init__(self, sign):
            super().__init__()
            self.base, self.sign = trained, sign

        def forward(self, x):
            return self.sign * self.base(x)

    first = folder(trained, x, y)
    y[201] = (y[201] + 1) % 10
    other_label = folder(trained, x, y)
    x[77, 0, 3, 3] = 1 - x[77, 0, 3, 3]
    assert len({first, other_label, folder(trained, x, y), folder(Signed(1), x, y), folder(Signed(-1), x, y)}) == 5


def test_sessions_that_differ_are_reported(trained, digits, tmp_path):
    kwargs = {"suite": "pgd-3", "threat": THREAT, "run": tmp_path, "quiet": True}
    folder = Path(evaluate(trained, digits, **kwargs).folder)
    (folder / "result.json").unlink()
    rows = (folder / "ledger-0.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger-0.jsonl").write_text("".join(rows[:-5]))
    sessions = (folder / "sessions.jsonl").read_text()
    (folder / "sessions.jsonl").write_text(sessions.replace('"threads": 1', '"threads": 7'))
    assert any("differ in threads" in warning for warning in map(str, evaluate(trained, digits, **kwargs).warnings))


def test_a_second_evaluation_in_the_same_folder_is_refused(trained, digits, tmp_path):
    folder = Path(evaluate(trained, digits, suite="pgd-2", threat=THREAT, run=tmp_path, quiet=True).folder)
    code = f"""
import sys
from pathlib import Path
from robustvit.core.files import locked
with locked(Path({str(folder)!r}) / ".lock", "evaluating"):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"pid {holder.pid}"):
            evaluate(trained, digits, suite="pgd-2", threat=THREAT, run=tmp_path, quiet=True)
    finally:
        holder.kill()
        holder.communicate()


def test_restarts_and_lists_draw_what_the_bare_attack_draws(trained, digits):
    bare = evaluate(trained, digits, suite="pgd-3", threat=THREAT, quiet=True)
    assert same(bare, evaluate(trained, digits, suite=[PGD(steps=3)], threat=THREAT, quiet=True))
    more = evaluate(trained, digits, suite="pgd-3x2", threat=THREAT, quiet=True)
    twice = evaluate(trained, digits, suite=["pgd-3", "pgd-3"], threat=THREAT, quiet=True)
    for other in (more, twice):
        assert (other.is_robust <= bare.is_robust).all()
    assert twice.stages[0].num_fooled == bare.stages[0].num_fooled


def test_a_gradient_that_is_not_a_number_does_not_hide_the_others(trained, digits):
    def rooted(x):  # the same function, whose gradient is NaN where a pixel is 0
        return trained(torch.where(x > 0, x.sqrt() ** 2, x * 0))

    for threat in (THREAT, rv.LpBall("2", 2)):
        plain, odd = (
            evaluate(f, digits, suite="pgd-10", threat=threat, images=60, quiet=True) for f in (trained, rooted)
        )
        assert plain.robust_accuracy <= odd.robust_accuracy < odd.clean_accuracy - 0.1, "the pixels above 0 suffice"


def test_result_files_hold_what_the_number_depends_on(trained, digits, tmp_path):
    result = evaluate(trained, digits, suite="pgd-3", threat=rv.LpBall("inf", "8/255"), run=tmp_path, quiet=True)
    (path,) = tmp_path.glob("eval/pgd-3-inf-8_255-*/result.json")
    stored = json.loads(path.read_text())
    assert set(stored) >= {"version", "kind", "title", "measures", "threat", "stages", "warnings", "provenance"}
    assert set(stored["provenance"]) >= {
        "data",
        "num_images",
        "images_rule",
        "seed",
        "precision",
        "threads",
        "versions",
    }
    assert stored["threat"] == {"norm": "inf", "eps": 8 / 255, "eps_text": "8/255"}
    assert set(stored["stages"][0]) >= {"name", "num_fooled", "robust_accuracy", "seconds", "passes"}
    assert set(stored["provenance"]["checkpoint"]) >= {"path", "sha256"}
    (robust,) = [measure for measure in stored["measures"] if measure["name"] == "robust_accuracy"]
    assert (robust["value"], tuple(robust["interval"])) == (result.robust_accuracy, result.interval)
    again = read_result(path.parent)
    assert same(again, result)
    del stored["checksum"]
    assert again.to_dict() == result.to_dict() == stored


def test_a_model_that_is_random_is_reported_and_resumes(trained, digits, tmp_path):
    def dropping(x):
        return trained(torch.nn.functional.dropout(x, 0.3))

    results = [evaluate(dropping, digits, threat=THREAT, suite="pgd-2", run=tmp_path, quiet=True) for _ in range(2)]
    assert results[0].folder == results[1].folder
    assert any("the model is random" in warning for warning in map(str, results[0].warnings))
    assert not any(
        "random" in warning for warning in map(str, evaluate(trained, digits, threat=THREAT, quiet=True).warnings)
    )


def test_what_fails_the_recheck_is_unverified_and_counts_as_robust(trained, digits):
    result = evaluate(trained, digits, suite=[Cheat()], threat=THREAT, quiet=True)
    assert result.robust_accuracy == result.clean_accuracy
    assert result.stages[0].num_unverified > 50
    assert "unverified" in {warning.name for warning in result.warnings}
    after = evaluate(trained, digits, suite=[Cheat(), PGD(steps=5)], threat=THREAT, quiet=True)
    assert after.robust_accuracy < result.robust_accuracy, "what is unverified goes on to the next stage"


def test_logits_that_are_not_finite_never_count_as_fooled(digits):
    def broken(x):
        logits = x.flatten(1)[:, :10] * 1.0
        return torch.where(x.amax((1, 2, 3), keepdim=True).flatten(1) > 0.99, logits * float("nan"), logits)

    result = evaluate(broken, digits, suite="pgd-3", threat=THREAT, quiet=True)
    assert "not-finite" in {warning.name for warning in result.warnings}

    class Poisoned(nn.Module):
        def forward(self, x):  # right on clean images, not a number on any other
            logits = nn.functional.one_hot(digits[1], 10).float()
            known = (x[:, None] == digits[0][None]).flatten(2).all(2).float()  # (B, 360)
            return known @ logits / known.sum(1, keepdim=True) + 0 * x.sum((1, 2, 3))[:, None]

    result = evaluate(Poisoned(), digits, suite="pgd-3", threat=THREAT, quiet=True)
    assert result.clean_accuracy == 1
    assert result.robust_accuracy == 1
    assert result.stages[0].num_fooled == 0


def test_the_model_is_as_before(digits):
    model = tiny_vit(drop_rate=0.5).train()
    model.backbone.head.bias.grad = torch.ones(10)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_pre_hook(lambda module, inputs: (module.calls.add_(1), None)[1])
    before["calls"] = torch.zeros(())
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    result = evaluate(model, digits, suite="pgd-2", threat=THREAT, images=32, quiet=True)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()
    assert any("training mode" in warning for warning in map(str, result.warnings))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(model.backbone.head.bias.grad, torch.ones(10))
    assert model.backbone.head.weight.grad is None
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    again = evaluate(model.eval(), digits, suite="pgd-2", threat=THREAT, images=32, quiet=True)
    assert same(result, again)
    assert not any("training mode" in warning for warning in map(str, again.warnings))


def test_a_bare_callable_a_clean_suite_and_eps_zero(trained, digits):
    def plain(x):
        return trained(x)

    assert same(
        evaluate(plain, digits, suite="pgd-3", threat=THREAT, quiet=True),
        evaluate(trained, digits, suite="pgd-3", threat=THREAT, quiet=True),
    )
    clean = evaluate(trained, digits, suite="clean", threat=THREAT, quiet=True)
    assert clean.robust_accuracy == clean.clean_accuracy
    assert clean.stages == ()
    assert (
        evaluate(trained, digits, suite="pgd-3", threat=THREAT.scaled(0), quiet=True).robust_accuracy
        == clean.clean_accuracy
    )


def test_a_model_at_chance_is_reported_before_it_is_attacked(trained, digits, capsys):
    x, y = digits
    kwargs = {"suite": "pgd-1", "threat": THREAT}
    assert not evaluate(trained, digits, **kwargs).warnings
    assert "chance" not in capsys.readouterr().err
    for strange in (
        lambda x: trained(x).roll(1, dims=1),  # classes numbered otherwise: below chance
        lambda x: x.flatten(1)[:, :10] * 0 + 5 * torch.eye(10)[3],  # always the same
    ):
        result = evaluate(strange, digits, **kwargs)
        assert [warning for warning in map(str, result.warnings) if "no better than chance" in warning]
        said = capsys.readouterr().err
        assert "warning: at-chance: clean accuracy" in said
        assert "normalization" in said
    mostly = torch.arange(360)[(y == 3) | (torch.arange(360) % 20 == 0)]
    (warning,) = evaluate(lambda x: strange(x), (x[mostly], y[mostly]), suite="clean", threat=THREAT).warnings
    assert "most frequent class" in str(warning)
    assert not evaluate(trained, (x[y == 3], y[y == 3]), suite="clean", threat=THREAT).warnings, "of one class alone"
    (warning,) = evaluate(lambda x: strange(x), TensorDataset(x, y), suite="clean", threat=THREAT).warnings
    assert "most frequent" not in str(warning), "no picture is read again for a warning"
    assert "warning: " not in capsys.readouterr().err, "without attacks the result alone says it"


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes(classes, digits):
    x, y = digits[0][:64], digits[1][:64] % classes
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
    result = evaluate(model, (x, y), suite=["fgsm", "pgd-5:loss=cw"], threat=rv.LpBall("inf", 0.3), quiet=True)
    assert result.robust_accuracy < result.clean_accuracy


X, Y = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X * 2 - 1, Y), r"\[0, 1\]"),
        ((X * 255, Y), r"\[0, 1\]"),
        ((X[:0], Y[:0]), "holds no images"),
        ((X, Y + 90), "label 90 is outside the model's 10 classes"),
        ((X, Y - 3), "label -3"),
        ((torch.rand(6, 3, 9, 7), Y), "fails on images of shape"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(vit, data, message):
    with pytest.raises(UserError, match=message):
        evaluate(vit, data, suite="pgd-2", threat=THREAT, quiet=True)


def test_models_that_do_not_fit_are_refused(vit, digits):
    for model, message in [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(192, 12)),
            "12 classes, the labels of digits/test are of 10",
        ),
        (nn.Identity(), "logits of shape"),
        (lambda x: {"logits": x}, "logits of shape"),
        (lambda x: torch.zeros(len(x), 10, dtype=torch.long), "float logits"),
        (lambda x: x.mul_(2).flatten(1)[:, :10], "in place"),
        (lambda x: x.detach().flatten(1)[:, :10], "no gradient to its input"),
        (lambda x: {}["nothing"], "fails on images"),
        (tiny_vit().half(), "float16"),
        (3, "callable"),
    ]:
        with pytest.raises(UserError, match=message):
            evaluate(model, "digits", suite="pgd-2", threat=THREAT, quiet=True)


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("fgsm", FGSM()),
        ("pgd-20", PGD(steps=20)),
        ("pgd-50x5", Restarts(inner=PGD(steps=50), times=5)),
        ("pgd-8:step=eps/8,start=none", PGD(steps=8, step="eps/8", start="none")),
        ("pgd-40:loss=cw,step=2/255", PGD(steps=40, loss="cw", step="2/255")),
        ("cw-100", PGD(steps=100, loss="cw", step="eps/4")),
        ("dlr-100x2", Restarts(inner=PGD(steps=100, loss="dlr", step="eps/4"), times=2)),
        ("gama-100", GAMA()),
        ("gama-40:weight=10", GAMA(steps=40, weight=10)),
        ("mim-10", MIM()),
        ("mim-5:momentum=0.5", MIM(steps=5, momentum=0.5)),
        ("carlini-wagner:steps=20", CarliniWagner(steps=20)),
        ("apgd-pm", APGD(loss="pm")),
    ],
)
def test_suites_by_name_are_the_attacks_they_say(name, attack):
    plan = suite_from(name).plan(THREAT)
    (stage,) = plan.stages
    assert stage.attack == attack
    assert stage.name == plan.name == name


def test_targeted_suites_aim_at_the_classes_after_the_predicted_one(trained, digits):
    for name, attack, targets in [
        ("pgd-5-t3", PGD(steps=5), 3),
        ("gama-4x2-t2", Restarts(inner=GAMA(steps=4), times=2), 2),
        ("apgd-t:steps=7", APGD(loss="dlr", steps=7), 9),
    ]:
        stages = suite_from(name).plan(THREAT).stages
        assert [(stage.attack, stage.target_rank) for stage in stages] == [(attack, r + 2) for r in range(targets)]
    result = evaluate(trained, digits, suite="pgd-5-t3", threat=THREAT, images=60, quiet=True)
    assert [stage.name for stage in result.stages] == ["pgd-5-t3/1", "pgd-5-t3/2", "pgd-5-t3/3"]
    assert result.stages[0].num_fooled > 0


def test_wrappers_in_suites(trained, digits, tmp_path):
    surrogate = linear_digits()
    either = Ensemble(attacks=[FGSM(), PGD(steps=3, loss="dlr")])
    crafted = FromSurrogate(surrogate=surrogate, inner=PGD(steps=3))
    result = evaluate(trained, digits, suite=[either, crafted], threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert result.stages[0].name == "fgsm or pgd:steps=3,loss=dlr"
    assert result.stages[1].name.startswith("pgd:steps=3 from Sequential#")
    assert result.stages[1].settings["surrogate"] == str(crafted.surrogate)
    again = evaluate(trained, digits, suite=[either, crafted], threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert again.folder == result.folder
    with torch.no_grad():
        surrogate[1].bias += 1
    other = FromSurrogate(surrogate=surrogate, inner=PGD(steps=3))
    moved = evaluate(trained, digits, suite=[either, other], threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert moved.folder != result.folder, "another surrogate has a ledger of its own"
    two = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    fitted = evaluate(two, (digits[0], digits[1] % 2), suite=[either], threat=THREAT, images=20, quiet=True)
    assert fitted.stages[0].settings["attacks"][1]["loss"] == "cw", "two classes have no DLR"


def test_a_norm_that_an_attack_can_not_search_is_reported_before_the_first_stage(trained, digits):
    calls = []
    hook = trained.register_forward_hook(lambda *_: calls.append(1))
    for attack in (CarliniWagner(), Restarts(inner=CarliniWagner()), Ensemble(attacks=[FGSM(), CarliniWagner()])):
        with pytest.raises(UserError, match="L2 alone"):
            evaluate(trained, digits, suite=["fgsm", attack], threat=THREAT, quiet=True)
    hook.remove()
    assert len(calls) < 12


@pytest.mark.parametrize("name", ["transfer", "transfer:attack=pgd-5", "transfer:surrogate=resnet18,steps=5"])
def test_what_transfer_takes_is_reported(name):
    with pytest.raises(UserError, match="transfer takes surrogate=MODEL"):
        suite_from(name)


@pytest.mark.parametrize(
    "name",
    [
        "pgd",
        "pgd-0",
        "cw",
        "gama-5:steps=4",
        "apgd-ce:loss=dlr",
        "transfer",
        "transfer:surrogate=absent.pt",
        "pgd-x5",
        "autoattac",
        "pgd-5:",
        "pgd-5:loss",
        "pgd-5:lss=cw",
        "clean:a=1",
        "",
        7,
        [],
    ],
)
def test_suites_that_do_not_exist_are_refused(name):
    with pytest.raises(UserError):
        suite_from(name)


@pytest.mark.parametrize("name", [name for name in registered("attack") if not name.startswith(("test-", "toy-"))])
def test_every_registered_attack_is_reachable_from_a_suites_name(name):
    needs = {
        "restarts": ":inner=fab,times=2",
        "through_head": ":inner=fab,head=acc",
        "low_precision": ":inner=fab",
        "attention_scaling": ":inner=fgsm",
        "pgd": "-5",
        "gama": "-5",
        "mim": "-5",
    }
    whole = {"ensemble": "{name: ensemble, attacks: [fgsm, fab]}",
             "from_surrogate": f"{{name: from_surrogate, inner: fgsm, surrogate: '{__file__}:tiny_vit'}}"}  # fmt: skip
    plan = suite_from(whole.get(name, f"{name}{needs.get(name, '')}")).plan(THREAT)
    assert [type(stage.attack) for stage in plan.stages] == [registered("attack")[name]]


def test_suites_nest():
    nested = suite_from([["fgsm", "autoattack"], {"name": "attacks", "members": ["pgd-5-t2", "square"]}])
    names = [stage.name for stage in nested.plan(THREAT).stages]
    assert names[:2] == ["1/fgsm", "2/apgd-ce"]
    assert names[-3:] == ["22/pgd-5-t2/1", "23/pgd-5-t2/2", "24/square"], "square is there twice"
    assert suite_from("[fgsm, {name: autoattack, version: rand}]").plan(THREAT).name == (
        "fgsm+apgd-ce-eot20+apgd-dlr-eot20"
    )


def test_wilson_interval_matches_known_values():
    assert wilson_interval(0, 10) == pytest.approx((0, 0.27753), abs=1e-5)
    assert wilson_interval(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson_interval(600, 1000) == pytest.approx((0.56931, 0.62993), abs=1e-5)
    assert wilson_interval(10, 10)[1] == 1
    assert all(math.isfinite(end) for end in wilson_interval(1, 1))


def test_out_of_memory_halves_the_batch_and_changes_no_verdict(trained, digits):
    def hungry(x):
        if x.requires_grad and len(x) > 20:
            torch.empty(1 << 50)
        return trained(x)

    x, y = digits[0][:60], digits[1][:60]
    plain, halved = (evaluate(m, (x, y), threat=THREAT, suite="pgd-5", quiet=True) for m in (trained, hungry))
    assert (plain.is_robust == halved.is_robust).all()
    assert any("--batch-size 29" in warning or "--batch-size 30" in warning for warning in map(str, halved.warnings))

    def starving(x):
        return trained(x) if not x.requires_grad else torch.empty(1 << 50)

    with pytest.raises(UserError, match="single image"):
        evaluate(starving, (x, y), threat=THREAT, suite=["pgd-5"], quiet=True)


def refused(model, digits, **options) -> str:
    with pytest.raises(UserError) as error:
        evaluate(model, digits, **{"suite": "pgd-2", "threat": THREAT, "quiet": True, "images": 16, **options})
    return str(error.value)


def test_models_that_give_no_gradient_are_refused_with_advice(trained, digits):
    without = (
        lambda x: trained((x * 16).byte().float() / 16),
        lambda x: torch.from_numpy(trained(x).numpy()),
        lambda x: trained(x).detach(),
    )
    for model in without:
        for suite in ("pgd-2", "fab-t:steps=2", "apgd-ce:steps=2"):
            for checks in (True, False):
                assert "use suite 'square'" in refused(model, digits, suite=suite, checks=checks)
        evaluate(model, digits, suite="square:queries=5", threat=THREAT, images=16, quiet=True)


def test_logits_of_other_precisions(trained, digits):
    assert "without autocast" in refused(lambda x: trained(x).bfloat16(), digits)
    for suite in ("square:queries=5", "fab-t:steps=2", "apgd-ce:steps=3"):
        evaluate(lambda x: trained(x).double(), digits, suite=suite, threat=THREAT, images=16, quiet=True)


def test_another_scale_or_nothing_at_all_is_another_model(trained, digits, tmp_path):
    def said(model):
        return evaluate(model, digits, suite="fgsm", threat=THREAT, images=40, run=tmp_path, quiet=True)

    folders = {
        said(model).folder
        for model in (
            trained,
            lambda x: trained(x),
            lambda x: 1e4 * trained(x),
            lambda x: trained(x) * torch.nan,
            lambda x: trained(x) * 0,
        )
    }
    assert len(folders) == 5


def test_wrong_arguments_are_reported(trained, digits, tmp_path):
    for options, message in (
        ({"batch_size": "a"}, "batch_size: a whole number"),
        ({"batch_size": 2.5}, "batch_size: a whole number"),
        ({"images": 2.5}, "not 2.5"),
        ({"processes": "2"}, "processes: a whole number"),
        ({"seed": "x"}, "seed: a whole number"),
        ({"smaller": 3}, "smaller: a result"),
    ):
        assert message in refused(trained, digits, **options)
    assert "torchrun has started several" in refused(trained, digits, processes=2, run=tmp_path, world=World(0, 2))


def test_a_quantized_result_carries_only_quantized_images(trained, digits):
    options = {"suite": "fgsm", "images": 16, "quiet": True}
    small = evaluate(trained, digits, threat=rv.LpBall("inf", 0.05), **options)
    assert "quantized" in refused(trained, digits, suite="fgsm", smaller=small, quantized=True)


@component("attack", "test-climbs")
class Climbs:
    """Offers images whose wrong class leads by more and more, and notes by which fraction of the spread it left."""

    leads: tuple[float, ...] = (-0.5, 0.0, 2e-5, 8e-5, 1.2e-4, 5e-3, 0.5)

    def __call__(self, model, x, y, threat, search):
        result = x.clone()
        rows = torch.arange(len(x))
        for number, lead in enumerate(self.leads):
            candidate = torch.full_like(x[rows], 0.5) + lead / 2
            logits = model(candidate)
            search.observe(number, rows, candidate, logits[:, 0], logits)
            left = search.done(candidate, logits, rows)
            result[rows[left]] = candidate[left]
            rows = rows[~left]
            if len(rows) == 0:
                break
        return result


def test_a_search_ends_when_a_wrong_class_leads_by_a_ten_thousandth_of_the_spread(tmp_path):
    """By less, another way to compute the same model could decide otherwise."""

    def balance(x):  # leads by twice the distance from 0.5; the spread is 1
        lead = x.double().mean((1, 2, 3)) - 0.5
        return torch.stack([-lead, lead, lead.abs() - 1], 1)

    x, y = torch.full((4, 3, 2, 2), 0.4), torch.zeros(4, dtype=torch.int64)
    result = evaluate(balance, (x, y), suite=Climbs(), threat=rv.LpBall("inf", 0.5), run=tmp_path, quiet=True)
    (ledger,) = tmp_path.glob("eval/*/ledger-0.jsonl")
    steps = [row["steps"] for row in read_rows(ledger) if row["stage"] != "clean"]
    assert steps == [Climbs().leads.index(1.2e-4) + 1] * 4
    assert result.robust_accuracy == 0


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 12])
def test_batches_are_filled_up_to_a_multiple_of_the_threads(threads):
    for rows in range(1, 70):
        filled = steady_rows(rows, threads)
        fits = [
            count for count in range(rows, 200) if count >= 8 and (threads == 1 or count % 8 == count % threads == 0)
        ]
        assert filled == fits[0]
    assert steady_rows(0, threads) == 0


def test_a_callable_is_known_by_its_logits_to_a_hundredth_of_their_spread(digits):
    linear = linear_digits()
    spread = (linear(digits[0][:8]).amax() - linear(digits[0][:8]).amin()).item()

    def behavior(change):
        moved = torch.zeros(10)
        moved[3] = change * spread
        return open_subject(lambda x: linear(x) + moved, digits, quiet=True).behavior

    assert behavior(0.0) == behavior(1e-9)
    assert behavior(0.0) != behavior(0.011)
    assert behavior(0.0) != behavior(-0.011)


def spread_by_hand(row):
    """Largest minus smallest, down to the first gap of 100 times what lies above it; half of the classes, and three
    of them, always count."""
    ordered = sorted(row, reverse=True)
    for kept in range(max(3, math.ceil(len(row) / 2)), len(row)):
        above = ordered[0] - ordered[kept - 1]
        if ordered[kept - 1] - ordered[kept] > 100 * above:
            return above
    return ordered[0] - ordered[-1]


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6, 9, 10])
def test_the_spread_of_logits_leaves_out_classes_far_below(classes):
    rows = []
    for normal in range(1, classes + 1):
        for far in (5.0, 99.0, 102.0, 1e9):
            upper = torch.linspace(1, 0, normal).tolist()
            rows.append([*upper, *(-far - number for number in range(classes - normal))])
            rows.append(rows[-1][::-1])
    logits = torch.tensor(rows, dtype=torch.float64)
    expected = [spread_by_hand(row) for row in rows]
    assert spread_of_each(logits).tolist() == pytest.approx(expected)
    for row, spread in zip(logits, expected, strict=True):
        two = torch.stack([row, row + 3])
        assert logits_spread(two).item() == pytest.approx(spread + 3)
        assert logits_spread(torch.cat([two, torch.full_like(two, torch.nan)])).item() == pytest.approx(spread + 3)
    assert logits_spread(torch.full((2, classes), torch.inf)) == 1
    assert logits_spread(torch.ones(2, classes, dtype=torch.float64)).item() == pytest.approx(1e-12)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda n: torch.zeros(n, 10, 1), r"shape \(N, classes\), not \(8, 10, 1\)"),
        (lambda n: torch.zeros(n), r"shape \(N, classes\), not \(8,\)"),
        (lambda n: torch.zeros(n + 1, 10), r"shape \(N, classes\), not \(9, 10\)"),
        (lambda n: torch.zeros(n, 10, dtype=torch.long), "float logits of at least 2 classes"),
        (lambda n: torch.zeros(n, 1), "float logits of at least 2 classes"),
        (lambda n: torch.zeros(n, 10, dtype=torch.float16), "logits are torch.float16, .* without autocast"),
        (lambda n: torch.zeros(n, 10, dtype=torch.bfloat16), "logits are torch.bfloat16"),
        (lambda n: torch.zeros(n, 9), "label 9 is outside the model's 9 classes"),
    ],
)
def test_what_is_no_answer_of_a_classifier_is_refused(made, message, digits):
    y = torch.arange(8) + 2
    with pytest.raises(UserError, match=message), open_subject(lambda x: made(len(x)), (digits[0][:8], y)).ready():
        pass
    for classes in (2, 10):
        y = torch.arange(8) % classes
        subject = open_subject(lambda x, k=classes: torch.zeros(len(x), k), (digits[0][:8], y), batch_size=5)
        assert not subject.is_ready
        with subject.ready() as ready:
            assert (ready.num_classes, ready.batch_size, ready.is_ready) == (classes, 5, True)


def test_passes_and_seconds_are_counted_for_each_image(trained, digits, monkeypatch):
    clock = iter([10.0, 34.0])
    monkeypatch.setattr("robustvit.evaluation.subject.time.perf_counter", lambda: next(clock))
    with open_subject(trained, digits, images=20, batch_size=20).ready() as subject:
        counted, (x, _) = CountedModel(subject), subject.batch(subject.indices[:12])
        with torch.no_grad():
            counted(x)
        assert counted.passes == 12
        counted(x[:9].requires_grad_()).sum().backward()
        assert counted.passes == 12 + 9 + 9
        cost = counted.cost_per_image(12)
        monkeypatch.undo()
    assert cost == {"passes": 2.5, "seconds": 2.0}
    assert counted.module is subject.model


def test_numbers_of_rows_have_seven_digits():
    values = torch.tensor([1 / 3, -123456.789, math.inf, -math.inf, math.nan, 0], dtype=torch.float64)
    assert json_numbers(values) == [0.3333333, -123456.8, None, None, None, 0]


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    def work(part):
        if len(part) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return part.tolist()

    warnings = []
    made = list(in_memory(torch.arange(10), work, warnings.append))
    assert [outcome for _, outcome in made] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert all(part.tolist() == outcome for part, outcome in made)
    sizes = [(10, 5), (5, 2), (5, 2)]
    assert [(w.observation, w.advice) for w in warnings] == [
        (f"out of memory with batches of {size}: they were halved", f"--batch-size {half} saves the attempts")
        for size, half in sizes
    ]

    def failing(error):
        def work(part):
            raise error

        return list(in_memory(torch.arange(4), work, warnings.append))

    with pytest.raises(UserError, match="out of memory with a single image"):
        failing(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="^another mistake$"):
        failing(RuntimeError("another mistake"))
