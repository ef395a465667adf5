"""Adaptive attention scaling: the search, the attack around any other, its protocols, and the planted case."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import robustvit as rv
from robustvit.analysis import analyze
from robustvit.attacks import (
    APGD,
    FGSM,
    GAMA,
    PGD,
    AttentionScaling,
    Ensemble,
    FactorSearch,
    Restarts,
    Search,
    follows_gradients,
)
from robustvit.attacks.hooks import attack_facts, attack_notes, check_attack, control_of, judged_model, prepare_attacks
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.evaluation import verify
from robustvit.evaluation.subject import open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.models.attention_probe import Scaling, attention_blocks, probing, recording, transformer_blocks

THREAT = rv.LpBall("inf", 0.1)
INNER = [FGSM(), PGD(steps=5), PGD(steps=5, loss="cw"), PGD(steps=5, loss="dlr"), APGD(steps=8), GAMA(steps=5)]
CRITERIA = ["squared", "literal", "unit", "ce", "cw", "gama"]


@pytest.fixture
def points(digits):
    return digits[0][:24], digits[1][:24], sample_streams(0, range(24))


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_factor_one_is_the_inner_attack_itself(inner, vit, points):
    x, y, random = points
    scaled = AttentionScaling(inner=inner, factors=1.0)
    assert torch.equal(scaled(vit, x, y, THREAT, Search(random)), inner(vit, x, y, THREAT, Search(random)))


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_it_is_the_inner_attack_on_the_scaled_model(inner, vit, points):
    x, y, random = points
    found = AttentionScaling(inner=inner, factors=(0.5, 0.1))(vit, x, y, THREAT, Search(random))
    with probing(vit, Scaling(torch.tensor([0.5, 0.1]))):
        assert torch.equal(found, inner(vit, x, y, THREAT, Search(random)))
    assert THREAT.contains(x, found).all()


def test_who_is_done_is_judged_on_the_model_itself(vit, points):
    x, y, random = points
    logits_seen = []

    def done(x_adv, logits, rows):
        with torch.no_grad():
            logits_seen.append(torch.equal(logits, vit(x_adv)))
        return torch.zeros(len(rows), dtype=torch.bool)

    AttentionScaling(inner=PGD(steps=3), factors=0.01)(vit, x, y, THREAT, Search(random, done=done))
    assert logits_seen
    assert all(logits_seen)


def test_only_the_first_blocks_are_scaled(vit, points):
    x, y, random = points
    attack = AttentionScaling(inner=PGD(steps=3), factors=0.01, blocks=1)
    same = AttentionScaling(inner=PGD(steps=3), factors=(0.01, 1.0))
    results = [one(vit, x, y, THREAT, Search(random)) for one in (attack, same)]
    assert torch.equal(*results)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_search_raises_what_it_shall_raise(criterion, vit, points):
    x, y, _ = points
    search = FactorSearch(criterion=criterion, batches=1, normalized=True, step=0.02, reference="original")
    found, start = search(vit, vit, [(x, y)], 1), FactorSearch(batches=1, steps=0)(vit, vit, [(x, y)], 1)
    assert len(found) == len(attention_blocks(vit))
    assert all(1e-7 <= factor <= 1 for factor in (*found, *start))

    def raised(factors):
        with probing(vit, Scaling(torch.tensor(factors, dtype=torch.float64))), recording(vit, blocks) as seen:
            return search._value(vit(x), y, dict(seen), reference).item()

    blocks = transformer_blocks(vit)
    with torch.no_grad(), recording(vit, blocks) as seen:
        logits = vit(x)
    reference = (logits, dict(seen))
    assert raised(found) > raised(start) or (criterion == "ce" and found == start)  # may start on top


def spelled_out(vit, batches, seed, search):
    """Algorithm 1, of criterion `squared` or `ce`, step by step."""
    blocks, factors = transformer_blocks(vit), torch.ones(len(attention_blocks(vit)), dtype=torch.float64)

    def features(x, at):
        with probing(vit, Scaling(at)), recording(vit, blocks) as seen:
            logits = vit(x)
        return logits, [seen[name].flatten(1) for name in blocks]

    for number, (x, y) in enumerate(batches[: search.batches]):
        draw = sample_streams(seed, [0]).child("attention factors", number).normal((len(factors),), at="start")[0]
        point = (factors + draw.double()).clamp(1e-7, 1)
        with torch.no_grad():
            _, before = features(x, factors if search.reference == "carried" else torch.ones_like(factors))
        reached = []
        for _ in range(search.steps + 1):
            point.requires_grad_()
            logits, after = features(x, point)
            apart = [
                ((a - b) ** 2).sum(1) / (a.norm(dim=1) * b.norm(dim=1)) for a, b in zip(after, before, strict=True)
            ]
            loss = nn.functional.cross_entropy(logits, y) if search.criterion == "ce" else sum(d.mean() for d in apart)
            (gradient,) = torch.autograd.grad(loss, point)
            reached.append((loss.item(), point.detach()))
            length = gradient.norm() if search.normalized else 1.0
            point = (point.detach() + search.step * gradient / length).clamp(1e-7, 1)
        factors = max(reached, key=lambda entry: entry[0])[1]
    return factors.tolist()


@pytest.mark.parametrize("reference", ["carried", "original"])
@pytest.mark.parametrize(
    "settings", [{"normalized": True, "step": 0.2}, {"step": 3.0}, {"criterion": "ce", "step": 50.0}]
)
def test_the_search_is_algorithm_1(settings, reference, vit, points):
    x, y, _ = points
    vit, x = vit.double(), x.double()
    batches = [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    search = FactorSearch(batches=2, steps=3, reference=reference, **settings)
    for seed in range(4):
        assert search(vit, vit, batches, seed) == pytest.approx(spelled_out(vit, batches, seed, search), abs=1e-4)


def test_random_factors_lie_around_those_before_and_reach_down_to_almost_nothing(vit, points):
    x, y, _ = points
    search, found = FactorSearch(batches=1, steps=0), []
    for seed in range(40):
        draw = sample_streams(seed, [0]).child("attention factors", 0).normal((2,), at="start")[0].double()
        factors = search(vit, vit, [(x, y)], seed, start=(0.5, 0.2))
        assert factors == pytest.approx((torch.tensor([0.5, 0.2]).double() + draw).clamp(1e-7, 1).tolist(), abs=1e-7)
        found += factors
    assert min(found) == 1e-7
    assert max(found) == 1


def test_who_is_done_is_judged_by_logits_that_are_not_scaled(vit, points):
    x, y, random = points
    seen = []

    def done(x_adv, logits, rows):
        with torch.no_grad():
            seen.append(torch.allclose(logits, vit(x_adv), rtol=1e-4, atol=1e-5))
        return torch.zeros(len(rows), dtype=torch.bool)

    attack = AttentionScaling(inner=PGD(steps=3), factors=0.1, where="logits")
    attack(vit, x, y, THREAT, Search(random, done=done))
    assert seen == [True] * 3


def test_the_distances_are_those_of_the_formula(vit):
    a, b = torch.rand(5, 3, 4), torch.rand(5, 3, 4)
    flat = [value.flatten(1).double() for value in (a, b)]
    lengths = [value.norm(dim=1) for value in flat]
    apart = (flat[0] - flat[1]).norm(dim=1)
    expected = {
        "squared": apart**2 / (lengths[0] * lengths[1]),
        "literal": apart / (lengths[0] * lengths[1]),
        "unit": (flat[0] / lengths[0][:, None] - flat[1] / lengths[1][:, None]).norm(dim=1) ** 2,
    }
    for criterion, value in expected.items():
        found = FactorSearch(criterion=criterion)._distance(a, b)
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-7)


def test_the_losses_are_those_of_the_attacks(vit, points):
    x, y, _ = points
    with torch.no_grad():
        now, before = vit(x).double(), vit(x.flip(3)).double()
    p, q, rows = now.softmax(1), before.softmax(1), torch.arange(len(y))
    others = p.clone()
    others[rows, y] = 0
    expected = {
        "ce": -p[rows, y].log().mean(),
        "cw": (now - 1e9 * nn.functional.one_hot(y, 10)).amax(1).sub(now[rows, y]).mean(),
        "gama": (others.amax(1) - p[rows, y] + 50 * ((p - q) ** 2).sum(1)).mean(),
    }
    for criterion, value in expected.items():
        found = FactorSearch(criterion=criterion)._value(now, y, {}, (before, {}))
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)


def test_a_search_without_a_folder_is_not_kept(trained_vit, digits):
    subject = open_subject(trained_vit, digits, images=32, quiet=True)
    attack = AttentionScaling(inner=PGD(steps=2), search=FactorSearch(batches=2, batch_size=8, steps=1))
    prepared = attack.prepare(subject, None)
    assert len(prepared.factors) == 2
    assert prepared.facts()["searches"][0]["images"] == 16


def test_the_search_is_set_as_the_documentation_says():
    """What the paper leaves open is a number of this package: another one is another attack."""
    assert to_dict(FactorSearch()) == {
        "criterion": "squared", "batches": 10, "batch_size": 128, "steps": 10, "step": 1.0, "normalized": False,
        "reference": "carried",
    }  # fmt: skip


def test_the_search_costs_at_most_twenty_pgd_steps(trained_vit, tmp_path):
    result = rv.evaluate(trained_vit, "digits", suite="aas-pgd-20", threat=THREAT, images=64, run=tmp_path, quiet=True)
    (search,) = [one for facts in result.details["attacks"] for one in facts["searches"]]
    assert search["passes"] <= 20 * 2 * search["images"]


class PickAttention(nn.Module):
    """Attends to the brightest of ten pixels, so sharply that its softmax underflows and no gradient is left."""

    def forward(self, x):
        return torch.softmax(1e5 * x[:, 0].flatten(1)[:, :10], -1)


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = PickAttention()

    def forward(self, x):
        return 10 * self.attn(x)


@component("attack", "test-counted")
class Counted:
    """Fools nothing, and counts its batches."""

    batches: ClassVar[list] = []

    def __call__(self, model, x, y, threat, search):
        self.batches.append(len(x))
        return x.clone()


def test_a_stage_that_the_control_has_too_runs_once(trained_vit):
    Counted.batches.clear()
    suite = [Counted(), "aas-pgd-2:search_batches=1,search_steps=1"]
    result = rv.evaluate(trained_vit, "digits", suite=suite, threat=THREAT, images=24, quiet=True)
    assert result.control is not None
    assert len(Counted.batches) == 1


def test_random_factors_stand_beside_and_do_not_count(trained_vit, tmp_path):
    options = {"threat": THREAT, "images": 48, "quiet": True}
    result = rv.evaluate(trained_vit, "digits", suite="aas-pgd-5", run=tmp_path, **options)
    (stage,) = result.stages
    assert result.robust_accuracy == pytest.approx(result.clean_accuracy - stage.num_fooled / 48)
    kept = [entry for path in tmp_path.glob("eval/*/factors.json") for entry in json.loads(path.read_text())]
    assert sorted(entry["search"]["steps"] for entry in kept) == [0, 10]
    again = rv.evaluate(trained_vit, "digits", suite="aas-pgd-5", run=tmp_path, **options)
    assert again.to_dict() == result.to_dict()
    assert result.control.folder in {path.name for path in (tmp_path / "eval").iterdir()}
    chance = rv.evaluate(trained_vit, "digits", suite="aas-pgd-5:factors=random", **options)
    assert result.control_result.robust_accuracy == chance.robust_accuracy
    assert result.control.measures == chance.measures or result.control.measures[-1].value == chance.robust_accuracy
    assert chance.control is None
    path = Path(result.folder) / "factors.json"
    used = rv.evaluate(trained_vit, "digits", suite=f"aas-pgd-5:factors={path}", **options)
    assert (used.is_robust == result.is_robust).all()
    assert used.control_result.robust_accuracy == chance.robust_accuracy


def test_a_control_is_the_whole_suite_with_random_factors(trained_vit):
    options = {"threat": THREAT, "images": 48, "quiet": True}
    for suite, by_chance in (
        (["aas-fgsm", "aas-pgd-5"], ["aas-fgsm:factors=random", "aas-pgd-5:factors=random"]),
        (["fgsm", "aas-pgd-5", "pgd-3"], ["fgsm", "aas-pgd-5:factors=random", "pgd-3"]),
        ("aas-pgd-3-t3", "aas-pgd-3-t3:factors=random"),
        (
            [Restarts(inner=AttentionScaling(inner=PGD(steps=2)), times=2)],
            [Restarts(inner=AttentionScaling(inner=PGD(steps=2), search=FactorSearch(steps=0)), times=2)],
        ),
    ):
        result = rv.evaluate(trained_vit, "digits", suite=suite, **options)
        alone = rv.evaluate(trained_vit, "digits", suite=by_chance, **options)
        assert (result.control_result.is_robust == alone.is_robust).all()
        left = [attack.robust_accuracy for attack in result.stages]
        fell = [attack.num_fooled / 48 for attack in result.stages]
        assert left == pytest.approx((result.clean_accuracy - np.cumsum(fell)).tolist())


def test_along_eps_a_control_carries_its_own(trained_vit, tmp_path):
    small, large = rv.LpBall("inf", "0.05"), rv.LpBall("inf", "0.1")
    found = {}
    for suite in ("aas-pgd-5", "aas-pgd-5:factors=random"):
        first = rv.evaluate(trained_vit, "digits", suite=suite, threat=small, images=48, quiet=True, run=tmp_path)
        found[suite] = rv.evaluate(
            trained_vit, "digits", suite=suite, threat=large, smaller=first, images=48, quiet=True, run=tmp_path
        )
    searched, by_chance = found.values()
    assert (searched.control_result.is_robust == by_chance.is_robust).all()


def test_beside_its_control_an_attack_draws_what_it_draws_alone(trained_vit, tmp_path):
    options = {"threat": THREAT, "images": 48, "quiet": True}
    path = tmp_path / "ones.json"
    path.write_text("[1.0, 1.0]")
    plain = rv.evaluate(trained_vit, "digits", suite="pgd-3", **options)
    result = rv.evaluate(trained_vit, "digits", suite=f"aas-pgd-3:factors={path}", **options)
    assert (result.is_robust == plain.is_robust).all()
    assert result.control is not None


def test_what_only_the_control_fooled_is_not_saved(trained_vit, tmp_path):
    options = {"threat": THREAT, "images": 32, "quiet": True, "run": tmp_path, "save_images": True}
    result = rv.evaluate(trained_vit, "digits", suite="aas-pgd-3", **options)
    (file,) = tmp_path.rglob("adversarial.npy")
    assert file.parent == Path(result.folder)
    assert len(np.load(file)) == result.stages[0].num_fooled > 0


def test_two_processes_use_the_same_factors(trained_vit, tmp_path, in_turn):
    options = {"suite": "aas-pgd-5", "threat": THREAT, "images": 32, "quiet": True}
    one = rv.evaluate(trained_vit, "digits", **options)
    two = rv.evaluate(trained_vit, "digits", run=tmp_path, processes=2, **options)
    assert (one.is_robust == two.is_robust).all()
    assert [stage.settings["factors"] for stage in one.stages] == [stage.settings["factors"] for stage in two.stages]


def test_the_papers_protocol_judges_on_the_scaled_model(trained_vit):
    options = {"threat": THREAT, "images": 48, "quiet": True}
    result = rv.evaluate(trained_vit, "digits", suite="aas-pgd-5:judged_on=scaled", **options)
    factors = torch.tensor(result.details["attacks"][0]["judged_with"])
    with probing(trained_vit, Scaling(factors)):
        scaled = rv.evaluate(trained_vit, "digits", suite="pgd-5", **options)
    assert (scaled.is_robust == result.is_robust).all()
    plain = rv.evaluate(trained_vit, "digits", suite="clean", **options)
    assert result.clean.value == plain.clean_accuracy
    assert not result.judges_original
    chance = rv.evaluate(trained_vit, "digits", suite="aas-pgd-5:judged_on=scaled,factors=random", **options)
    assert result.control_result.robust_accuracy == chance.robust_accuracy
    assert result.control_result.clean_accuracy == chance.clean_accuracy


def test_where_attention_saturates_scaling_finds_what_gradients_miss():
    y = torch.arange(60) % 10
    x = 0.3 + 0.1 * torch.rand(60, 3, 8, 8)
    x[torch.arange(60), 0, y // 8, y % 8] = 0.45
    options = {"threat": THREAT, "quiet": True, "checks": False}
    plain = rv.evaluate(Picks(), (x, y), suite="pgd-20:start=none", **options)
    scaled = rv.evaluate(Picks(), (x, y), suite="aas-pgd-20:factors=1e-4,start=none", **options)
    assert plain.clean_accuracy == plain.robust_accuracy == 1
    assert scaled.robust_accuracy == 0
    both = [PGD(steps=20, start="none"), AttentionScaling(inner=PGD(steps=20, start="none"), factors=1e-4)]
    warnings = rv.evaluate(Picks(), (x, y), suite=both, **options).warnings
    assert "attention-masks-gradients" in {warning.name for warning in warnings}


def test_every_setting_of_the_search_can_stand_in_a_suite():
    given = {"criterion": "unit", "search_steps": 3, "search_reference": "original", "search_normalized": "true"}
    suite = suite_from("aas-pgd-5:loss=cw," + ",".join(f"{key}={value}" for key, value in given.items()))
    (scaled,) = (stage.attack for stage in suite.plan(THREAT).stages)
    assert scaled.search == FactorSearch(criterion="unit", steps=3, reference="original", normalized=True)
    assert scaled.inner == PGD(steps=5, loss="cw")
    with pytest.raises(UserError, match="known: batch_size, batches, criterion"):
        suite_from("aas-pgd-5:search_speed=3")


def test_autoattack_and_aas_adds_stages_to_autoattack():
    plain = suite_from("autoattack").plan(THREAT).stages
    stages = suite_from("autoattack+aas").plan(THREAT).stages
    assert stages[: len(plain)] == plain
    added = stages[len(plain) :]
    assert [stage.name for stage in added] == ["aas-apgd-ce", "aas-gama-100"]


def test_wrappers_inside_and_outside(vit, points):
    x, y, random = points
    inside = AttentionScaling(inner=Restarts(inner=PGD(steps=2), times=2), factors=0.1)
    outside = Restarts(inner=AttentionScaling(inner=PGD(steps=2), factors=0.1), times=2)
    member = Ensemble(attacks=(PGD(steps=2), AttentionScaling(inner=PGD(steps=2), factors=0.1)))
    for attack in (inside, outside, member):
        assert THREAT.contains(x, attack(vit, x, y, THREAT, Search(random))).all()


def test_factors_of_another_model_are_refused_even_where_as_many_fit(trained_vit, vit, digits, tmp_path):
    x, y = digits[0][:8], digits[1][:8]
    options = {"threat": THREAT, "quiet": True}
    rv.evaluate(trained_vit, (x, y), suite="aas-fgsm", run=tmp_path, **options)
    path = next(tmp_path.glob("eval/*/factors.json"))
    with pytest.raises(UserError, match="found on another model"):
        rv.evaluate(vit, (x, y), suite=f"aas-fgsm:factors={path}", **options)
    with pytest.raises(UserError, match="found on another model"):
        analyze(vit, (x, y), what={"name": "attention_scores", "factors": str(path)}, **options)
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(json.loads(path.read_text())[0]["factors"]))
    rv.evaluate(vit, (x, y), suite=f"aas-fgsm:factors={plain}", **options)


def test_a_search_that_was_damaged_is_reported(trained_vit, digits, tmp_path):
    x, y = digits[0][:8], digits[1][:8]
    options = {"suite": "aas-fgsm", "threat": THREAT, "quiet": True, "run": tmp_path}
    rv.evaluate(trained_vit, (x, y), **options)
    path = next(tmp_path.glob("eval/*/factors.json"))
    other = json.dumps([{**entry, "factors": [0.3, 0.3]} for entry in json.loads(path.read_text())])
    damaged = ("[{}]", "{}", '[{"search": {}, "factors": [0]}]', '[{"search": 3, "factors": [1, 1]}]', "[", other)
    for text in damaged:
        path.write_text(text)
        with pytest.raises(UserError, match="factors.json: .*; remove the folder of its evaluation"):
            rv.evaluate(trained_vit, (x, y), **options)
    shutil.rmtree(path.parent)
    rv.evaluate(trained_vit, (x, y), **options)


def test_a_result_that_was_damaged_is_reported(trained_vit, digits, tmp_path):
    options = {"suite": "fgsm", "threat": THREAT, "quiet": True, "run": tmp_path}
    rv.evaluate(trained_vit, (digits[0][:8], digits[1][:8]), **options)
    next(tmp_path.glob("eval/*/result.json")).write_text("{}")
    with pytest.raises(UserError, match="not a whole result"):
        rv.evaluate(trained_vit, (digits[0][:8], digits[1][:8]), **options)


def test_in_a_list_each_stage_keeps_its_settings():
    suites = ["aas-pgd-5", "aas-pgd-5:factors=0.1", "aas-pgd-5:loss=cw,criterion=unit"]
    assert suite_from(suites).plan(THREAT).name == "aas-pgd-5+aas-pgd-5:factors=0.1+aas-pgd-5:loss=cw,criterion=unit"


def test_images_saved_under_the_papers_protocol_say_so(trained_vit, digits, tmp_path):
    data = (digits[0][:16], digits[1][:16])
    rv.evaluate(trained_vit, data, suite="aas-fgsm:judged_on=scaled", threat=THREAT, run=tmp_path, save_images=True)
    (file,) = tmp_path.rglob("adversarial.npy")
    assert any("scaled attention" in note for note in verify(file, trained_vit).notes)


def test_what_was_refused_leaves_no_folder(vit, digits, tmp_path):
    with pytest.raises(UserError, match="the model has 2"):
        rv.evaluate(vit, (digits[0][:8], digits[1][:8]), suite="aas-fgsm:blocks=3", threat=THREAT, run=tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_what_cannot_be_scaled_is_reported(trained, vit, digits):
    x, y = digits[0][:8], digits[1][:8]
    options = {"threat": THREAT, "quiet": True}
    with pytest.raises(UserError, match="no attention to scale.*where=logits"):
        rv.evaluate(trained, (x, y), suite="aas-pgd-5", **options)
    rv.evaluate(trained, (x, y), suite="aas-pgd-5:where=logits,factors=0.1", **options)
    with pytest.raises(UserError, match="one factor"):
        rv.evaluate(trained, (x, y), suite="aas-pgd-5:where=logits", **options)
    with pytest.raises(UserError, match="bare callable"):
        rv.evaluate(lambda image: vit(image), (x, y), suite="aas-pgd-5", **options)
    with pytest.raises(UserError, match="has 2 attention blocks, the factors are 3"):
        attack = AttentionScaling(inner=PGD(), factors=(0.1, 0.2, 0.3))
        rv.evaluate(vit, (x, y), suite=[attack], **options)
    for suite, message in (
        (["aas-pgd-5:judged_on=scaled", "fgsm"], "goes with no other"),
        (f"transfer:surrogate={Path(__file__).parent}/conftest.py:tiny_vit,attack=aas-pgd-5", "attacks such as pgd-20"),
        *((f"aas-pgd-5:factors={bad}", "above 0") for bad in ("abc", "nan", "inf", "0", "-1")),
    ):
        with pytest.raises(UserError, match=message):
            rv.evaluate(vit, (x, y), suite=suite, **options)
    with pytest.raises(UserError, match="compiled"):
        rv.evaluate(torch.compile(vit), (x, y), suite="aas-pgd-5", **options)
    for suite, message in (
        ("aas-autoattack", "around attacks such as"),
        ("aas-pgd-5:judged_on=best", "original.*scaled"),
        ("aas-pgd-5:factors=none.json", "no such file"),
        ("aas-pgd-5:factors=0", "above 0"),
        ("aas-pgd-5:criterion=lpips", "criterion"),
        ("aas-pdg-5", "no suite 'pdg-5'"),
        ("aas-pgd-5:blocks=99", "blocks: 99, but the model has 2"),
        ("aas-pgd-5:factors=1e39", "above 0"),
        ("aas-pgd-5:factors=random,search_steps=5", "no search_steps"),
        ("aas-pgd-5:factors=0.1,factors=0.2", "factors is given twice"),
        ("aas-pgd-5:where=logits,factors=0.1,blocks=1", "logits have none"),
        (["pgd-5", "aas-pgd-5:where=logits"], "one factor"),
        ("aas-pgd-5:factors=0.1,criterion=ce", "nothing is searched for"),
    ):
        with pytest.raises(UserError, match=message):
            rv.evaluate(vit, (x, y), suite=suite, **options)


@pytest.fixture
def subject(trained_vit, digits):
    with open_subject(trained_vit, digits, images=48, seed=3, batch_size=32, device="cpu").ready() as made:
        yield replace(made, quiet=True)


def test_prepared_alone_it_has_the_factors_of_an_evaluation(trained_vit, digits, subject, tmp_path):
    """The same draws, images, counts and factors; searched for once, read from the folder after that."""
    result = rv.evaluate(
        trained_vit, digits, suite="aas-pgd-5", threat=THREAT, images=48, seed=3, batch_size=32, quiet=True
    )
    attack = Restarts(inner=AttentionScaling(inner=PGD(steps=5)), times=2)
    by_chance = control_of(attack)
    assert control_of(by_chance) is None
    prepared = prepare_attacks([attack, by_chance], subject, tmp_path)
    searches = [one.details["attacks"][0]["searches"][0] for one in (result, result.control_result)]
    for mine, theirs in zip(prepared, searches, strict=True):
        (facts,) = attack_facts(mine)
        (search,) = facts["searches"]
        assert facts["judged_on"] == "original"
        assert {**search, "seconds": 0} == {**theirs, "seconds": 0}
        assert mine.inner.factors == tuple(search["factors"])
        assert control_of(mine) in (by_chance, None)
    assert [entry["search"]["steps"] for entry in json.loads((tmp_path / "factors.json").read_text())] == [10, 0]
    assert prepare_attacks([attack, by_chance], replace(subject, batch_size=1), tmp_path) == prepared
    assert prepare_attacks([attack], subject, None)[0] == prepared[0]
    assert attack_notes(prepared[0])[1].startswith("attention factors found: ")
    assert attack_notes(prepared[1])[1].startswith("attention factors drawn at random: ")
    assert set(to_dict(prepared[0].inner)) == set(to_dict(attack.inner)), "what was searched is no setting"
    with pytest.raises(UserError, match="not a list of factors"):
        (tmp_path / "factors.json").write_text("[{}]")
        prepare_attacks([attack], subject, tmp_path)


def test_judged_on_the_scaled_model(trained_vit, subject, points):
    x, y, random = points
    attack = AttentionScaling(inner=PGD(steps=5), judged_on="scaled")
    (prepared,) = prepare_attacks([attack], subject, None)
    facts = prepared.facts()
    assert facts["judged_with"] == pytest.approx(prepared.factors)
    clean = rv.evaluate(trained_vit, subject.images, suite="clean", threat=THREAT, images=48, seed=3, quiet=True)
    assert facts["original_clean_accuracy"] == clean.clean_accuracy
    assert "whose clean accuracy is" in attack_notes(prepared)[0]
    with probing(trained_vit, Scaling(torch.tensor(prepared.factors))), torch.no_grad():
        scaled, crafted = trained_vit(x), prepared.inner(trained_vit, x, y, THREAT, Search(random))
    with judged_model(prepared, trained_vit):
        inside = prepared(trained_vit, x, y, THREAT, Search(random))
        with torch.no_grad():
            assert torch.equal(trained_vit(x), scaled)
        copied = copy.deepcopy(trained_vit)
    with judged_model(prepared, copied), torch.no_grad():
        assert torch.equal(copied(x), scaled), "a copy that has the factors gets them no second time"
    assert torch.equal(inside, crafted)
    assert torch.equal(prepared(trained_vit, x, y, THREAT, Search(random)), crafted)
    with torch.no_grad():
        assert not torch.equal(trained_vit(x), scaled)
    assert follows_gradients(prepared)
    assert not follows_gradients(replace(prepared, judged_on="original"))
    with pytest.raises(ValidationError, match="the same verdicts"):
        AttentionScaling(inner=PGD(), where="logits", factors=0.1, judged_on="scaled")


def test_what_does_not_fit_is_refused_before_any_work(subject):
    for attack, message in (
        (AttentionScaling(inner=PGD(), factors=(0.1, 0.2, 0.3)), "has 2 attention blocks, the factors are 3"),
        (AttentionScaling(inner=PGD(), factors=(0.1, 0.2), searched_on="another"), "found on another model"),
        (AttentionScaling(inner=PGD(), blocks=3), "blocks: 3, but the model has 2"),
    ):
        with pytest.raises(UserError, match=message):
            check_attack(Restarts(inner=attack), subject)
    check_attack(Restarts(inner=AttentionScaling(inner=PGD())), subject)
    assert control_of(AttentionScaling(inner=PGD(), factors=0.1)) is None
    assert control_of(Restarts(inner=PGD())) is None
