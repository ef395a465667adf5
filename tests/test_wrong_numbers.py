"""Numbers that were once wrong although nothing failed: each is planted and must come out right."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import PGD, Square
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.result import ResultWarning
from robustvit.core.result_files import read_result
from robustvit.evaluation import Plan, Stage, evaluate, evaluate_curve
from robustvit.models.weights import write_safetensors
from robustvit.reporting.read import read_runs
from robustvit.reporting.tables import groups

EPS = 8 / 255


def off_the_grid(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Images between the steps of 1/255, as resized or cropped ones are."""
    return rv.sample_streams(seed, range(count)).uniform((3, size, size), at="x")


@pytest.fixture(scope="module")
def weak() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A linear model of 64 x 64 pixels and images that it knows, every one of which falls at 8/255."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
    x = off_the_grid(40, 64)
    return model.eval(), (x, model(x).argmax(1))


@pytest.mark.parametrize("suite", ["fgsm", "pgd-20"])
def test_quantized_images_off_the_grid_are_not_refused_by_the_judge(suite, weak):
    model, data = weak
    plain, quantized = (
        evaluate(model, data, suite=suite, threat=rv.LpBall("inf", EPS), quantized=quantized, quiet=True)
        for quantized in (False, True)
    )
    assert plain.robust_accuracy == quantized.robust_accuracy == 0
    assert not quantized.warnings


@pytest.mark.parametrize("threat", [rv.LpBall("inf", EPS), rv.LpBall("2", 1.0), rv.LpBall("1", 20.0)], ids=str)
def test_rounding_off_the_grid_stays_inside_the_ball(threat):
    x = off_the_grid(50, 64)
    stored = threat.quantized(x, threat.random_start(x, rv.sample_streams(1, range(len(x)))))
    assert threat.contains(x, stored).all()
    is_held = threat.contains(x, (x * 255).round() / 255)  # by any image on the grid: this one is the nearest
    on_grid = ((stored * 255) - (stored * 255).round()).abs().flatten(1).amax(1) < 1e-4
    assert torch.equal(on_grid, is_held)
    assert torch.equal(stored[~is_held], x[~is_held])


@pytest.mark.parametrize("norm", ["2", "1"])
def test_what_the_ball_leaves_beyond_rounding_is_used(norm):
    x = off_the_grid(20, 8)
    rounded = (x * 255).round() / 255
    threat = rv.LpBall(norm, 1.2 * float(rv.LpBall(norm, 0).distance(x, rounded).max()))
    far = threat.project(x, x + rv.sample_streams(1, range(len(x))).normal(x.shape[1:], at="far"))
    stored = threat.quantized(x, far)
    assert threat.contains(x, stored).all()
    assert (stored != rounded).flatten(1).any(1).all()


def test_no_search_ends_at_a_rounded_image_outside_the_ball(weak, monkeypatch, tmp_path):
    model, data = weak
    monkeypatch.setattr(rv.LpBall, "quantized", lambda threat, x, x_adv: (x + 2 * (x_adv - x)).clamp(0, 1))
    result = evaluate(
        model, data, suite="pgd-5", threat=rv.LpBall("inf", EPS), quantized=True, run=tmp_path, quiet=True
    )
    assert result.robust_accuracy == 1
    rows = read_rows(next(tmp_path.glob("eval/*/ledger-0.jsonl")))
    assert {row["steps"] for row in rows if row["stage"] == "pgd-5"} == {5}, "none leaves early"


def test_verify_and_evaluate_agree_on_logits_that_are_not_finite(trained, digits, tmp_path):
    threat = rv.LpBall("inf", 0.1)
    result = evaluate(trained, digits, suite="fgsm", threat=threat, run=tmp_path, save_images=True, quiet=True)

    def broken(x):
        """Of no use for the class 3."""
        logits = trained(x)
        return torch.where((logits.argmax(1) == 3)[:, None], torch.nan, logits)

    clean = evaluate(broken, digits, suite="clean", threat=threat, quiet=True)
    verdict = rv.verify(Path(result.folder) / "adversarial.npy", broken, data=digits)
    fell = result.is_correct & ~result.is_robust
    assert verdict.images == fell.sum()
    assert verdict.right == (clean.is_correct & fell).sum() < fell.sum()
    assert verdict.fooled_of_right <= verdict.right


class Aims:
    """An attack that changes nothing and remembers the targets that it got."""

    name, norms = "aims", ("inf", "2", "1")

    def __init__(self):
        self.seen = []

    def __call__(self, model, x, y, threat, search):
        self.seen += search.target.tolist()
        return x


@pytest.mark.parametrize("order", ["ranked", "nearest"])
def test_no_target_is_the_true_class_where_logits_tie(order):
    """All classes do, as after a head of zeros; the first, which is predicted, is the true one."""

    def tied(images):
        return 0 * images.flatten(1)[:, :10]

    x, y = off_the_grid(30, 8), torch.zeros(30, dtype=torch.int64)
    aims = Aims()
    plan = Plan("aims", tuple(Stage(f"aims/{rank}", aims, rank, order) for rank in range(2, 11)))
    result = evaluate(tied, (x, y), suite=plan, threat=rv.LpBall("inf", EPS), quiet=True, checks=False)
    assert result.clean_accuracy == 1
    assert len(aims.seen) == 9 * len(x)
    assert set(aims.seen) == set(range(1, 10))


def probe_warnings(model, data, **options):
    result = evaluate(model, data, suite="fgsm", threat=rv.LpBall("inf", 0.01), quiet=True, **options)
    return {warning.name for warning in result.warnings}


@pytest.mark.parametrize("logit", [-1e9, -1e4, 1e4])
def test_a_constant_logit_does_not_hide_that_a_model_is_random(logit, trained, digits):
    def masked(logits):
        return torch.cat([logits[:, :9], torch.full_like(logits[:, 9:], logit)], 1)

    def dropping(x):
        return masked(trained(nn.functional.dropout(x, 0.1)))

    assert "random-outputs" in probe_warnings(dropping, digits)
    assert "random-outputs" not in probe_warnings(lambda x: masked(trained(x)), digits)


def test_an_image_without_an_answer_does_not_hide_that_a_model_is_random(trained, digits):
    def dropping(x, fraction=0.3):
        logits, mean = trained(nn.functional.dropout(x, fraction)), x.mean((1, 2, 3))
        return torch.where((mean < mean.mean())[:, None], torch.nan, logits)

    assert "random-outputs" in probe_warnings(dropping, digits)
    assert "random-outputs" not in probe_warnings(lambda x: dropping(x, 0.0), digits)
    assert "random-outputs" not in probe_warnings(lambda x: trained(x) * torch.nan, digits)


@pytest.mark.parametrize("images", [1, 50])
def test_rounding_is_not_called_random(images, trained, digits):
    def rounded_otherwise(x):
        logits = trained(x)
        return logits * (1 + 1e-6 * torch.randn_like(logits)) - 1e4 * (torch.arange(10) == 3)

    assert "random-outputs" not in probe_warnings(rounded_otherwise, digits, images=images)


class Idle:
    """An attack that changes nothing, in place of gradients that find little."""

    name, norms = "idle", ("inf", "2", "1")

    def __call__(self, model, x, y, threat, search):
        return x


def sampling_plan(precision: float, *attacks) -> Plan:
    sampled = tuple(Stage(f"sample: {attack.name}", attack) for attack in attacks)
    return Plan("sampling", (Stage("idle", Idle()),), sampled, precision)


def test_what_falls_in_the_sample_counts_as_fallen(trained, digits, tmp_path):
    options = {"threat": rv.LpBall("inf", 0.06), "quiet": True}
    whole = evaluate(trained, digits, suite=[PGD(steps=10)], **options)
    plan = sampling_plan(0.05, PGD(steps=10))
    result = evaluate(trained, digits, suite=plan, run=tmp_path, save_images=True, **options)
    bound = result.details["bound"]
    assert 5 < bound["fooled"] < bound["sampled"] < bound["survivors"] == result.is_correct.sum()
    assert result.is_robust.sum() == bound["survivors"] - bound["fooled"]
    assert result.measure("robust_accuracy").value == result.robust_accuracy == result.stages[-1].robust_accuracy
    assert (whole.is_robust <= result.is_robust).all(), "what fell in the sample falls to the same attack on all images"
    least = bound["robust_accuracy_at_least"]
    assert least == pytest.approx(bound["survivors"] / result.num_images - bound["at_most"])
    assert least <= whole.robust_accuracy <= result.robust_accuracy
    saved = np.load(Path(result.folder) / "adversarial.npy")
    assert len(saved) == bound["fooled"]
    everyone = evaluate(trained, digits, suite=sampling_plan(1e-6, PGD(steps=10)), **options)
    assert np.array_equal(everyone.is_robust, whole.is_robust)
    assert everyone.details["bound"]["robust_accuracy_at_least"] == pytest.approx(whole.robust_accuracy)


def test_along_a_curve_what_fell_in_a_sample_is_attacked_again_by_what_felled_it(trained, digits):
    threats = [rv.LpBall("inf", 0.06), rv.LpBall("inf", 0.1)]
    small, large = evaluate_curve(
        trained, digits, threats=threats, suite=sampling_plan(0.05, PGD(steps=10)), quiet=True
    )
    assert large.details["curve"]["carried"] == small.details["bound"]["fooled"] > 5
    assert large.details["curve"]["survived_again"] == 0
    assert (large.is_robust <= small.is_robust).all()
    assert not large.warnings


def test_a_curve_with_samples_is_opened_again(trained, digits, tmp_path):
    weak = Stage("weak", PGD(steps=1, step=1e-3, start="none"))
    plan = Plan("sampling", (weak,), (Stage("sample: pgd", PGD(steps=10)),), 0.05)
    options = {"threats": [rv.LpBall("inf", 0.06), rv.LpBall("inf", 0.1)], "suite": plan, "run": tmp_path}
    first, second = (evaluate_curve(trained, digits, **options, quiet=True)[1] for _ in range(2))
    assert first.details["curve"]["attacked_again"] > 5, "by the stages of the sample, too"
    assert second.to_dict() == first.to_dict()


def test_a_sample_speaks_for_all_images_when_a_black_box_beats_gradients():
    """Without gradients of use, a few images in 100 fall to Square, of which a sample of some 60 shows a few."""
    layer = nn.Linear(12, 10)
    x = off_the_grid(4000, 2)

    def masked(images):
        return layer(images.detach().flatten(1)) + 0 * images.sum((1, 2, 3))[:, None]

    suite = sampling_plan(0.05, PGD(steps=1, start="none"), Square(queries=30))
    result = evaluate(
        masked, (x, masked(x).argmax(1)), suite=suite, threat=rv.LpBall("inf", 0.03), quiet=True, checks=False
    )
    fooled, bound = result.stages[-1].num_fooled, result.details["bound"]
    assert 1 < fooled < 0.002 * len(x), "too few, if they counted for themselves alone"
    (warned,) = result.warnings
    assert warned.name == "black-box-beats-gradients"
    assert f"{fooled * bound['survivors'] / bound['sampled']:.0f} of 4000" in warned.observation


@pytest.mark.parametrize(("count", "is_masking"), [(2, False), (20, True)])
def test_masking_along_a_curve_is_more_than_two_seeds_differ_by(count, is_masking, trained, digits):
    x, y = digits
    threats = [rv.LpBall("inf", 0.05), rv.LpBall("inf", 0.08)]
    options = {"suite": [PGD(steps=3, step="eps", start="none")], "quiet": True}
    fell = evaluate(trained, (x, y), threat=threats[0], **options)
    chosen = torch.from_numpy(np.flatnonzero(fell.is_correct & ~fell.is_robust))
    assert 30 < len(chosen) <= 64, "all of them are attacked again"

    def masked(images):  # far from these images it says what it says of the nearest one
        gap, nearest = torch.cdist(images.detach().flatten(1), x.flatten(1), p=float("inf")).min(1)
        known = (gap < 0.06) | ~torch.isin(nearest, chosen[:count])
        return torch.where(known[:, None], trained(images), trained(x[nearest]))

    _, large = evaluate_curve(masked, (x, y), threats=threats, **options)
    assert large.details["curve"]["survived_again"] == count
    assert [warned.name for warned in large.warnings] == (["gradient-masking"] if is_masking else [])


def test_checks_complete_a_result_that_was_made_without_them(trained, digits, tmp_path):
    calls = []

    def dropping(x):
        calls.append(len(x))
        return trained(nn.functional.dropout(x, 0.3))

    options = {"suite": "fgsm", "threat": rv.LpBall("inf", 0.05), "images": 60, "quiet": True}
    checked = evaluate(dropping, digits, **options, run=tmp_path / "checked")
    without = evaluate(dropping, digits, **options, run=tmp_path / "later", checks=False)
    assert "random-outputs" in {warned.name for warned in checked.warnings}
    assert "random-outputs" not in {warned.name for warned in without.warnings}
    given = ResultWarning("training-images", "these are training images")
    later = evaluate(dropping, digits, **options, run=tmp_path / "later", warnings=[given])
    assert later.folder == without.folder
    assert later.warnings == (given, *checked.warnings)
    assert read_result(Path(later.folder)).to_dict() == later.to_dict()
    counts = []
    for checks in (True, False):
        calls.clear()
        again = evaluate(dropping, digits, **options, run=tmp_path / "later", checks=checks)
        assert again.to_dict() == later.to_dict(), "neither is lost again"
        counts.append(len(calls))
    assert counts[0] == counts[1], "the model is probed once"


def test_a_model_at_chance_is_reported_once_with_a_control(digits, capsys):
    model = tiny_vit()
    suite = "aas-fgsm:search_steps=1"
    result = evaluate(model, digits, suite=suite, threat=rv.LpBall("inf", 0.05), images=20, checks=False)
    assert result.control is not None
    assert capsys.readouterr().err.count("at-chance") == 1


class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.pairs = list(zip(x, y.tolist(), strict=True))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


@pytest.mark.parametrize("kind", [Pairs, lambda x, y: (x, y)], ids=["dataset", "pair"])
def test_other_pixels_under_one_title_are_other_data(kind, trained, digits, tmp_path):
    x, y = digits[0][:60], digits[1][:60]
    noisy = (x + 0.2 * torch.randn_like(x)).clamp(0, 1)
    options = {"suite": "fgsm", "quiet": True, "checks": False}
    clean, other = (
        evaluate(trained, kind(images, y), threat=rv.LpBall("inf", 0.02), run=tmp_path, **options)
        for images in (x, noisy)
    )
    assert clean.provenance.data == other.provenance.data
    assert clean.provenance.data_sha256 != other.provenance.data_sha256
    with pytest.raises(UserError, match="another data"):
        evaluate(trained, kind(x, y), threat=rv.LpBall("inf", 0.05), smaller=other, **options)
    compared = groups(read_runs([tmp_path]))
    assert len({group.data for group in compared}) == len(compared) == 2


class Marker:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("setting", ["checkpoint_path", "pretrained_cfg", "xyz"])
def test_a_file_cannot_make_timm_read_other_files(setting, tmp_path, monkeypatch):
    from robustvit.models.registered import timm

    marker, unpickled = tmp_path / "marker", tmp_path / "evil.pth"
    torch.save({"state_dict": Marker(marker)}, unpickled)
    create = timm.create_model

    @functools.wraps(create)
    def trusting(*names, checkpoint_path="", **settings):  # as timm did up to 1.0.25
        model = create(*names, **settings)
        if checkpoint_path:
            torch.load(checkpoint_path, weights_only=False)
        return model

    monkeypatch.setattr(timm, "create_model", trusting)
    file = tmp_path / "model.safetensors"
    model = tiny_vit()
    settings = {**model.settings.settings, setting: str(unpickled)}
    write_safetensors(model.backbone, file, {"model": {**to_dict(model.settings), "settings": settings}})
    with pytest.raises(UserError, match=f"has no setting '{setting}'"):
        rv.load_model(file)
    with pytest.raises(UserError, match=f"has no setting '{setting}'"):
        rv.create_model("vit_tiny_patch16_224", num_classes=10, **{setting: str(unpickled)})
    assert not marker.exists()


def masked_at(model, logit):
    """The last class can't be predicted."""
    return lambda x: torch.cat([model(x)[:, :9], torch.full((len(x), 1), logit)], 1)


@pytest.mark.parametrize("logit", [-1e4, torch.finfo(torch.float32).min])
def test_two_functions_with_a_masked_class_are_two_models(logit, tmp_path, trained, digits):
    options = {"suite": "fgsm", "threat": rv.LpBall("inf", 0.01), "run": tmp_path, "quiet": True, "checks": False}
    for model in (trained, linear_digits(), lambda x: trained(x).roll(1, 1)):
        alone = evaluate(masked_at(model, logit), digits, **{**options, "run": None})
        assert evaluate(masked_at(model, logit), digits, **options).clean_accuracy == alone.clean_accuracy
    assert len(list(tmp_path.glob("eval/*/result.json"))) == 3


def test_a_masked_class_does_not_prolong_the_search(trained, digits, tmp_path):
    steps = []
    for logit in (-50.0, -1e9):
        run = tmp_path / str(logit)
        evaluate(masked_at(trained, logit), digits, suite="pgd-20", threat=rv.LpBall("inf", 0.1), run=run, quiet=True)
        rows = read_rows(next(run.glob("eval/*/ledger-0.jsonl")))
        steps.append({row["image"]: row["steps"] for row in rows if row["stage"] == "pgd-20"})
    assert min(steps[0].values()) < 20
    assert sum(steps[0][image] != steps[1][image] for image in steps[0]) <= 2
