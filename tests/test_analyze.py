"""What all analyses have in common: several models, adversarial images, a plan, and a folder that resumes."""

import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import robustvit as rv
from conftest import linear_digits, tiny_vit, token_vit
from robustvit.analysis import Finding, Line, analyze
from robustvit.cli.main import app
from robustvit.core.component import _REGISTRY, build, component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Table, percent
from robustvit.core.finding import read_finding
from robustvit.evaluation.attacked_images import AttackOnImages, clean_images
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.models import save_model

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"threat": THREAT, "images": 24, "quiet": True}


@pytest.fixture
def accuracy():
    """A small analysis: accuracy on the images that it is given, and which images these are."""

    @component("analysis", "small")
    class Small:
        """Counts what is right."""

        wanted: int = 1
        calls: ClassVar[list[str]] = []
        clean_only: ClassVar[str] = ""

        def passes(self, subject):
            return 3 * len(subject.indices)

        def check(self, subject):
            if getattr(subject.model, "is_odd", False):
                raise UserError("an odd model")

        def __call__(self, subject, store):
            self.calls.append(subject.images.title)
            x, y = subject.batch(subject.indices)
            right = float((subject(x).argmax(1) == y).float().mean())
            return Finding(
                "Small", f"On {subject.images.title}.",
                tables=(Table("Accuracy", ("what", "value"), (("right", percent(right)),)),),
                charts=(Chart("Accuracy", "block", (Line("right", (0.0,), (right,)),)),),
                arrays={"right": np.array([right]), "x": x.numpy(), "wanted": np.array([self.wanted])},
            )  # fmt: skip

    yield Small
    del _REGISTRY["analysis"]["small"]


def test_models_are_compared_in_one_finding(accuracy, trained, tmp_path):
    other = linear_digits()
    (whole,) = analyze(trained, "digits", what="small", compare={"linear": other}, run=tmp_path, **OPTIONS)
    (one,) = analyze(trained, "digits", what="small", **OPTIONS)
    (two,) = analyze(other, "digits", what="small", **OPTIONS)
    assert [row[2] for row in whole.tables[0].rows] == [one.tables[0].rows[0][1], two.tables[0].rows[0][1]]
    assert [line.name for line in whole.charts[0].lines][1] == "linear"
    folders = sorted(path.name for path in (tmp_path / "analysis").iterdir())
    assert len(folders) == 3
    assert sum("compared" in name for name in folders) == 1
    page = rv.report(tmp_path).read_text()
    assert page.count('<article class="finding">') == 1  # the two that it is made of are not shown again
    accuracy.calls.clear()
    (again,) = analyze(trained, "digits", what="small", compare={"linear": other}, run=tmp_path, **OPTIONS)
    assert accuracy.calls == []
    assert again.tables == whole.tables


def test_on_a_suite_the_images_are_those_that_the_attack_makes(accuracy, trained, tmp_path):
    (found,) = analyze(trained, "digits", what="small", on=["clean", "pgd-5"], run=tmp_path, **OPTIONS)
    clean, attacked = (float(row[2].split()[0]) for row in found.tables[0].rows)
    result = rv.evaluate(trained, "digits", suite="pgd-5", **OPTIONS)
    assert clean == pytest.approx(100 * result.clean_accuracy, abs=0.06)
    assert attacked == pytest.approx(100 * result.robust_accuracy, abs=0.06)
    x, x_adv = found.arrays["x-clean"], found.arrays["x-pgd-5"]
    assert 0.09 < np.abs(x - x_adv).max() <= 0.1 + 1e-6
    assert "under pgd-5" in found.caption


@pytest.mark.parametrize("suite", [["fgsm", "pgd-5"], "apgd-t:steps=10"])
def test_what_resists_is_as_the_last_stage_left_it(trained, suite):
    threat = rv.LpBall("inf", 0.02)
    with open_subject(trained, "digits", images=8, quiet=True).ready() as subject:
        attacked = AttackOnImages(subject, suite_from(suite), threat)(None)
        x, y = subject.batch(subject.indices)
        x_adv, _ = attacked.batch(attacked.indices)
        fooled = subject(x_adv).argmax(1) != y
        assert clean_images(attacked) is subject.images
        assert clean_images(subject) is None
    assert threat.contains(x, x_adv).all()
    result = rv.evaluate(trained, "digits", suite=suite, threat=threat, images=8, quiet=True)
    assert int((~fooled).sum()) == int(result.is_robust.sum())
    if suite != "apgd-t:steps=10":  # which gives back the clean image where it finds nothing
        assert (~fooled).any()
        assert (x != x_adv).flatten(1).any(1).all()


def test_adversarial_images_are_kept_and_those_that_are_missing_are_made(trained, tmp_path):
    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = trained, 0

        def forward(self, x):
            self.seen += len(x)
            return self.inner(x)

    model = Counted()
    with open_subject(model, "digits", images=24, batch_size=8, quiet=True).ready() as subject:
        attack = AttackOnImages(subject, suite_from("pgd-3"), THREAT)
        made, _ = attack(tmp_path).images.take(subject.indices)
        assert attack.is_done(tmp_path)
        whole = model.seen
        model.seen = 0
        again, _ = attack(tmp_path).images.take(subject.indices)
        assert model.seen == 0
        parts = sorted(tmp_path.glob("*/adversarial-parts/*.npz"))
        assert len(parts) == 3
        parts[0].write_bytes(b"torn")
        parts[1].unlink()
        assert not attack.is_done(tmp_path)
        resumed, _ = attack(tmp_path).images.take(subject.indices)
        assert 0 < model.seen < whole
    assert torch.equal(made, again)
    assert torch.equal(made, resumed)


def test_adversarial_images_that_another_process_is_making_are_waited_for(trained, tmp_path, capsys):
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, 2); print(flush=True); time.sleep(1)"
    with open_subject(trained, "digits", images=2, batch_size=8, quiet=True).ready() as subject:
        attack = AttackOnImages(subject, suite_from("pgd-1"), THREAT)
        folder = attack.store(tmp_path).folder
        folder.mkdir(parents=True)
        with subprocess.Popen([sys.executable, "-c", hold, str(folder / ".lock")], stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            attack(tmp_path)
        assert attack.is_done(tmp_path)
    assert "waiting for another process" in capsys.readouterr().err


def test_an_analysis_of_clean_images_refuses_others(accuracy, trained):
    accuracy.clean_only = "it counts clean ones"
    with pytest.raises(UserError, match="small: on pgd-2: it counts clean ones"):
        analyze(trained, "digits", what="small", on="pgd-2", **OPTIONS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on": "pgd-2", "threat": None}, "an attack needs a threat"),
        ({"on": "aas-pgd-2:judged_on=scaled"}, "judged on a changed model"),
        ({"on": []}, "on: 'clean' or suites"),
        ({"on": ["clean", "clean"]}, "each once"),
        ({"on": "pgd"}, "how many steps"),
        ({"compare": "runs/x"}, "a list of models"),
        ({"compare": ["nowhere"]}, "'nowhere' is not there"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(accuracy, vit, given, message):
    with pytest.raises(UserError, match=message):
        analyze(vit, "digits", what="small", **{**OPTIONS, **given})


def test_a_model_twice_and_a_callable_cannot_be_compared(accuracy, trained):
    with pytest.raises(UserError, match="given twice"):
        analyze(trained, "digits", what="small", compare=[trained], **OPTIONS)
    with pytest.raises(UserError, match="'Normalized' is the name of the first model"):
        analyze(trained, "digits", what="small", compare={"Normalized": linear_digits()}, **OPTIONS)
    with pytest.raises(UserError, match="bare callables"):
        analyze(lambda x: trained(x), "digits", what="small", compare=[trained], **OPTIONS)


def test_models_with_the_same_weights_and_another_forward_have_findings_of_their_own(accuracy, trained, tmp_path):
    class Negated(type(trained)):
        def forward(self, x):
            return -super().forward(x)

    other = Negated(trained.backbone, (0.3,), (0.38,)).eval()
    Negated.__name__, Negated.__qualname__ = type(trained).__name__, type(trained).__qualname__
    found = [analyze(model, "digits", what="small", run=tmp_path, **OPTIONS)[0] for model in (trained, other)]
    assert found[0].tables != found[1].tables


def test_the_plan_comes_first_with_its_cost(accuracy, trained, tmp_path, capsys):
    shown = {**OPTIONS, "quiet": False}
    both = {"what": "small", "on": ["clean", "pgd-2"], "run": tmp_path}
    assert analyze(trained, "digits", plan_only=True, **both, **shown) == []
    text = capsys.readouterr().err
    assert "3 of 3 to compute: at most" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  small")]
    assert [row[1:4] for row in rows] == [["clean", "24", "72"], ["pgd-2", "24", "72"]]
    assert "adversarial images" in text
    assert accuracy.calls == []
    analyze(trained, "digits", **both, **OPTIONS)
    analyze(trained, "digits", plan_only=True, **both, **shown)
    assert "0 of 2 to compute: nothing" in capsys.readouterr().err


def test_all_are_those_that_fit(accuracy, trained, capsys, monkeypatch):
    known = {"small": accuracy, "attention_scores": _REGISTRY["analysis"]["attention_scores"]}
    monkeypatch.setitem(_REGISTRY, "analysis", known)
    findings = analyze(trained, "digits", what="all", **{**OPTIONS, "quiet": False})
    assert [one.title for one in findings] == ["Small"]
    assert "left out: " in capsys.readouterr().err
    changed = analyze(trained, "digits", what=["all", {"name": "small", "wanted": 2}], **OPTIONS)
    assert [one.arrays["wanted"].item() for one in changed] == [2]
    trained.is_odd = True
    try:
        with pytest.raises(UserError, match="no attention block"):
            analyze(trained, "digits", what="all", **OPTIONS)
    finally:
        del trained.is_odd


def test_at_most_so_many_images(accuracy, trained, digits):
    (found,) = analyze(trained, (digits[0][:5], digits[1][:5]), what="small", quiet=True)
    assert len(found.arrays["x"]) == 5
    (found,) = analyze(trained, "digits", what="small", quiet=True)
    assert len(found.arrays["x"]) == 256
    with pytest.raises(UserError, match="images"):
        analyze(trained, "digits", what="small", images=0)


def test_figures_are_written_and_a_killed_call_makes_the_same_finding(accuracy, trained, tmp_path, monkeypatch):
    (whole,) = analyze(trained, "digits", what="small", run=tmp_path / "a", **OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["robustvit.analysis.analyze"], "write_finding", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            analyze(trained, "digits", what="small", run=tmp_path / "b", **OPTIONS)
    analyze(trained, "digits", what="small", run=tmp_path / "b", **OPTIONS)
    folders = [next((tmp_path / run / "analysis").iterdir()) for run in "ab"]
    found = [read_finding(folder) for folder in folders]
    assert found[0].tables == found[1].tables == whole.tables
    assert all([path.name for path in (folder / "figures").iterdir()] == ["01-accuracy.svg"] for folder in folders)


def test_on_the_command_line(accuracy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        model = tiny_vit()
        torch.nn.init.normal_(model.backbone.head.weight)
        save_model(model, tmp_path / f"{name}.safetensors")
    command = ["analyze", "a.safetensors", "--data", "digits", "--images", "8", "--eps", "0.1", "--what", "small"]
    arguments = [*command, "--compare", "b.safetensors", "--on", "clean", "--on", "fgsm"]
    planned = CliRunner().invoke(app, [*arguments, "--plan"])
    assert planned.exit_code == 0, planned.output
    assert not (tmp_path / "runs").exists()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "model, images" in done.output
    assert "b, fgsm" in done.output
    assert len(list((tmp_path / "runs").glob("*/analysis/*/finding.json"))) == 5
    for what in ("all", "all,small"):
        refused = CliRunner().invoke(app, [*command[:-1], what, "-o", "small.x=1"])
        assert refused.exit_code == 2
        assert "small.x: no such setting" in refused.output
    refused = CliRunner().invoke(app, [*command, "-o", "lesion.draws=5"])
    assert refused.exit_code == 2
    assert "-o lesion.draws=5: lesion is not among the analyses; add it: --what small,lesion" in refused.output
    planned = CliRunner().invoke(app, [*command[:-1], "all,small", "-o", "lesion.draws=1", "--plan"])
    assert planned.exit_code == 0, planned.output
    assert "small" in planned.output
    assert "lesion" in planned.output


@pytest.mark.parametrize("name", ["lesion", "layer_similarity", "restricted_attention", "attention_maps", "eigen_cam"])
def test_the_inside_of_a_callable_cannot_be_looked_at(name, trained):
    with pytest.raises(UserError, match=f"^{name}: the inside of a model is looked at in an nn.Module, which"):
        analyze(lambda x: trained(x), "digits", what=name, **OPTIONS)


OF_FOUR = {
    "attack_strength": {"steps": [1], "reference": 2, "seeds": 1},
    "attention_attacks": {"tables": ["attacks"], "attacks": ["fgsm"]},
    "attention_maps": {"shown": 4},
    "boundary": {"steps": 2},
    "confusion": {},
    "eigen_cam": {"shown": 4},
    "feature_visualization": {"made": 4, "steps": 2},
    "gradient_paths": {"attack": "fgsm"},
    "input_gradients": {},
    "layer_similarity": {},
    "lesion": {"draws": 2},
    "loss_along": {"shown": 4, "steps": 2, "restarts": 3},
    "loss_by_steps": {"shown": 4, "steps": [1, 2], "restarts": 2},
    "loss_surface": {"shown": 1, "points": 4},
    "perturbations": {"attack": {"name": "pgd", "steps": 4}},
    "restricted_attention": {},
}
"""Images come in fours, as smaller batches are filled up."""


@pytest.mark.parametrize("name", OF_FOUR)
def test_an_analysis_takes_about_as_many_passes_as_planned(name):
    model, taken = token_vit().eval(), []
    x, _ = rv.load_data("digits", 4)
    with torch.no_grad():
        data = (x, model(x).argmax(1))  # so that it is right

    def count(module, given, logits):
        taken.append(len(logits))
        if logits.requires_grad:
            logits.register_hook(lambda gradient: taken.append(len(gradient)))

    analysis = build("analysis", {"name": name, **OF_FOUR[name]})
    if hasattr(analysis, "threat"):
        analysis = replace(analysis, threat=THREAT)
    model.register_forward_hook(count)
    with open_subject(model, data, batch_size=4, quiet=True).ready() as subject:
        planned = analysis.passes(subject)
        taken.clear()
        analysis(subject, Store(None))
    assert 0.85 * planned - 1 <= sum(taken) <= planned + 5, "a few images show what the model is made of"
