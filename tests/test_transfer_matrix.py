"""Adversarial images of several models on all of them: each crafted once, the same whatever is killed or shared."""

import copy
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import PGD, Search, passes_of
from robustvit.cli.main import main
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.result_files import read_result
from robustvit.evaluation import TransferMatrix, evaluate, named_evaluator, suite_from
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.subject import open_subject
from robustvit.evaluation.suite_names import settings_after_colon

THREAT = rv.LpBall("inf", 0.1)
ATTACK = "pgd-3:step=eps/3,start=none"


@pytest.fixture(scope="module")
def linear():
    return linear_digits()


@pytest.fixture(scope="module")
def few(digits):
    return digits[0][:80], digits[1][:80]


def matrix(model, data, *others, attack=ATTACK, **options):
    return evaluate(model, data, suite=TransferMatrix(THREAT, others, suite_from(attack)), quiet=True, **options)


def accuracies(result):
    return {one.name: one.accuracy for one in result.conditions}


def heat(result, number):
    return np.array(result.figures[number].values)


def test_the_diagonal_is_the_white_box_attack_without_early_exit(trained, linear, few):
    x, y = few
    result = matrix(trained, few, linear, attack="pgd-3:step=eps/2")
    names = ("this model", "Sequential")
    for name, model in zip(names, (trained, linear), strict=True):
        random = rv.sample_streams(0, range(len(x))).child("pgd", 0)
        x_adv = PGD(steps=3, step="eps/2")(model, x, y, THREAT, Search(random))
        assert accuracies(result)[f"{name} -> {name}"] == float((model(x_adv).argmax(1) == y).double().mean())
    assert result.measure("white_box_accuracy").value == accuracies(result)["this model -> this model"]
    one_step = matrix(trained, few, linear, attack="fgsm")  # which has no early exit
    suite = evaluate(trained, few, suite="fgsm", threat=THREAT, quiet=True)
    assert heat(one_step, 2)[0, 0] == suite.robust_accuracy


def test_images_of_another_model_are_those_of_the_suite_transfer(trained, linear, few):
    result = matrix(trained, few, linear)
    suite = rv.evaluation.suite_from({"name": "transfer", "surrogate": linear, "attack": ATTACK})
    transferred = evaluate(trained, few, suite=suite, threat=THREAT, quiet=True)
    assert heat(result, 2)[1, 0] == transferred.robust_accuracy
    assert heat(result, 2)[1, 0] <= accuracies(result)["Sequential -> this model"]


def test_accuracy_counts_images_that_the_change_puts_right_and_attacks_do_not(few):
    """Of an untrained model, random changes put some right."""
    result = matrix(tiny_vit(), few, linear_digits(), attack="pgd-1:step=1/9999")
    counted, both = heat(result, 0)[1:, 0], heat(result, 2)[:, 0]
    assert (counted >= both).all()
    assert (counted > both).any()


def test_figures_and_measures_say_what_the_conditions_say(trained, linear, few):
    result = matrix(trained, few, linear, tiny_vit())
    names, known = ("this model", "Sequential", "Normalized"), accuracies(result)
    assert result.figures[0].rows == ("clean images", *names)
    assert result.figures[0].columns == names
    assert heat(result, 0)[0].tolist() == [known["clean"], known["clean on Sequential"], known["clean on Normalized"]]
    for row, source in enumerate(names):
        assert heat(result, 0)[row + 1].tolist() == [known[f"{source} -> {target}"] for target in names]
    assert heat(result, 1) == pytest.approx(100 * (heat(result, 0)[1:] - heat(result, 0)[:1]))
    assert result.figures[1].scale == "diverging"
    transfer = [known["Sequential -> this model"], known["Normalized -> this model"]]
    others = [known["this model -> Sequential"], known["this model -> Normalized"]]
    assert result.measure("transfer_accuracy").value == pytest.approx(np.mean(transfer))
    assert result.measure("other_models_accuracy").value == pytest.approx(np.mean(others))
    assert result.measure("transfer_accuracy").description == "mean, on images crafted on the other models"
    assert result.clean_accuracy == known["clean"]
    assert dict(zip(known, result.outcomes.under.mean(0).tolist(), strict=True)) == known
    assert result.headline.name == "white_box_accuracy"
    assert result.robust_accuracy <= min(*transfer, known["this model -> this model"])
    assert result.threat.eps == 0.1
    assert any(warning.name == "at-chance" and "Normalized: " in warning.observation for warning in result.warnings)
    assert "not-finite" not in {warning.name for warning in result.warnings}, "the class 0 is an answer"


def test_a_model_and_its_copy_have_equal_rows_and_columns(trained, linear, few):
    class Copy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.copied = copy.deepcopy(trained)

        def forward(self, x):
            return self.copied(x)

    result = matrix(trained, few, Copy(), linear)
    for values in (heat(result, 0)[1:], heat(result, 1), heat(result, 2)):
        assert values[0].tolist() == values[1].tolist()
        assert values[:, 0].tolist() == values[:, 1].tolist()
    assert len(set(heat(result, 0)[1:].ravel().tolist())) > 2


@component("attack", "test-counted-shift")
class CountedShift:
    """Remembers which images it was called with."""

    size: float = 0.05
    seen: ClassVar[list] = []

    def __call__(self, model, x, y, threat, search=Search()):
        CountedShift.seen += [tuple(pixels.flatten()[:40].tolist()) for pixels in x]
        logits = model(x)  # another shift for another model
        return (x + self.size * torch.sign(logits[:, :1, None, None] - logits.mean())).clamp(0, 1)


@pytest.fixture
def seen():
    CountedShift.seen.clear()
    return CountedShift.seen


def test_images_are_crafted_once_a_source_whatever_is_killed_shared_or_asked_again(
    trained, linear, few, tmp_path, in_turn, seen
):
    options = {"attack": {"name": "test-counted-shift"}, "batch_size": 20}
    whole = matrix(trained, few, linear, run=tmp_path / "whole", **options)
    assert len(seen) == 2 * 80
    matrix(trained, few, linear, run=tmp_path / "whole", **options)
    assert len(seen) == 2 * 80, "a finished result asks no model"
    assert read_result(Path(whole.folder)).to_dict() == whole.to_dict()
    met = ("clean", "this model -> this model", "Sequential -> this model")
    answers = [Ledger(Path(whole.folder)).answers(name).correct for name in met]
    assert np.array_equal(whole.is_robust, np.logical_and.reduce(answers)), "on all images that it has met"
    others = Ledger(Path(whole.folder)).answers("this model -> Sequential").correct
    assert not np.array_equal(whole.is_robust, np.logical_and.reduce([*answers[:2], others]))

    ledger = Path(whole.folder) / "ledger-0.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 * 6, "one line a batch and pair"
    for cut, crafted in ((0, 160), (8, 160), (12, 120), (15, 100), (22, 20)):
        seen.clear()
        folder = tmp_path / f"cut{cut}" / "eval" / ledger.parent.name
        folder.mkdir(parents=True)
        (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:30])
        resumed = matrix(trained, few, linear, run=tmp_path / f"cut{cut}", **options)
        assert accuracies(resumed) == accuracies(whole)
        assert len(seen) == crafted
        assert len(read_rows(folder / "ledger-0.jsonl")) <= len(lines)

    seen.clear()
    shared = matrix(trained, few, linear, run=tmp_path / "shared", processes=3, **options)
    assert accuracies(shared) == accuracies(whole)
    assert len(seen) == 160
    assert len(list(Path(shared.folder).glob("ledger-*.jsonl"))) == 3


def test_each_model_is_attacked_and_judged_on_all_images(trained, linear, few):
    with open_subject(trained, few).ready() as subject:
        evaluation = TransferMatrix(THREAT, (linear, tiny_vit()), suite_from(ATTACK)).begin(subject)
    attacked, judged, clean = 3 * passes_of(evaluation.stage.attack), 3 * 3, 3
    assert evaluation.passes() == 80 * (attacked + judged + clean)


def test_batches_and_the_order_of_images_change_nothing(trained, linear, few):
    x, y = few
    whole = accuracies(matrix(trained, few, linear))
    assert accuracies(matrix(trained, few, linear, batch_size=9)) == whole
    assert accuracies(matrix(trained, (x.flip(0), y.flip(0)), linear)) == whole


def test_other_models_and_attacks_are_other_questions(trained, linear, few, tmp_path):
    other = copy.deepcopy(linear)  # of the same title
    with torch.no_grad():
        other[1].weight *= 0.5
    asked = [(linear,), (other,), (tiny_vit(),), (linear, tiny_vit())]
    folders = {matrix(trained, few, *models, run=tmp_path).folder for models in asked}
    folders.add(matrix(trained, few, linear, attack="fgsm", run=tmp_path).folder)
    assert len(folders) == 5


def test_images_outside_of_the_threat_do_not_count(trained, linear, few, seen):
    attack = suite_from({"name": "test-counted-shift", "size": 0.3})
    result = evaluate(trained, few, suite=TransferMatrix(THREAT, (linear,), attack), quiet=True)
    assert accuracies(result)["this model -> this model"] == result.clean_accuracy
    assert [one.observation for one in result.warnings if one.name == "unverified"] == [
        "test-counted-shift:size=0.3 on this model made images outside of the threat; clean ones were judged",
        "test-counted-shift:size=0.3 on Sequential made images outside of the threat; clean ones were judged",
    ]


def test_models_of_other_precision_take_part(trained, linear, few):
    single = accuracies(matrix(trained, few, linear))
    double = accuracies(matrix(trained, few, copy.deepcopy(linear).double()))
    assert double == pytest.approx(single, abs=0.03)


@pytest.mark.parametrize(
    ("suite", "problem"),
    [
        ({"models": []}, "models: .*at least 1 item"),
        ({}, "models: "),
        ({"models": "absent.pt"}, "absent.pt: no such checkpoint"),
        ({"models": ["resnet9000"]}, "'resnet9000' is not there"),
        ({"models": [tiny_vit(), tiny_vit()]}, "one is given twice"),
        (
            {"models": [tiny_vit()], "attack": "autoattack"},
            "a single untargeted attack.*not 'autoattack'",
        ),
        ({"models": [tiny_vit()], "attack": "apgd-t"}, "a single untargeted attack"),
        ({"models": [tiny_vit()], "attack": "clean"}, "a single untargeted attack"),
        (
            {"models": [tiny_vit()], "attack": {"name": "transfer", "surrogate": tiny_vit(), "attack": "fgsm"}},
            "would craft all images on its surrogate; give the attack alone",
        ),
        ({"models": [tiny_vit()], "attack": "pgd-3:stp=1"}, "stp: no such setting"),
        ({"models": [tiny_vit()], "attack": "carlini-wagner"}, "searches in L2 alone"),
        ({"models": [torch.nn.Flatten()]}, "Flatten: .*labels up to|Flatten: the model has"),
        ({"models": [torch.nn.Linear(3, 3)]}, "Linear: the model fails on images"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_a_sentence(trained, suite, problem):
    with pytest.raises(UserError, match=problem) as raised:
        evaluate(trained, "digits", suite={"name": "transfer-matrix", **suite}, threat=THREAT, images=20, quiet=True)
    assert "\n" not in str(raised.value)


def test_a_model_is_not_transferred_to_itself(linear, few, tmp_path):
    rv.save_model(tiny_vit(), tmp_path / "own.safetensors")
    for own in (tiny_vit(), tmp_path / "own.safetensors"):
        with pytest.raises(UserError, match="is the evaluated model itself; give others"):
            matrix(tiny_vit(), few, linear, own)


def ended(*words):
    with pytest.raises(SystemExit) as ended:
        main([one for word in words for one in ([word] if isinstance(word, str) else word)])
    return ended.value.code


def test_the_short_form_names_models_and_a_nested_attack(trained, linear, few, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        rv.save_model(tiny_vit(), f"{name}.safetensors")
    own = tiny_vit()
    own.backbone.head.bias.data += 1
    rv.save_model(own, "own.safetensors")
    text = "transfer-matrix:models=[a.safetensors, b.safetensors],attack=pgd-3:step=eps/3,start=none"
    with pytest.raises(UserError, match="one is given twice"):
        evaluate(trained, few, suite=text.replace("b.saf", "./a.saf").replace("./", ""), threat=THREAT, quiet=True)
    result = evaluate(trained, few, suite=text, threat=THREAT, quiet=True)
    assert result.figures[0].columns == ("this model", "a", "b")
    assert result.title == "transfer-matrix of pgd-3:step=eps/3,start=none"
    assert named_evaluator(text)["models"] == ["a.safetensors", "b.safetensors"]
    command = ["evaluate", "own.safetensors", "--data", "digits", "--images", "16", "--eps", "0.1", "--suite", text]
    assert ended(command, "--run", "here") == 0
    output = capsys.readouterr().out
    assert "white_box_accuracy" in output
    assert "not attacked" not in output
    assert re.search(r"crafted on / judged on +this model +a +b\nclean images", output)
    assert "this model -> a" not in output
    page = rv.report("here").read_text()
    assert "Change from clean accuracy in points" in page
    assert len(re.findall(r"<title>[^<]*, [^<]*: [^<]*</title><rect", page)) == 12 + 9 + 9
    assert ended(command[:-1], text.replace("b.saf", "c.saf")) == 2
    error = capsys.readouterr().err
    assert "c.safetensors: no such checkpoint" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("x", {}),
        ("x:a=1,b=two", {"a": "1", "b": "two"}),
        ("x:a=[1, 3],b=2", {"a": [1, 3], "b": "2"}),
        ("x:a={name: pgd, steps: 8},b=[[1, 2], 3]", {"a": {"name": "pgd", "steps": 8}, "b": [[1, 2], 3]}),
        ("x:a=['pgd-8:step=eps/8,start=none', \"b,c\"]", {"a": ["pgd-8:step=eps/8,start=none", "b,c"]}),
        ("x:b=2,attack=pgd-8:step=eps/8,start=none", {"b": "2", "attack": "pgd-8:step=eps/8,start=none"}),
        ("x:attack=y:models=[a,b],attack=z:c=1", {"attack": "y:models=[a,b],attack=z:c=1"}),
        (
            "x:a=zoo:name,b=hf_hub:timm/vit,c=file.py:make",
            {"a": "zoo:name", "b": "hf_hub:timm/vit", "c": "file.py:make"},
        ),
        ("x:a=runs/[ab]*/last.pt,b=1", {"a": "runs/[ab]*/last.pt", "b": "1"}),
        ("x:a=runs/odd[name,b=1", {"a": "runs/odd[name", "b": "1"}),
    ],
)
def test_settings_after_the_colon_may_be_lists_maps_and_suites(text, settings):
    assert settings_after_colon(text) == settings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x:a=[1,b=2", "a '\\]' is missing"),
        ("x:a={b: [1}", "a '\\]' is missing"),
        ("x:a=[1]],b=2", "broken YAML"),
        ("x:a", "key=value pairs"),
        ("x:=1", "key=value pairs"),
        ("x:a=", "key=value pairs"),
        ("x:a=1,,b=2", "key=value pairs"),
        ("x:a=[1],a=2", "a is given twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, problem):
    with pytest.raises(UserError, match=problem):
        settings_after_colon(text)


def test_a_nested_suite_gets_its_settings(tmp_path):
    rv.save_model(tiny_vit(), tmp_path / "w.safetensors")
    suite = suite_from(f"transfer:surrogate={tmp_path}/w.safetensors,attack=pgd-8:step=eps/8,start=none")
    (stage,) = suite.plan(THREAT).stages
    assert stage.attack.inner == PGD(steps=8, step="eps/8", start="none")
