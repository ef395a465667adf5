"""Each sign of a number that is not what it seems, planted; and silence where all is well."""

import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from torch import nn

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import PGD, Restarts, Search, Square, Suspect
from robustvit.attacks.hooks import BLACK_BOX
from robustvit.core.component import component
from robustvit.core.result import StageResult
from robustvit.core.streams import seeded_globals
from robustvit.data import Digits, as_pixels
from robustvit.evaluation import Plan, Stage, evaluate, open_subject
from robustvit.evaluation.probes import PROBES
from robustvit.evaluation.sampling import Sample
from robustvit.evaluation.sanity import ADVICE, NORMALIZATIONS, _is_random, probe_model, stage_warnings

THREAT = rv.LpBall("inf", 0.1)


def names(result):
    """Of the signs among the warnings, each of which says what to do."""
    assert all(warning.advice for warning in result.warnings)
    return {warning.name for warning in result.warnings}


def judged(model, data, suite="pgd-5", **options):
    return evaluate(model, data, suite=suite, threat=options.pop("threat", THREAT), quiet=True, **options)


@pytest.fixture(scope="module")
def robust_one() -> nn.Module:
    """A perceptron trained on images one PGD step away."""
    x, y = Digits().open("train").take(torch.arange(500))
    x = as_pixels(x)
    with seeded_globals("robust perceptron"):
        model = rv.normalized(
            nn.Sequential(nn.Flatten(), nn.Linear(192, 96), nn.GELU(), nn.Linear(96, 10)), [0.3], [0.4]
        )
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for step in range(80):
            streams = rv.sample_streams(step, range(len(x)))
            x_adv = PGD(steps=1, step="eps")(model, x, y, rv.LpBall("inf", 0.1), Search(streams))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_adv), y).backward()
            optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_silence_where_all_is_well(trained, robust_one, digits):
    fully = ["pgd-10", "apgd-t:steps=10", "fab-t:steps=10", Square(queries=100)]
    for model in (trained, robust_one, linear_digits()):
        assert judged(model, digits, fully, images=80).warnings == ()
    assert names(judged(tiny_vit(), digits)) == {"at-chance"}, "untrained"
    for threat in (rv.LpBall("2", 1), rv.LpBall("inf", 8 / 255), rv.LpBall("inf", 0), rv.LpBall("inf", 0.5)):
        assert judged(robust_one, digits, threat=threat, images=50).warnings == ()


def test_random_outputs(trained, digits):
    def dropping(x):
        return trained(nn.functional.dropout(x, 0.3))

    assert names(judged(dropping, digits)) == {"random-outputs", "unverified"}


def test_probabilities(trained, digits):
    assert "probabilities" in names(judged(lambda x: trained(x).softmax(1), digits))
    assert names(judged(lambda x: trained(x).log_softmax(1), digits)) == set(), "differences are as of logits"


def test_vanishing_gradients(trained, digits):
    saturated = judged(lambda x: 1e5 * trained(x), digits)
    assert names(saturated) == {"vanishing-gradients"}
    rounded = judged(lambda x: trained((x * 15).round() / 15), digits)
    assert "vanishing-gradients" in names(rounded)
    assert names(judged(lambda x: 1e5 * trained(x), digits, [Square(queries=20)])) == set(), "nothing follows gradients"


class Misleading(nn.Module):
    """The right gradient at the images themselves, the opposite one everywhere else."""

    def __init__(self, model, images):
        super().__init__()
        self.model, self.images = model, images.flatten(1)

    def forward(self, x):
        known = (x.detach().flatten(1)[:, None] == self.images[None]).all(2).any(1)
        sign = torch.where(known, 1.0, -1.0)[:, None]
        logits = self.model(x)
        return logits.detach() + sign * (logits - logits.detach())


def test_accuracy_that_rises_with_steps(trained, digits):
    assert "accuracy-rises-with-steps" in names(judged(Misleading(trained, digits[0]), digits, images=60))


def test_a_black_box_that_beats_gradients(trained, digits):
    def masked(x):  # what it says depends on x, its gradient doesn't
        return trained(x.detach()) + 0 * x.sum((1, 2, 3))[:, None]

    found = names(judged(masked, digits, ["pgd-5:start=none", Square(queries=60)]))
    assert found == {"vanishing-gradients", "wrong-gradients", "black-box-beats-gradients"}
    assert "black-box-beats-gradients" not in names(judged(masked, digits, [Square(queries=60)])), "nobody was beaten"


def test_training_mode(digits):
    assert "training-mode" in names(judged(tiny_vit(drop_rate=0.5).train(), digits, images=16))


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_inputs_that_should_have_been_normalized(how, trained, digits):
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in NORMALIZATIONS[how])

    def of_normalized(z):
        return trained(z * std + mean)

    result = judged(of_normalized, digits)
    assert "normalized-inputs" in names(result)
    assert any(how in warning for warning in map(str, result.warnings)) or how.startswith("CIFAR"), (
        "CIFAR's lie near ImageNet's"
    )
    assert names(judged(lambda x: of_normalized((x - mean) / std), digits)) == set()

    def refusing(z):
        assert z.min() >= 0
        return of_normalized(z)

    assert names(judged(refusing, digits)) == set()


def test_normalizations_are_those_that_people_use():
    imagenet, cifar, half = NORMALIZATIONS.values()
    assert imagenet == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    assert cifar == ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
    assert half == (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD)


@pytest.mark.parametrize(
    ("labels", "right", "reported"),
    [
        ([0] * 80 + [1] * 20, "zeros", True),  # no better than always saying the most frequent class
        ([0] * 80 + [1] * 20, "95", False),
        ([0] * 100, "95", False),  # of one class, nothing is better than saying it
        ([0] * 100, "zeros", False),
        ([0] * 50 + [1] * 50, "zeros", True),
    ],
)
def test_chance_is_the_most_frequent_class(labels, right, reported):
    y = torch.tensor(labels)
    x = torch.zeros(100, 3, 2, 2)
    x[:, 0, 0, 0] = torch.arange(100) / 100

    def model(x):
        number = (x[:, 0, 0, 0] * 100).round().long()
        said = torch.where(number % 20 == 7, 1 - y[number], y[number]) if right == "95" else torch.zeros_like(number)
        return nn.functional.one_hot(said, 10).float()

    assert ("at-chance" in names(judged(model, (x, y), "clean", checks=False))) == reported


def test_inputs_that_were_scaled_twice(trained, digits):
    assert "normalized-inputs" in names(judged(trained, (digits[0] / 255, digits[1])))


def test_a_finished_result_keeps_its_warnings_without_looking_again(trained, digits, tmp_path):
    def dropping(x):
        return trained(nn.functional.dropout(x, 0.3))

    first, second = (judged(dropping, digits, run=tmp_path) for _ in range(2))
    assert first.warnings == second.warnings
    assert names(second) == {"random-outputs", "unverified"}


def test_every_sign_is_documented_and_planted():
    docs, limits = (
        (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text() for page in ("evaluating", "warnings")
    )
    planted = "".join(
        (Path(__file__).parent / f"test_{name}.py").read_text()
        for name in ("sanity", "masking", "eps_curves", "attention_scaling", "evaluation")
    )
    probes = (probe.name for probe in PROBES)
    for name in (*ADVICE, *probes, "black-box-beats-gradients", "attention-masks-gradients"):
        assert f"`{name}`" in docs, name
        assert f"\n| `{name}` | " in limits, name
        assert re.search(rf'"{name}"', planted), name


class NanGradients(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.nan


def test_gradients_that_are_no_numbers_are_reported(trained, digits):
    for suite in ("pgd-5", "apgd-t:steps=5", "fab-t:steps=5"):
        result = judged(lambda x: trained(NanGradients.apply(x)), digits, suite, images=40)
        assert "vanishing-gradients" in names(result), suite


def test_gradients_that_l2_steps_lose_are_reported(trained, digits):
    sharp = rv.normalized(nn.Sequential(trained, Times(30.0)), [0.0], [1.0])
    result = judged(sharp, digits, "apgd-ce:steps=5", threat=rv.LpBall("2", 1.0), images=60)
    assert "vanishing-gradients" in names(result)


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_black_boxes_are_seen_inside_restarts(trained, digits):
    def rounded(x):
        return trained((x * 4).round() / 4 + 0 * x)

    for square in (Square(queries=60), Restarts(inner=Square(queries=60), times=2)):
        assert names(judged(rounded, digits, [PGD(steps=2), square], checks=False)) == {"black-box-beats-gradients"}


def test_sigmoids_are_probabilities_too(trained, digits):
    assert "probabilities" in names(judged(lambda x: trained(x).sigmoid(), digits, images=40))


class Bright(nn.Module):
    """Class 0 while the image is bright: leads by 7 % of a gray level at first; each image is a little different.

    Of the images in `some`, the gradient is as `gradient` says: none at all, or right at the image alone.
    """

    def __init__(self, some, gradient="right"):
        super().__init__()
        self.some, self.gradient = some.flatten(1), gradient

    def forward(self, x):
        lead = x.mean((1, 2, 3)) - 0.43
        known = (x.detach().flatten(1)[:, None] == self.some[None]).all(2).any(1)
        if self.gradient == "none":
            lead = torch.where(known, lead.detach(), lead)
        if self.gradient == "misleading":
            lead = lead.detach() + torch.where(known, 1.0, -1.0) * (lead - lead.detach())
        return torch.stack([lead, -lead], 1)


def grays(count):
    x = 0.5 + 1e-5 * rv.sample_streams(0, range(count)).uniform((3, 2, 2), at="x")
    return x, torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize(("misled", "reported"), [(2, False), (3, True)])
def test_from_three_images_on_accuracy_rises_with_steps(misled, reported):
    x, y = grays(32)
    result = judged(Bright(x[:misled], "misleading"), (x, y))
    assert ("accuracy-rises-with-steps" in names(result)) == reported


@pytest.mark.parametrize(("without", "reported"), [(0, False), (4, False), (5, True)])
def test_from_a_tenth_of_the_images_on_gradients_vanish(without, reported):
    x, y = grays(40)
    result = judged(Bright(x[:without], "none"), (x, y))
    assert ("vanishing-gradients" in names(result)) == reported


@pytest.mark.parametrize(("noise", "reported"), [(1e-4, False), (4e-3, True)])
def test_outputs_are_random_from_a_thousandth_of_their_spread_on(noise, reported, trained, digits):
    spread = trained(digits[0]).amax() - trained(digits[0]).amin()

    def noisy(x):
        return trained(x) + noise * spread * torch.rand(len(x), 10)

    assert ("random-outputs" in names(judged(noisy, digits, images=16))) == reported
    assert ("random-outputs" in names(judged(lambda x: noisy(x) - 300, digits, images=16))) == reported


@component("attack", "test-takes-some")
class TakesSome:
    """Darkens the first so many images enough, as a black box."""

    follows_gradients: ClassVar[bool] = False
    suspect: ClassVar[Suspect] = BLACK_BOX
    count: int = 1

    def __call__(self, model, x, y, threat, search):
        return torch.where((search.random.ids < self.count).view(-1, 1, 1, 1), x - 0.09, x)


@pytest.mark.parametrize(("images", "enough"), [(100, 2), (1500, 4)])
def test_from_two_in_a_thousand_images_on_a_black_box_beats_gradients(images, enough):
    x, y = grays(images)
    for count in (enough - 1, enough):
        suite = ["pgd-1:step=1e-6", TakesSome(count=count)]
        result = judged(Bright(x[:0]), (x, y), suite, checks=False)
        assert result.stages[1].num_fooled == count
        assert ("black-box-beats-gradients" in names(result)) == (count == enough)


@component("attack", "test-takes-found")
class TakesFound(TakesSome):
    """The same, with a control that darkens fewer images."""

    control_name: ClassVar[str] = "few"
    by_chance: int | None = 0

    def control(self):
        return None if self.by_chance is None else TakesFound(count=self.by_chance, by_chance=None)


@pytest.mark.parametrize(("by_chance", "reported"), [(0, True), (3, True), (8, False), (9, False)])
def test_what_is_searched_for_must_beat_chance(by_chance, reported):
    x, y = grays(100)
    suite = ["pgd-1:step=1e-6", TakesFound(count=9, by_chance=by_chance)]
    result = judged(Bright(x[:0]), (x, y), suite, checks=False)
    assert result.stages[1].num_fooled == 9
    assert result.control_result.robust_accuracy == pytest.approx(result.clean_accuracy - by_chance / 100)
    found = [one.observation for one in result.warnings if one.name == "black-box-beats-gradients"]
    claim = f"test-takes-found fooled 9 images that gradients had left robust, {9 - by_chance} more than with few"
    assert found == ([claim] if reported else [])
    assert any(
        note.startswith(f"with few: {100 * result.control_result.robust_accuracy:.1f} % (") for note in result.notes
    )


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize(("part", "is_random"), [(0.9, False), (1.1, True)])
def test_two_draws_may_differ_by_a_thousandth_of_what_a_class_tells(scale, part, is_random):
    """Classes tell 1, 2 and 3, typically 2; what is constant or masked tells nothing, and may be rounded."""
    x, y = torch.rand(8, 3, 2, 2, dtype=torch.float64), torch.zeros(8, dtype=torch.int64)
    rising = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    spread = scale * rising * torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    logits = spread + torch.tensor([9.0 * scale, -9.0 * scale, 9.0 * scale, 50.0 * scale, -1e9], dtype=torch.float64)
    for column, limit in ((0, 2e-3 * scale), (2, 2e-3 * scale), (3, 2e-3 * scale), (4, 1e4)):
        moved = logits.clone()
        moved[5, column] += part * limit
        draws = iter([logits, moved, logits])
        subject = open_subject(lambda x, draws=draws: next(draws), (x, y), batch_size=8)
        assert _is_random(subject, x) == is_random
    still = torch.ones(8, 3, dtype=torch.float64)
    draws = iter([still, still + part * 1e-5])
    assert _is_random(open_subject(lambda x: next(draws), (x, y)), x) == is_random


def stage_result(name, fooled, is_sampled=False):
    return StageResult(name, 100, fooled, 0, 0.5, 0.0, 0, {}, is_sampled)


@pytest.mark.parametrize(
    ("fooled", "images", "survivors", "claim"),
    [
        ((9, 1, 0, 0), 100, 0, None),
        ((9, 2, 0, 0), 100, 0, "fooled 2 images that gradients had left robust"),
        ((9, 1, 1, 0), 100, 0, "fooled 2 images that gradients had left robust"),
        ((0, 0, 0, 2), 100, 10, "fooled 2 images that gradients had left robust"),
        ((0, 0, 0, 2), 100, 30, "fooled 2 images that gradients had left robust in a sample, which stand for 6 of 100"),
        ((0, 0, 0, 1), 100, 50, None),
        ((0, 2, 0, 1), 100, 20, "fooled 3 images that gradients had left robust in a sample, which stand for 4 of 100"),
        ((0, 20, 0, 0), 10_000, 0, None),
        ((0, 21, 0, 0), 10_000, 0, "fooled 21 images that gradients had left robust"),
    ],
)
def test_what_black_boxes_fooled_is_added_up(fooled, images, survivors, claim):
    """A first one, before any gradient was followed, beats nobody; a sampled one stands for all survivors."""
    stages = [Stage(f"s{number}", attack) for number, attack in enumerate((PGD(), Square(), Restarts(Square())))]
    plan = Plan("p", (Stage("first", Square()), *stages), (Stage("sampled", Square()),))
    results = [stage_result("first", 50), *map(stage_result, ("s0", "s1", "s2"), fooled)]
    results.append(stage_result("sampled", fooled[3], True))
    sample = Sample(tuple(range(10)) if survivors else (), survivors, 0.1)
    found = list(stage_warnings(plan, results, 30, images, None, sample))
    assert [one.observation for one in found] == ([] if claim is None else [f"square {claim}"])
    assert all(one.inflates for one in found)


@pytest.mark.parametrize(
    ("brightest", "reported"), [(0.0, False), (0.5, True), (1.99, True), (2.01, False), (255.0, False)]
)
def test_pixels_up_to_two_levels_were_divided_twice(brightest, reported, trained):
    x = torch.full((16, 3, 8, 8), brightest / 255, dtype=torch.float64).float()
    found = [str(one) for one in judged(trained, (x, torch.zeros(16, dtype=torch.int64)), "clean").warnings]
    assert any("as if divided by 255 twice" in one for one in found) == reported


def test_checks_look_at_some_images_at_random(trained, digits):
    sizes = []

    def counted(x):
        sizes.append(len(x))
        return trained(x)

    for batch_size, images, expected in ((8, 100, 16), (40, 100, 40), (100, 100, 64), (100, 30, 30)):
        with open_subject(counted, digits, images=images, batch_size=batch_size, seed=3).ready() as subject:
            sizes.clear()
            assert probe_model(subject) == []
            assert max(sizes) == expected
            assert min(sizes) == 8, "two draws of few images"


def test_chance_is_said_before_attacks_unless_quiet(digits, capsys):
    def constant(x):
        return torch.eye(10)[:1].expand(len(x), -1) + 0 * x.sum((1, 2, 3))[:, None]

    for quiet, suite, times in ((False, "fgsm", 1), (True, "fgsm", 0), (False, "clean", 0)):
        result = evaluate(constant, digits, suite=suite, threat=THREAT, images=60, checks=False, quiet=quiet)
        assert "at-chance" in names(result)
        assert capsys.readouterr().err.count("warning: at-chance") == times
    attack = TakesFound(count=1)
    evaluate(constant, digits, suite=["fgsm", attack], threat=THREAT, images=60, checks=False)
    assert capsys.readouterr().err.count("warning: at-chance") == 1, "not again before the control"
