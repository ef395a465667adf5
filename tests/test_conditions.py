"""Accuracy under named conditions: the same whatever the batches, the processes and the kills."""

import json
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import robustvit as rv
from conftest import tiny_vit
from robustvit.cli.table import print_results
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.numbers import wilson_interval
from robustvit.core.result_files import read_result
from robustvit.data.open import images_from
from robustvit.evaluation import Accuracy, Condition, evaluate, evaluator_from, open_subject
from robustvit.evaluation.conditions import mean_accuracy
from robustvit.evaluation.cost import estimate
from robustvit.evaluation.evaluator import measure_kinds
from robustvit.evaluation.ledger import Answers, Ledger

THREAT = rv.LpBall("inf", 0.1)


def noise(x, streams):
    return (x + 0.4 * streams.normal(x.shape[1:], at="noise", dtype=x.dtype)).clamp(0, 1)


def both_ways(x, streams):
    return torch.cat([x, x.flip(3)])


def white(x, streams):
    return torch.ones_like(x)


@contextmanager
def silenced(model):
    """The first class never wins."""
    handle = model.register_forward_hook(lambda module, inputs, output: output - 1e3 * torch.eye(10)[0])
    try:
        yield
    finally:
        handle.remove()


CONDITIONS = (
    Condition("clean"),
    Condition("noise", ("changed",), change=noise),
    Condition("flipped too", ("changed",), change=both_ways),
    Condition("without class 0", ("model",), around=silenced),
)


def asked(model, data, **options):
    given = {"conditions": CONDITIONS, "worst": options.pop("worst", False)}
    return evaluate(model, data, suite=Accuracy(**given), quiet=True, **options)


def accuracies(result):
    return {one.name: one.accuracy for one in result.conditions}


def test_the_condition_clean_is_the_suite_clean(trained, digits):
    by_condition = evaluate(trained, digits, suite="accuracy", quiet=True)
    by_suite = evaluate(trained, digits, suite="clean", threat=THREAT, quiet=True)
    assert np.array_equal(by_condition.is_correct, by_suite.is_correct)
    assert np.array_equal(by_condition.outcomes.predicted, by_suite.outcomes.predicted)
    assert by_condition.measures == by_suite.measures
    assert by_condition.threat is None


def test_each_condition_is_what_it_says(trained, digits):
    x, y = digits
    result = asked(trained, digits)
    streams = rv.sample_streams(0, range(len(x))).child("condition", "noise")
    with torch.no_grad():
        clean, flipped = (trained(images).argmax(1) == y for images in (x, x.flip(3)))
        noisy = trained(noise(x, streams)).argmax(1) == y
        with silenced(trained):
            quiet = trained(x).argmax(1) == y
    expected = {"clean": clean, "noise": noisy, "flipped too": clean & flipped, "without class 0": quiet}
    assert accuracies(result) == {name: float(right.double().mean()) for name, right in expected.items()}
    assert len(set(accuracies(result).values())) == 4
    assert all(one.interval[0] < one.accuracy < one.interval[1] for one in result.conditions)
    assert result.headline.value == pytest.approx(np.mean(list(accuracies(result).values())))
    low, high = result.headline.interval
    assert low < result.headline.value < high
    assert not trained._forward_hooks


def test_with_worst_only_survivors_meet_the_next(trained, digits, tmp_path):
    every, worst = asked(trained, digits), asked(trained, digits, worst=True, run=tmp_path)
    assert np.array_equal(worst.is_robust, every.is_robust), "robust: right under every condition"
    assert [one.num_images for one in worst.conditions] == sorted(
        (o.num_images for o in worst.conditions), reverse=True
    )
    assert worst.headline.name == "robust_accuracy"
    assert worst.headline.value == float(every.is_robust.mean())


def test_with_worst_other_images_are_all_asked_and_take_none_of_the_own(trained, digits):
    other = images_from((digits[0][:50], digits[1][:50].roll(1)), "test")
    conditions = (Condition("clean"), Condition("other", images=other), Condition("noise", change=noise))
    result = evaluate(trained, digits, suite=Accuracy(conditions=conditions, worst=True), quiet=True)
    right = int((trained(digits[0]).argmax(1) == digits[1]).sum())
    assert [one.num_images for one in result.conditions] == [360, 50, right]


def test_only_unchanged_images_have_a_clean_accuracy(trained, digits, capsys):
    x, y = digits
    other = images_from((x[:30], y[:30]))
    for condition in (Condition("clean", change=noise), Condition("r", images=other), Condition("m", around=silenced)):
        result = evaluate(trained, digits, suite=Accuracy(conditions=(condition,)), quiet=True)
        (measure,) = result.measures
        assert (measure.name, measure.value) == ("accuracy", result.conditions[0].accuracy)
        assert not result.has_clean
        assert set(result.outcomes.arrays()) == ({"index"} if condition.images else {"index", "robust", "under"})
        with pytest.raises(UserError, match="no outcomes 'correct'"):
            _ = result.clean_accuracy
        print_results([result])
        assert f"{100 * measure.value:.1f} %" not in capsys.readouterr().out.splitlines()[1], "the column of clean"


def test_clean_images_are_found_wherever_they_come(trained, digits):
    x, y = digits
    few, dark = Condition("few", images=images_from((x[:30], y[:30]))), Condition("noise", change=noise)
    clean = evaluate(trained, digits, suite="accuracy", quiet=True)
    result = evaluate(trained, digits, suite=Accuracy(conditions=(few, dark, Condition("as it is"))), quiet=True)
    assert np.array_equal(result.is_correct, clean.is_correct)
    assert [one.name for one in result.measures] == ["clean_accuracy", "mean_accuracy"]
    assert result.clean == clean.clean
    late = evaluate(trained, digits, suite=Accuracy(conditions=(dark, Condition("clean")), worst=True), quiet=True)
    assert not late.has_clean, "only survivors of the noise met it"
    assert [one.name for one in late.measures] == ["robust_accuracy"], "a mean over survivors means nothing"


def test_with_worst_no_image_may_be_left(trained, digits, tmp_path):
    conditions = (Condition("clean"), Condition("white", change=white), Condition("noise", change=noise))
    zeros = (digits[0][digits[1] == 0], digits[1][digits[1] == 0])
    result = evaluate(trained, zeros, suite=Accuracy(conditions=conditions, worst=True), run=tmp_path, quiet=True)
    left = [(one.num_images > 0, one.accuracy is None, one.interval is None) for one in result.conditions]
    assert left == [(True, False, False), (True, False, False), (False, True, True)]
    assert result.headline.value == result.robust_accuracy == 0
    assert "noise: no image was left" in result.summary()
    assert read_result(Path(result.folder)).to_dict() == result.to_dict()
    assert "no image left" in rv.report([tmp_path], tmp_path / "page.html").read_text()


def test_neither_batches_nor_processes_nor_kills_change_it(trained, digits, tmp_path, in_turn):
    whole = asked(trained, digits, run=tmp_path / "whole", batch_size=60)
    assert accuracies(asked(trained, digits, batch_size=17)) == accuracies(whole)

    shared = asked(trained, digits, run=tmp_path / "shared", processes=3)
    assert accuracies(shared) == accuracies(whole)
    assert len(list(Path(shared.folder).glob("ledger-*.jsonl"))) == 3
    ledger = Path(whole.folder) / "ledger-0.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6 * len(CONDITIONS), "one line a batch"
    for cut in (1, 9, len(lines) - 1):
        folder = tmp_path / f"cut{cut}" / "eval" / ledger.parent.name
        folder.mkdir(parents=True)
        (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:30])
        resumed = asked(trained, digits, run=tmp_path / f"cut{cut}", batch_size=60)
        assert accuracies(resumed) == accuracies(whole)
        assert len(read_rows(folder / "ledger-0.jsonl")) == len(lines), "nothing is computed twice"
    again = read_result(Path(whole.folder))
    assert again.to_dict() == whole.to_dict()


def test_other_images_and_other_changes_are_other_questions(trained, digits, tmp_path):
    folders = set()
    for condition in (Condition("a", change=noise), Condition("a", change=both_ways), Condition("a"), Condition("b")):
        folders.add(evaluate(trained, digits, suite=Accuracy(conditions=(condition,)), run=tmp_path, quiet=True).folder)
    assert len(folders) == 4


def fog(x, streams, severity=1, fields=()):
    return x * (1 - severity / 10)


@dataclass(frozen=True)
class Haze:
    """Its repr hides what it is made of."""

    severity: int = field(repr=False)
    function: object = fog

    def __call__(self, x, streams):
        return self.function(x, streams, self.severity)

    def method(self, x, streams):
        return self(x, streams)


class Silent:
    """Its repr is its address."""

    def __call__(self, x, streams):
        return x


def halves(value):
    """Arrays whose repr is the same."""
    return torch.cat([torch.zeros(2000), torch.full((1,), value), torch.zeros(2000)])


@pytest.mark.parametrize(
    "make",
    [
        lambda n: partial(fog, severity=n),
        lambda n: partial(partial(fog, fields={"depth": n}), severity=1),
        lambda n: partial(fog, fields=halves(n / 8)),
        lambda n: partial(fog, fields=halves(n / 8).numpy()),
        lambda n: partial(fog, fields=torch.nn.Linear(n, 1)),
        lambda n: partial(fog, fields=torch.tensor(n)),
        lambda n: partial(fog, fields={n, float("inf")}),
        lambda n: partial(fog, fields=Path(f"frost/{n}.png")),
        lambda n: Haze(n),
        lambda n: Haze(1, partial(fog, fields=(n,))),
        lambda n: Haze(n).method,
        lambda n: [noise, fog, both_ways][n],
    ],
)
def test_each_change_is_a_question_of_its_own(make):
    torch.manual_seed(0)
    first, second = (json.dumps(Condition("fog", change=make(n)).identity()) for n in (1, 2))
    assert first != second
    torch.manual_seed(0)
    assert json.dumps(Condition("fog", change=make(1)).identity()) == first, "and the same one when asked again"


def test_a_change_that_cannot_be_recognized_needs_no_run_folder(trained, digits, tmp_path):
    def inside(x, streams):
        return x

    for change in (lambda x, streams: x, inside, Silent(), partial(fog, fields=(Silent(),)), partial(inside)):
        suite = Accuracy(conditions=(Condition("odd", change=change),))
        with pytest.raises(UserError, match=r"condition 'odd': .*could mix it up with another"):
            evaluate(trained, digits, suite=suite, images=16, run=tmp_path, quiet=True)
        assert evaluate(trained, digits, suite=suite, images=16, quiet=True).num_images == 16
    suite = Accuracy(conditions=(Condition("odd", around=lambda model: nullcontext()),))
    with pytest.raises(UserError, match="condition 'odd'"):
        evaluate(trained, digits, suite=suite, images=16, run=tmp_path, quiet=True)


@pytest.mark.parametrize("options", [{}, {"processes": 2}])
def test_a_condition_has_its_own_images_however_many(trained, digits, tmp_path, in_turn, options):
    """More of them than the data has, or other numbers than the chosen ones: each is asked once."""
    (x, y), run = digits, {"run": tmp_path} if options else {}
    others = [Condition(f"first {n}", images=images_from((x[:n], y[:n]))) for n in (30, 100)]
    suite = Accuracy(conditions=(Condition("clean"), *others))
    result = evaluate(trained, (x[200:], y[200:]), suite=suite, images=60, quiet=True, **run, **options)
    assert [one.num_images for one in result.conditions] == [60, 30, 100]
    right = (trained(x).argmax(1) == y).double()
    assert [one.accuracy for one in result.conditions[1:]] == [float(right[:n].mean()) for n in (30, 100)]


def test_mistakes_are_refused(trained, digits):
    with pytest.raises(UserError, match="no condition 'fog'"):
        evaluate(trained, digits, suite={"name": "accuracy", "conditions": ["fog"]}, quiet=True)
    with pytest.raises(UserError, match="a name of its own"):
        evaluate(trained, digits, suite=Accuracy(conditions=(Condition("a"), Condition("a"))), quiet=True)


def test_what_only_attacks_offer_is_refused_before_the_work(trained, digits, tmp_path):
    def unasked(x, streams):
        raise AssertionError("the work has begun")

    small = evaluate(trained, digits, suite="fgsm", threat=THREAT, images=16, quiet=True)
    suite = Accuracy(conditions=(Condition("odd", change=unasked),))
    for option, words in (({"smaller": small}, "accuracy has no eps"), ({"save_images": True}, "only suites of")):
        with pytest.raises(UserError, match=words):
            evaluate(trained, digits, suite=suite, images=16, quiet=True, **option)


def warned(result):
    return [(warning.name, warning.observation) for warning in result.warnings]


@pytest.mark.parametrize(
    "case", ["normalized-inputs", "not-finite", "training-mode", "random-outputs", "probabilities"]
)
def test_the_condition_clean_has_the_warnings_of_the_suite_clean(trained, digits, case):
    x, y = digits[0][:200], digits[1][:200]

    def broken(x):
        logits = trained(x)
        return torch.where(logits.argmax(1, keepdim=True) == 3, torch.nan, logits)

    model = {
        "normalized-inputs": lambda x: trained((x * 0.25 + 0.5).clamp(0, 1)),
        "not-finite": broken,
        "training-mode": trained,
        "random-outputs": lambda x: trained(x) + torch.rand(len(x), 10),
        "probabilities": lambda x: trained(x).softmax(1),
    }[case]
    trained.train(case == "training-mode")
    try:
        by_suite = evaluate(model, (x, y), suite="clean", threat=THREAT, quiet=True)
        by_condition = evaluate(model, (x, y), suite="accuracy", quiet=True)
        unchecked = evaluate(model, (x, y), suite="accuracy", checks=False, quiet=True)
    finally:
        trained.eval()
    assert warned(by_condition) == warned(by_suite)
    assert case in dict(warned(by_suite))
    assert warned(unchecked) == [one for one in warned(by_suite) if one[0] == "not-finite"]


def test_answers_that_are_not_finite_are_counted_under_every_condition(trained, digits):
    def bright(x):
        return torch.where(x.amax((1, 2, 3))[:, None] < 0.4, torch.inf, trained(x))

    conditions = (
        Condition("clean"),
        *(Condition(f"dark/{n}", change=partial(darker, n)) for n in (2, 4, 8)),
        Condition("variant", change=both_shades),
    )
    result = evaluate(bright, digits, suite=Accuracy(conditions=conditions), images=20, quiet=True, checks=False)
    assert warned(result) == [
        ("not-finite", "60 images (dark/4, dark/8, variant) gave logits that aren't finite and count as wrong")
    ]


def darker(times, x, streams):
    return x / times


def both_shades(x, streams):
    return torch.cat([x, x / 8])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, streams: x * 5 - 3, r"images must lie in \[0, 1\], these range from -3 to 2"),
        (lambda x, streams: x * torch.nan, r"images must lie in \[0, 1\]"),
        (lambda x, streams: x[:5], r"the change of 16 images returns \(5, 3, .*\), not \(16, 3, H, W\), or"),
        (lambda x, streams: torch.cat([x, x[:3]]), r"returns \(19, 3, .*a multiple of 16 for several variants"),
        (lambda x, streams: x[:0], r"returns \(0, 3"),
        (lambda x, streams: x.mean(1), r"returns \(16, "),
        (lambda x, streams: x.numpy(), "returns ndarray"),
        (lambda x, streams: None, "returns NoneType"),
    ],
)
def test_a_change_returns_pixels(trained, digits, change, words):
    suite = Accuracy(conditions=(Condition("fog", change=change),))
    with pytest.raises(UserError, match=f"condition 'fog': .*{words}"):
        evaluate(trained, digits, suite=suite, images=16, quiet=True)


def test_many_conditions_are_read_again_from_few_lines(tmp_path):
    ledger = Ledger(tmp_path)
    images = np.arange(5000)
    for condition in range(20):
        for begin in range(0, 5000, 500):
            part = images[begin : begin + 500]
            ledger.record_answers(f"c/{condition}", part, part % 7, part % 3 == condition % 3)
    again = Ledger(tmp_path).answers("c/4")
    assert np.array_equal(again.images, images)
    assert np.array_equal(again.predicted, images % 7)
    assert np.array_equal(again.correct, images % 3 == 1)
    assert (tmp_path / "ledger-0.jsonl").stat().st_size < 20 * 5000 * 12


@pytest.mark.parametrize(
    "suite",
    ["accuracy", "clean", "pgd-1", "spatial:grid=foolbox,angles=3,shifts=3", "corruptions:which=fog",
     "transfer-matrix:models=[tiny]"],
)  # fmt: skip
def test_an_evaluator_knows_the_measures_of_its_results(trained, digits, suite):
    data = (digits[0][:8], digits[1][:8])
    if "tiny" in suite:
        suite = {"name": "transfer-matrix", "models": [tiny_vit()], "attack": "fgsm"}
    evaluator = evaluator_from(suite, THREAT)
    known = measure_kinds(evaluator)
    result = evaluate(trained, data, suite=evaluator, quiet=True, checks=False)
    assert {one.name: one.kind for one in result.measures}.items() <= known.items()
    assert measure_kinds(object()) is None


def test_the_cost_of_changing_images_is_part_of_the_estimate(trained, digits, monkeypatch):
    """A change of two seconds an image, by a clock that only it moves."""
    clock = [0.0]

    def slow(x, streams):
        clock[0] += 2.0 * len(x)
        return x

    monkeypatch.setattr("robustvit.evaluation.condition.time.perf_counter", lambda: clock[0])
    suite = Accuracy(conditions=(Condition("clean"), Condition("slow", change=slow), Condition("slower", change=slow)))
    with open_subject(trained, (digits[0][:7], digits[1][:7])).ready() as subject:
        made = estimate(suite.begin(subject), seconds=0.5)
    assert (made.passes, made.seconds) == (21, 21 * 0.5 + 2 * 7 * 2.0)


def answered(correct, first=0):
    correct = np.array(correct, dtype=bool)
    return Answers(np.arange(first, first + len(correct)), np.zeros(len(correct), dtype=np.int64), correct)


def test_the_interval_of_a_mean_is_that_of_the_images_means():
    rng = np.random.default_rng(0)
    for count in (4, 5, 40):
        tables = [answered(rng.random(count) < 0.7) for _ in range(3)]
        means = [np.mean(values) for values in zip(*(one.correct for one in tables), strict=True)]
        half = stats.t.ppf(0.975, count - 1) * stats.sem(means)
        measure = mean_accuracy(dict(zip("abc", tables, strict=True)))
        assert measure.value == pytest.approx(np.mean(means))
        assert measure.interval == pytest.approx((max(0, np.mean(means) - half), min(1, np.mean(means) + half)))
    assert mean_accuracy({"a": answered([1]), "b": answered([0])}).interval is None
    other = {"a": answered([1, 0, 1]), "b": answered([1, 0, 1]), "c": answered([0, 0, 1], first=1)}
    assert mean_accuracy(other).interval is None, "of other images"
    only = mean_accuracy({"a": answered([1, 1, 0, 1])})
    assert (only.name, only.value, only.interval) == ("accuracy", 0.75, pytest.approx(wilson_interval(3, 4)))


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x[:, :2],
        lambda x: x[:, 0],
        lambda x: x[None],
        lambda x: x[:0],
        lambda x: x[:, :, :0],
        lambda x: x[:-1],
        lambda x: torch.cat([x, x[:1]]),
        lambda x: x.numpy(),
        lambda x: x.transpose(1, 2),
    ],
)
def test_a_change_returns_whole_variants_of_the_batch(changed, trained, digits):
    condition = Condition("changed", change=lambda x, streams: changed(x))
    with pytest.raises(UserError, match="condition 'changed'"):
        evaluate(trained, digits, suite=Accuracy(conditions=[condition]), images=5, quiet=True)
    for times in (1, 3):
        fine = Condition("fine", change=lambda x, streams, times=times: x.repeat(times, 1, 1, 1))
        result = evaluate(trained, digits, suite=Accuracy(conditions=[fine]), images=5, quiet=True)
        assert result.num_images == 5
