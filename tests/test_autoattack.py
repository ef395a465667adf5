"""AutoAttack as a suite: its stages, its targets, few classes, bad models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.attacks import APGD, FAB, FGSM, GAMA, MIM, PGD, FromSurrogate, Restarts, Square
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.evaluation import Plan, Stage, evaluate, suite_from
from robustvit.evaluation.suite import Attacks, Single, Transfer
from robustvit.evaluation.suite_names import SHORT_FORMS

THREAT = rv.LpBall("inf", 0.05)


def shortened(steps=5, queries=20):
    """The standard stages with little work in each."""
    return Plan(
        "autoattack-short",
        tuple(
            replace(
                stage,
                attack=replace(stage.attack, **({"queries": queries} if stage.name == "square" else {"steps": steps})),
            )
            for stage in suite_from("autoattack").plan(THREAT).stages
        ),
    )


def test_autoattack_is_the_standard_twenty_stages():
    stages = suite_from("autoattack").plan(THREAT).stages
    names = ["apgd-ce", *(f"apgd-t/{i}" for i in range(1, 10)), *(f"fab-t/{i}" for i in range(1, 10)), "square"]
    assert [stage.name for stage in stages] == names
    assert [stage.target_rank for stage in stages] == [None, *range(2, 11), *range(2, 11), None]
    assert stages[0].attack == APGD(steps=100, loss="ce", rho=0.75, eot=1)
    assert stages[1].attack == APGD(steps=100, loss="dlr")
    assert stages[10].attack == FAB(steps=100, alpha_max=0.1, eta=1.05, beta=0.9)
    assert stages[-1].attack == Square(queries=5000, p_init=0.8)
    assert suite_from("apgd-ce").plan(THREAT).stages[0].attack == APGD()
    assert suite_from("apgd-ce-x5").plan(THREAT).stages[0].attack == Restarts(inner=APGD(), times=5)
    assert {stage.attack.eot for stage in suite_from("autoattack-rand").plan(THREAT).stages} == {20}
    with pytest.raises(UserError, match="another name"):
        suite_from("autoattack:steps=10")


@pytest.mark.parametrize("classes", [2, 3, 4, 6])
def test_autoattack_fits_itself_to_few_classes(classes, digits):
    x = digits[0][:24]
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
    with torch.no_grad():
        y = model(x).argmax(1)
    result = evaluate(model, (x, y), suite=shortened(), threat=rv.LpBall("inf", 0.002), quiet=True)
    assert len(result.stages) == 2 + 2 * (classes - 1)
    assert any(f"{classes - 1} targets" in warning for warning in map(str, result.warnings))
    assert any("margin loss instead of DLR" in warning for warning in map(str, result.warnings)) == (classes < 4)
    losses = {attack.settings["loss"] for attack in result.stages if attack.name.startswith("apgd-t")}
    assert losses == ({"cw"} if classes < 4 else {"dlr"})


def test_targets_are_ranked_by_the_clean_logits(trained, digits, tmp_path):
    x, y = digits[0][:40], digits[1][:40]
    seen = {}

    @component("attack", "test-spy")
    class Spy:
        """Notes its targets."""

        def __call__(self, model, x, y, threat, search):
            seen.update(zip(search.random.ids.tolist(), search.target.tolist(), strict=True))
            return x

    evaluate(trained, (x, y), suite=Plan("spy", (Stage("spy/2", Spy(), 3),)), threat=THREAT, run=tmp_path, quiet=True)
    with torch.no_grad():
        logits = trained(x)
    third = logits.sort(1).indices[:, -3]
    assert seen == {i: int(third[i]) for i in range(40) if logits[i].argmax() == y[i]}


@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("kind", ["vit", "perceptron"])
def test_verdicts_do_not_depend_on_batches(norm, kind, trained, digits):
    model = trained if kind == "perceptron" else tiny_vit()
    x, y = digits[0][:70], digits[1][:70]
    threat = THREAT if norm == "inf" else rv.LpBall("2", 0.3)
    if kind == "vit":  # untrained: what it says is the truth, and little moves it
        threat = threat.scaled(0.1)
        with torch.no_grad():
            y = model(x).argmax(1)
    whole, *others = (
        evaluate(model, (x, y), suite=shortened(), threat=threat, batch_size=size, quiet=True) for size in (64, 8, 23)
    )
    for other in others:
        assert np.array_equal(whole.is_robust, other.is_robust)
        assert [attack.num_fooled for attack in whole.stages] == [attack.num_fooled for attack in other.stages]
    assert 0 < whole.is_robust.sum() < whole.is_correct.sum()


def test_a_batch_of_one_in_float64_gives_the_same_verdicts(trained, digits):
    x, y = digits[0][:24].double(), digits[1][:24]
    try:
        one, many = (
            evaluate(trained.double(), (x, y), suite=shortened(), threat=THREAT, batch_size=size, quiet=True)
            for size in (1, 24)
        )
    finally:
        trained.float()
    assert np.array_equal(one.is_robust, many.is_robust)


def test_a_constant_model_is_wrong_or_never_fooled(digits):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 10).index_fill(1, torch.tensor([3]), 1.0) + 0 * x.sum((1, 2, 3))[:, None]

    result = evaluate(Constant(), digits, suite=shortened(), threat=THREAT, quiet=True)
    assert np.array_equal(result.is_correct, digits[1].numpy() == 3)
    assert np.array_equal(result.is_robust, result.is_correct)


def test_eps_zero_and_odd_images(digits):
    x = torch.rand(12, 3, 5, 11, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(165, 10))
    with torch.no_grad():
        y = model(x).argmax(1)
    for threat in (rv.LpBall("inf", 0), rv.LpBall("2", 0)):
        assert evaluate(model, (x, y), suite=shortened(), threat=threat, quiet=True).robust_accuracy == 1
    for threat in (rv.LpBall("inf", 0.3), rv.LpBall("2", 5)):
        assert evaluate(model, (x, y), suite=shortened(), threat=threat, quiet=True).robust_accuracy < 0.5


def test_a_suite_may_be_given_in_many_ways():
    attack = PGD(steps=7)
    plain = {"name": "pgd", "steps": 7}
    single = Single(attack=attack)
    for given in (attack, plain, single, {"name": "single", "attack": plain}):
        assert suite_from(given) == single
        assert suite_from([given]) == suite_from((given,)) == Attacks(members=(single,))
    plan = Plan("mine", (Stage("one", attack),))
    assert suite_from(plan) is plan
    for wrong in ([], (), 3, None):
        with pytest.raises(UserError, match="^suite: a name such as"):
            suite_from(wrong)
    for wrong in ({}, {"name": 3}, {"name": ["single"]}, {"name": "nothing"}):
        with pytest.raises(UserError, match="attack"):
            suite_from(wrong)


def test_a_single_attack_is_named_by_its_title_or_its_settings():
    attack = PGD(steps=7, loss="dlr")
    for title, name in ((None, "pgd:steps=7,loss=dlr"), ("mine", "mine")):
        assert Single(attack=attack, title=title).plan(THREAT) == Plan(name, (Stage(name, attack),))
        stages = (Stage(f"{name}/1", attack, 2), Stage(f"{name}/2", attack, 3))
        assert Single(attack=attack, targets=2, title=title).plan(THREAT) == Plan(name, stages)


def test_members_of_a_suite_are_numbered_where_names_repeat():
    def plan(*members, **settings):
        return Attacks(members=members, **settings).plan(THREAT)

    assert plan() == Plan("clean", ())
    assert plan(title="nothing") == Plan("nothing", ())
    two = plan("fgsm", "pgd-3")
    assert (two.name, [stage.name for stage in two.stages]) == ("fgsm+pgd-3", ["fgsm", "pgd-3"])
    repeated = plan("fgsm", "pgd-3", ["fgsm"])
    assert [stage.name for stage in repeated.stages] == ["1/fgsm", "2/pgd-3", "3/fgsm"]
    assert [stage.attack for stage in repeated.stages] == [FGSM(), two.stages[1].attack, FGSM()]
    assert repeated.name == "1/fgsm+2/pgd-3+3/fgsm"
    assert plan("fgsm", "fgsm", title="mine").name == "mine"


def test_transfer_wraps_every_stage_and_refuses_what_needs_the_judged_model():
    surrogate = f"{__file__.replace('test_autoattack', 'conftest')}:tiny_vit"
    made = Transfer(surrogate=surrogate, attack=["fgsm", "pgd-3-t2"])
    inner, outer = made.attack.plan(THREAT), made.plan(THREAT)
    wrapped = [FromSurrogate(surrogate=made.surrogate, inner=stage.attack) for stage in inner.stages]
    assert outer.stages == tuple(replace(s, attack=a) for s, a in zip(inner.stages, wrapped, strict=True))
    assert outer.name == f"{inner.name} from {made.surrogate}"
    assert Transfer(surrogate=surrogate).attack == suite_from("pgd-20")
    assert replace(made, title="mine").plan(THREAT) == Plan("mine", outer.stages)
    searched = Plan("mixed", (Stage("fgsm", FGSM()), *suite_from("aas-pgd-3").plan(THREAT).stages))
    ordered = Plan("ordered", (Stage("fgsm", FGSM()), Stage("near", FGSM(), 2, "nearest")))
    sampled = Plan("sampled", (Stage("fgsm", FGSM()),), (Stage("sample", FGSM()),))
    for wrong in (searched, ordered, sampled, "fast"):
        with pytest.raises(UserError, match="needs the judged model"):
            Transfer(surrogate=surrogate, attack=wrong).plan(THREAT)


def test_short_forms_have_a_name_and_a_sentence():
    for family in SHORT_FORMS:
        assert " " not in family.form
        assert " " in family.about
    quarter = {"steps": 7, "step": "eps/4"}
    attacks = {"square": Square(), "fab-t": FAB(), "apgd-t": APGD(loss="dlr"), "apgd-pm": APGD(loss="pm")}
    attacks |= {"fgsm": FGSM(), "pgd-7": PGD(7), "gama-7": GAMA(7), "mim-7": MIM(7)}
    attacks |= {f"{loss}-7": PGD(**quarter, loss=loss) for loss in ("cw", "dlr")}
    for name, attack in attacks.items():
        targets = 9 if name.endswith("-t") else None
        assert suite_from(name) == Single(attack=attack, targets=targets, title=name)
    assert suite_from("pgd-7x3-t2") == Single(Restarts(PGD(7), 3), 2, "pgd-7x3-t2")
    assert suite_from("apgd-dlr-x4") == Single(attack=Restarts(APGD(loss="dlr"), 4), title="apgd-dlr-x4")
    for wrong, message in (
        ("pgd-7:steps=3", "the number of steps is part of its name"),
        ("cw-7:loss=ce", "the loss is part of its name"),
        ("apgd-t:loss=ce", "the loss is part of its name"),
        ("clean:x=1", "takes no settings"),
        ("pgd", "how many steps"),
        ("pgd-0", "no suite"),
        ("pgd-7:loss", "key=value pairs"),
        ("pgd-7:loss=ce,loss=cw", "loss is given twice"),
        ("pgd-7:=3", "key=value pairs"),
        ("pgd-7:loss=", "key=value pairs"),
        ("pgd-7:", "key=value pairs"),
    ):
        with pytest.raises(UserError, match=message):
            suite_from(wrong)


def test_rows_keep_the_classes_that_later_stages_aim_at(trained, digits, tmp_path):
    for suite, kept in (("fgsm", None), ("pgd-2-t3", 4)):
        result = evaluate(trained, digits, suite=suite, threat=THREAT, images=20, run=tmp_path / suite, quiet=True)
        rows = [row for row in read_rows(Path(result.folder) / "ledger-0.jsonl") if row["stage"] == "clean"]
        assert {len(row["ranked"]) if "ranked" in row else None for row in rows} == {kept}
