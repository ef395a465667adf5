"""Conditions that differ only in how they decide cost one pass, and variants stop at the first wrong one."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.result_files import read_result
from robustvit.core.world import World
from robustvit.data.open import images_from
from robustvit.evaluation import Accuracy, Condition, evaluate
from robustvit.evaluation.condition import group_passes
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.ledger_rows import batch_row, parse_row
from test_conditions import both_ways, noise, silenced


class Counted(torch.nn.Module):
    """Counts the images that go through a model."""

    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, 0

    def forward(self, x):
        self.rows += len(x)
        return self.model(x)


def among(classes, logits):
    chosen = torch.tensor(classes)
    return chosen[logits[:, chosen].argmax(1)]


def largest(logits):
    return logits.argmax(1)


EVEN = partial(among, (0, 2, 4, 6, 8))
LOW = partial(among, (0, 1, 2))
CONDITIONS = (
    Condition("clean"),
    Condition("among even classes", decide=EVEN),
    Condition("among low classes", decide=LOW),
    Condition("noise", change=noise),
    Condition("noise, among even classes", change=noise, decide=EVEN),
)


def asked(model, data, conditions=CONDITIONS, worst=False, **options):
    return evaluate(model, data, suite=Accuracy(conditions=conditions, worst=worst), quiet=True, **options)


def accuracies(result):
    return [one.accuracy for one in result.conditions]


def test_conditions_share_a_pass_where_only_the_decision_differs(trained, digits):
    x, y = digits
    names = [[one.name for one in group] for group in group_passes(CONDITIONS)]
    assert names == [
        ["clean", "among even classes", "among low classes"],
        ["noise", "noise, among even classes"],
    ]
    model = Counted(trained)
    result = asked(model, digits, checks=False, batch_size=120)
    opened = 120 + 16  # the subject is opened by a batch, and recognized by 16 images
    assert model.rows <= 2 * len(x) + opened
    with torch.no_grad():
        clean = trained(x)
        random = rv.sample_streams(0, range(len(x))).child("condition", "noise")
        noisy = trained(noise(x, random))
    expected = [clean.argmax(1), EVEN(clean), LOW(clean), noisy.argmax(1), EVEN(noisy)]
    assert accuracies(result) == [float((predicted == y).double().mean()) for predicted in expected]
    assert len(set(accuracies(result))) == 5
    assert result.clean_accuracy == accuracies(result)[0]
    alone = asked(trained, digits, conditions=(Condition("noise", change=noise),))
    assert accuracies(alone) == accuracies(result)[3:4], "the first condition's random numbers are its own"


def test_what_differs_in_more_than_the_decision_has_a_pass_of_its_own(digits):
    x, y = digits
    other = images_from((x[:9], y[:9]))
    first = Condition("a", change=noise)
    for second in (
        Condition("b", change=noise),
        Condition("b", change=both_ways, decide=EVEN),
        Condition("b", change=noise, decide=EVEN, images=other),
        Condition("b", change=noise, decide=EVEN, around=silenced),
    ):
        assert len(group_passes((first, second))) == 2
    third = Condition("c", change=noise, decide=EVEN)
    assert [len(group) for group in group_passes((first, third, Condition("d", change=noise, decide=EVEN)))] == [2, 1]
    assert [len(group) for group in group_passes((first, Condition("clean"), third))] == [1, 1, 1], "neighbors only"


def test_a_decision_makes_no_clean_accuracy(trained, digits):
    result = asked(trained, digits, conditions=(Condition("clean", decide=EVEN),), images=20)
    assert not result.has_clean
    assert [one.name for one in result.measures] == ["accuracy"]


def test_batches_processes_and_kills_change_no_decision(trained, digits, tmp_path, monkeypatch):
    def one_after_the_other(count, work, arguments, folder):
        for rank in range(count):
            work(world=World(rank, count), **arguments)

    monkeypatch.setattr("robustvit.evaluation.engine.run_processes", one_after_the_other)
    whole = asked(trained, digits, run=tmp_path / "whole", batch_size=60)
    assert accuracies(asked(trained, digits, batch_size=17)) == accuracies(whole)
    assert accuracies(asked(trained, digits, run=tmp_path / "shared", processes=3)) == accuracies(whole)
    ledger = Path(whole.folder) / "ledger-0.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6 * len(CONDITIONS)
    for cut in (1, 2, 7, 20):  # after the first of three rows of a batch, and after two of them
        folder = tmp_path / f"cut{cut}" / "eval" / ledger.parent.name
        folder.mkdir(parents=True)
        (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:30])
        resumed = asked(trained, digits, run=tmp_path / f"cut{cut}", batch_size=60)
        assert accuracies(resumed) == accuracies(whole)
        repeated = {1: 1, 2: 2, 7: 1, 20: 0}[cut]
        assert len(read_rows(folder / "ledger-0.jsonl")) == len(lines) + repeated, "only the batch that was cut"
    folder = tmp_path / "lost" / "eval" / ledger.parent.name
    folder.mkdir(parents=True)
    (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[1:]))
    assert accuracies(asked(trained, digits, run=tmp_path / "lost", batch_size=60)) == accuracies(whole)
    assert read_result(Path(whole.folder)).to_dict() == whole.to_dict()
    other = asked(
        trained, digits, conditions=(CONDITIONS[0], Condition("among even classes", decide=LOW)), run=tmp_path
    )
    assert other.folder != asked(trained, digits, conditions=CONDITIONS[:2], run=tmp_path).folder


def test_with_worst_decisions_of_one_pass_meet_the_same_images(trained, digits):
    every, worst = asked(trained, digits), asked(trained, digits, worst=True)
    assert np.array_equal(every.is_robust, worst.is_robust)
    first = [one.num_images for one in worst.conditions]
    right = np.logical_and.reduce([trained(digits[0]).argmax(1) == digits[1]])
    low = digits[1] == LOW(trained(digits[0]))
    even = digits[1] == EVEN(trained(digits[0]))
    assert first == [360, 360, 360, *2 * [int((torch.as_tensor(right) & low & even).sum())]]
    assert worst.clean_accuracy == every.clean_accuracy


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda logits: logits, r"decide returns torch.float32 \(\d+, 10\), not a class for each"),
        (lambda logits: logits.argmax(1)[:-1], r"decide returns torch.int64 \(15,\), not a class for each"),
        (lambda logits: logits.argmax(1).numpy(), "decide returns ndarray"),
    ],
)
def test_a_decision_returns_classes(trained, digits, decide, words):
    with pytest.raises(UserError, match=f"condition 'odd': {words}"):
        asked(trained, digits, conditions=(Condition("odd", decide=decide),), images=16)


def test_logits_that_are_not_finite_are_wrong_whatever_decides(trained, digits):
    def broken(x):
        return torch.where(torch.arange(10) == 9, torch.inf, trained(x))

    conditions = (Condition("clean"), Condition("among even classes", decide=EVEN))
    result = asked(broken, digits, conditions=conditions, images=20, checks=False)
    assert accuracies(result) == [0, 0]
    assert [warning.name for warning in result.warnings if "40 images" in warning.observation] == ["not-finite"]


@dataclass(frozen=True)
class Darker:
    """Ever darker variants, one at a time, or all at once."""

    steps: int
    at_once: bool = False

    def __call__(self, x, streams):
        variants = (x * (1 - step / self.steps) for step in range(self.steps))
        return torch.cat(list(variants)) if self.at_once else variants


def answers_of(result, name):
    return Ledger(Path(result.folder)).answers(name)


def test_variants_one_at_a_time_are_those_at_once(trained, digits, tmp_path):
    x, y = digits
    lazy = asked(trained, digits, conditions=(Condition("dark", change=Darker(5)),), run=tmp_path / "a")
    whole = asked(trained, digits, conditions=(Condition("dark", change=Darker(5, at_once=True)),), run=tmp_path / "b")
    with torch.no_grad():
        right = torch.stack([trained(x * (1 - step / 5)).argmax(1) == y for step in range(5)])
    expected = torch.where(right.all(0), -1, (~right).int().argmax(0)).numpy()
    for result in (lazy, whole):
        answers = answers_of(result, "dark")
        assert np.array_equal(answers.correct, right.all(0).numpy())
        assert np.array_equal(answers.first_wrong, expected)
    assert len(set(expected.tolist())) >= 4
    assert accuracies(lazy) == accuracies(whole)


def test_images_meet_no_variant_after_a_wrong_one(trained, digits):
    x, y = digits
    model = Counted(trained)
    condition = Condition("dark", change=Darker(5))
    asked(model, digits, conditions=(condition,), batch_size=360, checks=False)
    with torch.no_grad():
        right = torch.stack([trained(x * (1 - step / 5)).argmax(1) == y for step in range(5)]).int()
    met = len(x) + int(right.cumprod(0)[:-1].sum())
    opened = model.rows - met
    assert opened in (361, 377), "the pass that opens the subject, its 16 images, and one for its size"


def test_an_image_goes_on_while_one_decision_is_right(trained, digits, tmp_path):
    x, y = digits
    conditions = (Condition("dark", change=Darker(4)),)
    conditions += (Condition("dark, low", change=conditions[0].change, decide=LOW),)
    result = asked(trained, digits, conditions=conditions, run=tmp_path)
    with torch.no_grad():
        logits = [trained(x * (1 - step / 4)) for step in range(4)]
    for condition, decide in zip(conditions, (largest, LOW), strict=True):
        right = torch.stack([decide(one) == y for one in logits])
        answers = answers_of(result, condition.name)
        assert np.array_equal(answers.correct, right.all(0).numpy())
        assert np.array_equal(answers.first_wrong, torch.where(right.all(0), -1, (~right).int().argmax(0)).numpy())


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ([], "returns no variant"),
        ([lambda x: x, lambda x: x[:-1]], r"returns \(15, 3"),
        ([lambda x: x, lambda x: x + 1], r"images must lie in \[0, 1\]"),
        ([lambda x: x.numpy()], "returns ndarray"),
    ],
)
def test_every_variant_is_checked(trained, digits, variants, words):
    condition = Condition("odd", change=lambda x, streams: (make(x) for make in variants))
    with pytest.raises(UserError, match=f"condition 'odd': .*{words}"):
        asked(lambda x: torch.eye(10)[digits[1][:16]][: len(x)], (digits[0][:16], digits[1][:16]), (condition,))


def test_rows_say_which_variant_was_wrong_first():
    images = np.arange(9)
    first = np.where(images % 3 == 0, -1, images)
    row = batch_row("grid", images, images, images % 3 == 0, first)
    assert parse_row(row, "here")[1].first_wrong.tolist() == first.tolist()
    plain = batch_row("grid", images, images, images % 3 == 0)
    assert "first_wrong" not in plain
    assert parse_row(plain, "here")[1].first_wrong.tolist() == np.where(images % 3 == 0, -1, 0).tolist()
    for wrong, words in (
        (np.where(first < 0, 0, first), "first_wrong contradicts correct"),
        (np.full(9, -1), "first_wrong contradicts correct"),
        (first - 1, "first_wrong contradicts correct"),
        (first[:-1], "unequal lengths"),
    ):
        with pytest.raises(UserError, match=words):
            parse_row(batch_row("grid", images, images, images % 3 == 0, wrong), "here")


def test_two_first_wrong_variants_of_one_image_are_refused(tmp_path):
    ledger, images = Ledger(tmp_path), np.arange(5)
    ledger.record_answers("grid", images, images, images > 2, np.where(images > 2, -1, 7))
    ledger.record_answers("grid", images[:1], images[:1], images[:1] > 2, np.array([8]))
    with pytest.raises(UserError, match="line 2: a row of 'grid', image 0, that another row contradicts"):
        ledger.answers("grid")
