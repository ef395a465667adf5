"""Python takes what the command line takes, and shows what it found."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.losses import is_fooled
from robustvit.models import fingerprint, load_checkpoint

THREAT = rv.LpBall("inf", "24/255")


class Output(OrderedDict):
    """As transformers returns it: a map whose entries are attributes, too."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Tuple:
    def __init__(self, logits):
        self.logits = logits


KINDS = {"map": dict, "output": Output}


class Foreign(nn.Module):
    def __init__(self, inner, kind):
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x):
        logits = self.inner(x)
        return (
            {"map": dict, "output": Output}[self.kind](logits=logits, hidden=x)
            if self.kind != "tuple"
            else Tuple(logits)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rv.train("digits/standard", run=tmp_path_factory.mktemp("api") / "run", overrides=["epochs=1"], quiet=True)


@pytest.mark.parametrize("kind", ["map", "output", "tuple"])
def test_outputs_that_hold_logits_are_taken_with_a_note(kind, trained, digits, capsys):
    data = tuple(part[:32] for part in digits)
    expected = rv.evaluate(trained, data, suite="fgsm", threat=THREAT, quiet=True)
    foreign = Foreign(trained, kind)
    for model in (foreign, rv.normalized(foreign, [0.0], [1.0]), lambda x: foreign(x)):
        result = rv.evaluate(model, data, suite="fgsm", threat=THREAT)
        noted = "its logits are used" in capsys.readouterr().err
        assert noted == (not isinstance(model, rv.models.Normalized))
        assert np.array_equal(result.is_robust, expected.is_robust)
        assert np.array_equal(result.is_correct, expected.is_correct)


@pytest.mark.parametrize("training", [True, False])
def test_a_normalized_model_keeps_its_mode(training):
    inner = nn.Sequential(nn.Dropout(), nn.Flatten()).train(training)
    assert [part.training for part in rv.normalized(inner, [0.5], [0.5]).modules()] == 4 * [training]


def test_what_holds_no_logits_is_refused_with_a_remedy(digits):
    with pytest.raises(UserError, match=r"must return logits of shape \(N, classes\), not dict; wrap it in a function"):
        rv.evaluate(lambda x: {"scores": x}, digits, threat=THREAT)


def test_a_run_folder_or_its_weights_bring_their_data_and_threat(run):
    model = rv.load_model(run.path)
    assert fingerprint(model) == fingerprint(load_checkpoint(run.checkpoint()))
    assert not model.training
    result = rv.evaluate(run.path, suite="fgsm", images=20, quiet=True)
    same = rv.evaluate(str(run.checkpoint()), suite="fgsm", images=20, quiet=True)
    assert [str(result.threat), str(same.threat)] == 2 * ["Linf 0.15"], "the file holds the recipe, too"
    assert np.array_equal(result.outcomes.predicted, same.outcomes.predicted)
    assert result.provenance.checkpoint["name"] == "digits-standard"
    curve = rv.evaluate_curve(run.path, threats=[THREAT], suite="fgsm", images=20, quiet=True)
    assert [one.num_images for one in curve] == [20]
    (finding,) = rv.analyze(run.path, what="input_gradients", images=16, quiet=True)
    assert finding.tables or finding.charts


def test_a_model_without_a_run_needs_its_data(trained):
    with pytest.raises(UserError, match="data: which images"):
        rv.evaluate(trained, threat=THREAT)
    with pytest.raises(UserError, match="model: a run folder, a name, an nn.Module or a callable, not int"):
        rv.evaluate(3, "digits", threat=THREAT)
    with pytest.raises(UserError, match=r"load_model.num_clases: no such setting; did you mean 'num_classes'"):
        rv.load_model("resnet18", num_clases=10)


def test_a_model_by_name(digits):
    model = rv.load_model("resnet18", num_classes=10, random_weights=True)
    assert model(digits[0][:2]).shape == (2, 10)


def test_loaded_data_are_the_images_that_an_evaluation_takes(trained):
    x, y = rv.load_data("digits", 32, seed=3)
    assert y.shape == (32,)
    assert x.dtype == torch.float32
    assert (float(x.min()), x.shape) == (0.0, (32, 3, 8, 8))
    result = rv.evaluate(trained, "digits", suite="clean", threat=THREAT, images=32, seed=3, quiet=True)
    with torch.no_grad():
        assert np.array_equal(result.outcomes.predicted, trained(x).argmax(1).numpy())
    assert len(rv.load_data("digits")[1]) == 360
    with pytest.raises(UserError, match="images: a whole number from 1 to 360 .*, not 361"):
        rv.load_data("digits", 361)


def test_attacks_called_bare_draw_from_seed_0(trained, digits):
    x, y = (part[:8] for part in digits)
    bare = rv.attacks.PGD(steps=2)(trained, x, y, THREAT)
    seeded = rv.attacks.PGD(steps=2)(trained, x, y, THREAT, rv.attacks.Search(rv.sample_streams(0, range(8))))
    assert torch.equal(bare, seeded)


def test_a_result_shows_itself(trained, digits):
    data = tuple(part[:64] for part in digits)
    result = rv.evaluate(trained, data, suite=["fgsm", "pgd-2"], threat=THREAT, quiet=True)
    clean, robust = result.measures
    ends = " to ".join(f"{100 * end:.1f}" for end in robust.interval)
    line = repr(result)
    assert line == str(result)
    assert line.startswith("Result(fgsm+pgd-2 at Linf 24/255 on 64 images: clean ")
    assert f"{100 * clean.value:.1f} % (" in line
    assert f"robust {100 * robust.value:.1f} % ({ends})" in line
    summary = result.summary().splitlines()
    fooled = [stage.num_fooled for stage in result.stages]
    assert summary[1].startswith(f"  fgsm: fooled {fooled[0]} of {result.stages[0].num_images}, ")
    assert summary[2].startswith(f"  pgd-2: fooled {fooled[1]} of ")
    page = result._repr_html_()
    assert f">robust</td><td>{100 * robust.value:.1f} %</td><td>{ends}</td>" in page
    assert result == result


def test_html_escapes_what_users_name(trained, digits):
    suite = {"name": "single", "attack": "fgsm", "title": "<b>mine</b>"}
    result = rv.evaluate(trained, tuple(part[:8] for part in digits), suite=suite, threat=THREAT, quiet=True)
    assert "&lt;b&gt;mine" in result._repr_html_()
    assert "<b>mine" not in result._repr_html_()


@pytest.mark.parametrize("in_folder", [True, False])
def test_adversarial_images_on_request(trained, digits, tmp_path, in_folder):
    x, y = (part[:64] for part in digits)
    run = tmp_path / "run" if in_folder else None
    result = rv.evaluate(trained, (x, y), suite="pgd-5", threat=THREAT, save_images=True, run=run, quiet=True)
    kept = result.adversarial()
    fooled = np.flatnonzero(result.is_correct & ~result.is_robust)
    assert sorted(kept.index.tolist()) == fooled.tolist()
    assert len(kept) > 0
    images, labels = torch.from_numpy(np.array(kept.images)), torch.from_numpy(kept.labels)
    assert THREAT.contains(x[torch.from_numpy(kept.index)], images).all()
    assert is_fooled(trained(images), labels).all()
    assert (result.folder is None) == (not in_folder)
    plain = rv.evaluate(trained, (x, y), suite="pgd-5", threat=THREAT, quiet=True)
    with pytest.raises(UserError, match="kept no adversarial images"):
        plain.adversarial()


@pytest.mark.parametrize(
    ("eps", "shown"), [("8/255", "8/255"), (0.5, "0.5"), ("1/7", "1/7"), (0.5625, "0.5625"), ("0.5/255", "0.5/255")]
)
def test_a_threat_prints_as_it_was_written(eps, shown):
    threat = rv.LpBall("inf", eps)
    assert repr(threat) == f"LpBall('inf', {shown})"
    assert str(threat) == f"Linf {shown}"
    assert rv.LpBall("inf", shown) == threat


class Named(torch.utils.data.Dataset):
    classes = ("no", "yes", *map(str, range(2, 10)))

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3, 8, 8), index / 12), index % 10


def test_results_know_the_names_of_classes(trained, tmp_path):
    result = rv.evaluate(trained, Named(), suite="clean", threat=THREAT, quiet=True)
    assert result.provenance.class_names == Named.classes
    x, y = rv.load_data(Named())
    assert rv.evaluate(trained, (x, y), suite="clean", threat=THREAT, quiet=True).provenance.class_names == ()


def test_chosen_classes_keep_their_names():
    from robustvit.data.arrays import InMemory
    from robustvit.data.base import class_names
    from robustvit.data.select import Selection, selected

    x, y = rv.load_data(Named())
    images = InMemory(x, y, "named", 10, Named.classes)
    chosen = selected(images, Selection(classes=("3", "yes")))
    assert class_names(chosen) == ("3", "yes")
    assert class_names(selected(images, Selection(images=("0", "1")))) == Named.classes
    assert class_names(selected(InMemory(x, y, "unnamed", 10), Selection(classes=("3",)))) is None


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ({"images": 0}, "images: a whole number from 1 to 360"),
        ({"images": "3"}, "images: a whole number from 1 to 360 .*, not '3'"),
        ({"run": 3}, "run: a folder, not 3"),
        ({"run": ""}, "run: the name of a folder"),
        ({"run": "a\0b"}, "can't be used as a folder"),
        ({"world": 3}, "world: a World, not 3"),
        ({"checkpoint": "x"}, "checkpoint: facts by name, not 'x'"),
        ({"warnings": "careful"}, "warnings: a list of ResultWarning, not 'careful'"),
    ],
)
def test_arguments_of_another_kind_are_refused(argument, problem, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=problem):
        rv.evaluate(trained, "digits", suite="fgsm", threat=rv.LpBall("inf", 0.1), quiet=True, **argument)
    assert not list(tmp_path.iterdir())


def test_sparse_tensors_are_refused(trained, digits):
    with pytest.raises(UserError, match=r"to_dense\(\)"):
        rv.evaluate(trained, (digits[0].to_sparse(), digits[1]), suite="fgsm", threat=rv.LpBall("inf", 0.1))


OWN_ATTACKS = {name for name, made in registered("attack").items() if made.__module__.startswith("robustvit.")}


@pytest.mark.parametrize("name", sorted(OWN_ATTACKS - {"from_surrogate", "attention_scaling"}))
def test_an_attack_says_what_it_can_be_called_with(name, trained, digits):
    x, y = digits[0][:4], digits[1][:4]
    inner = {
        "through_head": {"inner": "pgd"},
        "low_precision": {"inner": "pgd"},
        "restarts": {"inner": "pgd", "times": 2},
        "ensemble": {"attacks": ["pgd", "fgsm"]},
    }
    attack = build("attack", {"name": name, **inner.get(name, {})})
    ball = rv.LpBall("2" if name == "carlini_wagner" else "inf", 0.1)
    for wrong in ((x.numpy(), y), (x[0], y[0]), (x, y[:2]), (x[:0], y[:0]), (x, 3)):
        with pytest.raises(UserError, match=r"x, y: tensors of images \(N, 3, H, W\) and labels"):
            attack(trained, *wrong, ball)
    with pytest.raises(UserError, match="threat: a ball such as"):
        attack(trained, x, y, 0.1)


@pytest.mark.parametrize(
    ("mean", "std", "problem"),
    [
        ([127.0] * 3, [58.0] * 3, "mean: of pixels in .*; divide those of pixels in 0 to 255 by 255|by 255"),
        (0.5, 0.5, "mean: one number or three in a list"),
        ("abc", [1], "mean: one number or three in a list"),
        ([float("nan")], [1], "mean: of pixels in"),
        ([0.5], [0.0], "std: must be above 0"),
        ([0.5, 0.5], [1], "one number or three"),
    ],
)
def test_a_normalization_of_something_else_is_refused(mean, std, problem):
    with pytest.raises(UserError, match=problem):
        rv.normalized(torch.nn.Identity(), mean, std)


def test_settings_given_by_position_are_named():
    with pytest.raises(ValueError, match=r"(?m)^eps$"):
        rv.LpBall("inf", "8/255/2")
    with pytest.raises(ValueError, match=r"(?m)^steps$"):
        rv.attacks.PGD(True)
