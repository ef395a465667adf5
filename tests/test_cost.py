"""What an evaluation may cost, and how many processes that is worth."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robustvit.attacks import Square
from robustvit.evaluation import Accuracy, Attacked, cost, evaluate, open_subject
from robustvit.evaluation.conditions import Condition
from robustvit.evaluation.spatial import Spatial
from robustvit.evaluation.suite import suite_from
from robustvit.threats import LpBall

THREAT = LpBall("inf", 0.1)


@pytest.fixture
def two_cores():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def subject(trained, digits):
    with open_subject(trained, digits, images=40, device="cpu", quiet=True).ready() as ready:
        yield ready


def test_passes_are_those_of_all_stages_and_images(subject):
    suite = suite_from([Square(queries=9), "pgd-5-t3"])
    assert Attacked(threat=THREAT, suite=suite).begin(subject).passes() == 40 * (1 + 10 + 3 * 11)
    assert Attacked(threat=THREAT, suite=suite_from("clean")).begin(subject).passes() == 40


def test_passes_over_conditions_count_variants_and_what_is_shared_once(subject):
    assert Spatial(shift=1, shifts=3, angle=10, angles=2).begin(subject).passes() == 40 * (1 + 2 * 9)
    same_pass = (Condition("largest"), Condition("smallest", decide=smallest_logit))
    assert Accuracy(conditions=same_pass).begin(subject).passes() == 40


def smallest_logit(logits):
    return logits.argmin(1)


def test_an_evaluation_takes_at_most_the_estimated_passes(trained, digits, subject):
    result = evaluate(trained, digits, suite="pgd-4", threat=THREAT, images=40, device="cpu", quiet=True)
    work = cost.estimate(Attacked(threat=THREAT, suite=suite_from("pgd-4")).begin(subject))
    assert sum(stage.passes for stage in result.stages) <= work.passes == 40 * 10
    assert 0 < work.seconds < 60


@pytest.mark.parametrize(("seconds", "cores", "expected"), [(119, 8, 1), (121, 8, 8), (121, 64, 40)])
def test_processes_follow_the_work_and_the_cores(subject, monkeypatch, seconds, cores, expected):
    evaluation = Attacked(threat=THREAT, suite=suite_from("pgd-4")).begin(subject)
    monkeypatch.setattr(cost, "seconds_of_a_pass", lambda subject: seconds / 400)
    assert cost.choose_processes(evaluation, cores) == expected


@pytest.mark.parametrize(("device", "cores"), [("cpu", 1), ("cuda:0", 8)])
def test_one_core_and_accelerators_need_no_estimate(device, cores, monkeypatch):
    monkeypatch.setattr(cost, "estimate", lambda evaluation: pytest.fail("nothing is to be timed"))
    assert cost.choose_processes(SimpleNamespace(subject=SimpleNamespace(device=device)), cores) == 1


def test_work_of_unknown_size_stays_in_one_process(subject, monkeypatch):
    evaluation = Accuracy().begin(subject)
    monkeypatch.setattr(type(evaluation), "passes", lambda self: None)
    assert cost.estimate(evaluation) is None
    assert cost.choose_processes(evaluation, 8) == 1


def test_chosen_processes_give_the_outcomes_of_one(trained, digits, tmp_path, in_turn, two_cores, monkeypatch):
    options = {"suite": "pgd-4", "threat": THREAT, "images": 40, "device": "cpu", "quiet": True, "processes": None}
    alone = evaluate(trained, digits, run=tmp_path / "alone", **options)
    assert alone.provenance.processes == 1, "too little work for a second one"
    monkeypatch.setattr(cost, "WORTH_PROCESSES", 0.0)
    assert evaluate(trained, digits, **options).provenance.processes == 1, "they need a run folder"
    shared = evaluate(trained, digits, run=tmp_path / "shared", **options)
    assert (shared.provenance.processes, shared.provenance.threads) == (2, 1)
    assert np.array_equal(shared.is_robust, alone.is_robust)


def test_a_result_knows_the_size_of_its_model(trained, digits):
    options = {"suite": "clean", "images": 4, "threat": THREAT, "device": "cpu", "quiet": True}
    model = evaluate(trained, digits, **options).provenance.model
    assert model["parameters"] == sum(p.numel() for p in trained.parameters())
    assert model["multiply_adds"] == 192 * 64 + 64 * 10
    assert "parameters" not in evaluate(lambda x: trained(x), digits, **options).provenance.model
