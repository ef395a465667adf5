"""Claims about given models: arms of evaluations and analyses, image by image, without any training."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.core.errors import UserError
from robustvit.core.finding import read_finding, results_of
from robustvit.core.numbers import mean_interval, rank_correlation
from robustvit.core.outcomes import OUTCOMES
from robustvit.core.result import Result
from robustvit.core.result_files import read_result, write_result
from robustvit.evaluation.engine import _Engine
from robustvit.reproduce.compare import Values, compared, level
from robustvit.reproduce.entries import Arm, Comparison, Entry, Given, Seen, Small
from robustvit.reproduce.finding import entry_finding, seen_text
from robustvit.reproduce.page import write_claims
from robustvit.reproduce.run import run_small

CORRUPTED = "corruptions:which=[fog, contrast],severities=[1, 5]"


def small_vit(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = {"embed_dim": 12, "depth": 2, "num_heads": 2, "class_token": True}
        return rv.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=10, **settings).eval()


def first() -> nn.Module:
    return small_vit(0)


def second() -> nn.Module:
    return small_vit(1)


MODELS = tuple(f"{__name__}:{name}" for name in ("first", "second"))


def entry_of(arms: dict[str, Arm], *compare: Comparison, **given: object) -> Entry:
    small = Small(
        given=Given(**{"images": 24, "data": "cifar10_sample", "eps": 0.1, **given}),
        column="the same attack",
        arms=arms,
        compare=compare,
    )
    return Entry("light/table-1", "Table I", "a claim", no_full="not here", small=small)


def arms_of(suite: str, **settings: object) -> dict[str, Arm]:
    return {name: Arm(model=model, suite=suite, **settings) for name, model in zip("ab", MODELS, strict=True)}


ABOVE = Comparison("a is above b", "a - b", ("a",), ("b",))
ABOVE_ITSELF = replace(ABOVE, lower=("a",))


@dataclass(frozen=True)
class Ran:
    root: Path
    entry: Entry
    results: dict[str, list[Result]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    """Stopped after the first model, and begun again."""
    root = tmp_path_factory.mktemp("given")
    arms = arms_of(CORRUPTED, conditions=("fog/*",), printed={"clean": 60.0})
    arms |= {"clean": Arm(model=MODELS[0], suite=CORRUPTED, conditions=("clean",))}
    arms |= {"lesion": Arm(model=MODELS[0], suite="lesion:draws=0,parts=[mlp]", conditions=("without mlp ?",))}
    entry = entry_of(arms, ABOVE, Comparison("whole networks are better", "whole", ("clean",), ("lesion",)))
    computed = _Engine._computed

    def stopped(engine, evaluation, *others):
        if (root / "reproduce").exists() and list((root / "reproduce").rglob("result.json")):
            raise KeyboardInterrupt
        return computed(engine, evaluation, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Engine, "_computed", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_small(entry, root, quiet=True)
    (before,) = [(path, path.stat().st_mtime_ns) for path in root.rglob("result.json")]
    run_small(entry, root, quiet=True)
    assert before[0].stat().st_mtime_ns == before[1]
    results = [read_result(path.parent) for path in sorted(root.rglob("result.json"))]
    assert [result.kind for result in results].count("corruptions") == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Engine, "_computed", lambda *_: pytest.fail("computed twice"))
        run_small(entry, root, quiet=True)
    by_model = [next(one for one in results if f"-{name}/eval" in str(one.folder)) for name in ("first", "second")]
    return Ran(root, entry, dict(zip("ab", ([one] for one in by_model), strict=True)))


def test_an_arm_is_the_mean_over_its_conditions_image_by_image(ran):
    finding = read_finding(ran.root / "reproduce/analysis/light-table-1")
    assert finding.tables[0].columns[4].startswith("accuracy: paper"), "nothing attacks them"
    ours, lesions = finding.facts["verdicts"]
    rows = [(result.under("fog/1") + 0.0 + result.under("fog/5"))[:, 0] / 2 for (result,) in ran.results.values()]
    difference = rows[0] - rows[1]
    assert ours["difference"] == pytest.approx(difference.mean())
    assert ours["interval"] == pytest.approx(mean_interval(difference, -1.0, 1.0))
    assert (ours["seeds"], ours["images"], ours["paper"]) == (1, 24, None)
    (lesion,) = [
        one
        for path in ran.root.rglob("analysis/lesion-*/finding.json")
        for one in results_of(read_finding(path.parent))
    ]
    clean = ran.results["a"][0].is_correct
    assert np.array_equal(lesion.is_correct, clean)
    without = np.stack([lesion.under(f"without mlp {block}")[:, 0] for block in (1, 2)]).mean(0)
    assert lesions["difference"] == pytest.approx((clean - without).mean())


def test_the_page_says_that_one_seed_is_one_training(ran, tmp_path):
    finding = read_finding(ran.root / "reproduce/analysis/light-table-1")
    page = write_claims(tmp_path / "page.html", "A paper", "", [finding]).read_text()
    assert "one seed: intervals are over images alone, and another training may differ by more" in page
    assert f"<code>{MODELS[0]}, {MODELS[1]}</code>" in page


SEMANTIC = f"semantic_perturbations:classifiers=['{MODELS[1]}'],top=2,attack={{name: pgd, steps: 2}}"
STRENGTH = "attack_strength:steps=[1,2],reference=4,seeds=2"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("arrays")
    arms = {
        "seen": Arm(model=MODELS[0], suite=SEMANTIC, array="hits/0/0", printed={"robust": 40.0}),
        "other labels": Arm(model=MODELS[0], suite=SEMANTIC, array="hits/0/1"),
    }
    entry = entry_of(arms, Comparison("it looks like the class", "class", ("seen",), ("other labels",)))
    entry = replace(entry, small=replace(entry.small, quantity="class seen"))
    return root, run_small(entry, root, quiet=True)


class TestArrays:
    """Arms that are what an analysis keeps of each image."""

    def test_the_difference_is_that_of_the_array(self, made):
        root, finding = made
        (kept,) = [read_finding(path.parent) for path in root.rglob("analysis/semantic*/finding.json")]
        difference = kept.arrays["hits"][0, 0] - kept.arrays["hits"][0, 1]
        (verdict,) = finding.facts["verdicts"]
        assert verdict["difference"] == pytest.approx(difference.mean())
        assert verdict["interval"] == pytest.approx(mean_interval(difference, -1.0, 1.0))
        assert verdict["images"] == 24

    def test_tables_and_charts_name_the_quantity(self, made):
        finding = made[1]
        assert finding.tables[0].columns == ("", "class seen: paper", "ours", "95 %")
        assert finding.tables[0].rows[0][1] == "40 %"
        assert finding.charts[0].title == "Differences of class seen"
        assert "24 images of cifar10_sample" in finding.caption

    def test_losses_of_single_images_have_the_relative_difference_as_their_mean(self, tmp_path):
        arms = arms_of(STRENGTH, array="relative-to-mean/0/*/1")
        entry = entry_of(arms, ABOVE)
        entry = replace(entry, small=replace(entry.small, bounded=False))
        finding = run_small(entry, tmp_path, quiet=True)
        of_means = [
            read_finding(path.parent).arrays["relative-of-means"][0, :, 1].mean()
            for path in sorted(tmp_path.rglob("analysis/attack_strength*/finding.json"))
        ]
        (verdict,) = finding.facts["verdicts"]
        assert verdict["difference"] == pytest.approx(of_means[0] - of_means[1])
        assert all(value < 0 for value in of_means), "and levels below 0 are shown"
        assert [row[2][0] + row[3][0] for row in finding.tables[0].rows] == ["--", "--"]

    @pytest.mark.parametrize(
        ("suite", "array", "message"),
        [
            (SEMANTIC, "hist/0/0", "no array 'hist'; did you mean 'hits'"),
            (SEMANTIC, "hits/0", r"hits/0: the array has the shape \(1, 4, 24\), images on the last axis"),
            (SEMANTIC, "hits/0/9", r"hits/0/9: the array has the shape"),
            (SEMANTIC, "hits/0/a", r"hits/0/a: the array has the shape"),
            ("pgd-2", "hits/0/0", "arm 'a': array: pgd-2 is no analysis; only these keep arrays"),
        ],
    )
    def test_an_array_that_is_not_there_is_named(self, tmp_path, suite, array, message):
        entry = entry_of({"a": Arm(model=MODELS[0], suite=suite, array=array)}, ABOVE_ITSELF)
        with pytest.raises(UserError, match=message):
            run_small(entry, tmp_path, quiet=True)


def test_groups_are_conditions_too_and_an_unknown_one_is_named(ran):
    result = ran.results["a"][0]
    assert np.array_equal(result.under("weather"), result.under("fog/*"))
    assert np.array_equal(result.under("weather", "digital"), result.under("*/*"))
    assert result.under("*").shape == (24, 5)
    with pytest.raises(UserError, match=r"no condition 'smoke/\*'; it has clean, fog/1, fog/5"):
        result.under("fog/*", "smoke/*")
    clashing = tuple(replace(one, groups=("fog/1",)) for one in result.conditions)
    assert replace(result, conditions=clashing).under("fog/1").shape == (24, 1)  # a name goes before a group


def test_what_images_did_under_conditions_is_checked_when_it_is_read(ran, tmp_path):
    result = ran.results["a"][0]
    write_result(tmp_path, result)
    assert np.array_equal(read_result(tmp_path).outcomes.under, result.outcomes.under)
    for other in (~result.outcomes.under, result.outcomes.under[:, :-1]):
        write_result(tmp_path, replace(result, outcomes=replace(result.outcomes, under=other)))
        with pytest.raises(UserError, match=f"its 5 conditions have other accuracies than {OUTCOMES} holds of"):
            read_result(tmp_path)
    write_result(tmp_path, replace(result, outcomes=replace(result.outcomes, under=None)))
    with pytest.raises(UserError, match="no outcomes 'under'"):
        read_result(tmp_path).under("fog/*")


def test_conditions_that_not_all_images_met_have_no_columns():
    x, y = torch.rand(6, 3, 32, 32), torch.arange(6)
    assert (
        rv.evaluate(first(), (x, y), suite="spatial:shift=0,shifts=1,angle=5,angles=3", quiet=True).outcomes.under
        is None
    )


def test_accuracies_are_means_over_the_named_conditions_also_the_clean_one_of_another_model(ran):
    (result,) = ran.results["a"]
    under = np.arange(24)[:, None] < np.arange(1, 6)  # clean, fog/1, fog/5, contrast/1, contrast/5: 1 to 5 are right
    result = replace(result, outcomes=replace(result.outcomes, under=under, correct=np.ones(24, bool)))
    arm = Arm(model="zoo:x", suite=CORRUPTED, clean="fog/5", conditions=("fog/1", "contrast/5"))
    for one, expected in ((arm, [3 / 24, 3.5 / 24]), (replace(arm, clean=None), [1, 3.5 / 24])):
        form = entry_of({"a": one}, ABOVE_ITSELF).small
        found = [level(form, {"a": [result]}, "a", measure).value for measure in ("clean", "robust")]
        assert found == pytest.approx(expected)


def test_values_of_any_size_have_intervals_where_the_quantity_has_no_limits():
    values = {name: [Values(name, "x", np.linspace(-3, end, 24), "")] for name, end in (("a", 9.0), ("b", 1.0))}
    arms = arms_of(STRENGTH, array="relative-to-mean/0/*/1")
    form = replace(entry_of(arms, ABOVE).small, bounded=False)
    shown = level(form, values, "a", "robust")
    assert shown.interval[0] < 3 < shown.interval[1]
    found = compared(entry_of(arms, ABOVE), form, values, ABOVE)
    assert found.difference.value == pytest.approx(4)
    assert found.difference.interval[1] > 1
    with pytest.raises(AssertionError, match="beyond the limits"):
        compared(entry_of(arms, ABOVE), replace(form, bounded=True), values, ABOVE)


def test_a_difference_of_which_the_paper_says_nothing_has_no_verdict(ran):
    arms = {name: ran.entry.small.arms[name] for name in "ab"}
    entry = entry_of(arms, replace(ABOVE, claimed=False))
    finding = entry_finding(entry, entry.small, ran.results)
    (one,) = finding.facts["verdicts"]
    assert one["verdict"] == "no claim"
    assert "paper's side" not in finding.charts[0].note


def test_a_search_that_ends_at_the_plain_attack_is_noted(ran):
    """Its difference from the plain attack says nothing about scaling."""
    search = {"passes": 1, "factors": [1.0, 0.995]}
    (result,) = ran.results["a"]
    results = {
        name: [replace(result, details={"attacks": [{"searches": [{**search, "factors": factors}]}]})]
        for name, factors in (("a", [1.0, 0.995]), ("b", [1.0, 0.2]))
    }
    arms = {name: Arm(model="zoo:x", suite="aas-fgsm") for name in "ab"}
    entry = entry_of(arms, ABOVE)
    finding = entry_finding(entry, entry.small, results)
    note = "a: the search found factors of 1, which is the attack without scaling"
    assert finding.facts["verdicts"][0]["notes"] == (note,)
    assert finding.facts["notes"] == [note]
    twice = {"a": [*results["a"], *results["b"]], "b": [*results["b"], *results["b"]]}
    (some,) = entry_finding(entry, entry.small, twice).facts["verdicts"][0]["notes"]
    assert some == "a: the search found factors of 1 for 1 of 2 seeds, which is the attack without scaling"


def test_other_images_are_not_paired(ran):
    (result,) = ran.results["b"]
    index = replace(result.outcomes, index=result.outcomes.index + 1)
    with pytest.raises(UserError, match="light/table-1: 'a is above b': its runs have different images"):
        compared(ran.entry, ran.entry.small, {**ran.results, "b": [replace(result, outcomes=index)]}, ABOVE)


def outcomes_of(result: Result, correct: np.ndarray, robust: np.ndarray) -> Result:
    kept = replace(
        result.outcomes, index=np.arange(len(correct)), predicted=None, under=None, correct=correct, robust=robust
    )
    return replace(result, outcomes=kept)


@pytest.mark.parametrize(
    ("wins", "losses", "size", "expected"),
    [(30, 0, None, "seen"), (0, 30, 10, "opposite"), (10, 10, 20, "not seen"), (10, 10, 3, "too noisy")],
)
def test_the_verdict_is_paired_over_images(ran, wins, losses, size, expected):
    """Of 200 images the arms differ in `wins` and `losses`."""
    robust = np.arange(200) < wins, (np.arange(200) >= wins) & (np.arange(200) < wins + losses)
    printed = [{}, {}] if size is None else [{"robust": 50.0 + size}, {"robust": 50.0}]
    arms = {name: Arm(model="zoo:x", suite="fgsm", printed=one) for name, one in zip("ab", printed, strict=True)}
    entry = entry_of(arms, ABOVE)
    results = {
        name: [outcomes_of(ran.results["a"][0], np.ones(200, bool), one)]
        for name, one in zip("ab", robust, strict=True)
    }
    one = compared(entry, entry.small, results, ABOVE)
    assert one.difference.value == pytest.approx((wins - losses) / 200)
    assert one.verdict == expected


def test_ranks_of_models(ran, tmp_path):
    clean, robust = (0.9, 0.8, 0.7, 0.6, 0.5), (0.5, 0.4, 0.3, 0.2, 0.1)
    arms = {str(n): Arm(model="zoo:x", suite="fgsm") for n in range(5)}
    images = np.arange(100)
    results = {
        str(n): [outcomes_of(ran.results["a"][0], images < 100 * clean[n], images < 100 * robust[n])] for n in range(5)
    }
    every = Comparison("clean accuracy predicts it", "ranks", ranked=tuple(arms))
    few = replace(every, ranked=("0", "1", "2", "3"))
    entry = entry_of(arms, every, few)
    five, four = (compared(entry, entry.small, results, one) for one in (every, few))
    assert (five.difference.value, five.verdict, five.images) == (1.0, "seen", 100)
    assert (four.difference.value, four.verdict) == (1.0, "too noisy")
    finding = entry_finding(entry, entry.small, results)
    assert finding.charts[0].title == "Rank correlations with clean accuracy"
    page = write_claims(tmp_path / "page.html", "A paper", "", [finding]).read_text()
    assert "Ours, rank correlation</th>" in page
    assert "<b>+1.00</b>" in page
    said = seen_text(Seen(**finding.facts["verdicts"][1]))
    assert said == "a rank correlation of +1.00, +0.00 to +1.00 over 100 images and 4 models"


def test_a_rank_correlation_is_told_from_none_as_often_as_chance_allows():
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([4, 3, 2, 1]))[0] == -1
    value, (low, high) = rank_correlation(np.array([1, 1, 2, 3.0]), np.array([1, 2, 2, 5.0]))
    assert value == pytest.approx(5 / 6)  # scipy.stats.spearmanr
    assert low <= 0 < high
    random = np.random.default_rng(0)
    for count in (4, 5, 6, 12):
        pairs = [rank_correlation(*random.random((2, count)))[1] for _ in range(300)]
        assert sum(low > 0 or high < 0 for low, high in pairs) <= 0.08 * 300
        xs = np.arange(count)
        assert (rank_correlation(xs, xs)[1][0] > 0) == (count > 4)
    assert rank_correlation(np.ones(5), np.arange(5))[0] == 0


def test_a_control_is_an_arm_and_the_search_has_a_cost(tmp_path):
    arms = {
        "a": Arm(model=MODELS[0], suite="aas-pgd-2", control=True),
        "b": Arm(model=MODELS[0], suite="aas-pgd-2"),
    }
    entry = entry_of(arms, ABOVE)
    finding = run_small(entry, tmp_path, quiet=True)
    cost = finding.tables[1]
    assert cost.title == "Cost of the search"
    ((name, searched, attacked, fraction),) = cost.rows
    assert name == "b"  # random factors cost nothing
    assert float(fraction.split()[0]) == pytest.approx(
        100 * float(searched.replace(",", "")) / float(attacked.replace(",", "")), abs=0.06
    )
    results = [read_result(path.parent) for path in tmp_path.rglob("result.json")]
    (control,) = [result for result in results if result.control is None]
    assert finding.tables[0].rows[0][5].split()[0] == f"{100 * control.robust_accuracy:.1f}"
    plain = entry_of({**arms, "a": Arm(model=MODELS[0], suite="fgsm", control=True)}, ABOVE)
    with pytest.raises(UserError, match="light/table-1: arm 'a': fgsm has no control"):
        run_small(plain, tmp_path, quiet=True)


def test_a_result_without_clean_images_leaves_the_cell_empty(ran):
    (result,) = ran.results["a"]
    bare = replace(
        result, outcomes=replace(result.outcomes, correct=None, predicted=None), measures=result.measures[1:]
    )
    assert level(ran.entry.small, {"a": [bare]}, "a", "clean") is None


@pytest.mark.parametrize(
    ("arm", "given", "message"),
    [
        (
            {"model": "zoo:vit_standart"},
            {},
            "arm 'b': the zoo .* has no model 'vit_standart'; did you mean 'vit_standard'",
        ),
        ({}, {"data": "cifar10x"}, "light/table-1: .*cifar10x"),
        ({}, {"images": 100_000}, r"cifar10_sample holds [\d,]+ test images, where 100,000 are compared"),
        ({"suite": "pdg-2"}, {}, "arm 'b': no suite 'pdg-2'"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_computed(tmp_path, arm, given, message):
    arms = {**arms_of("fgsm"), "b": Arm(**{"model": MODELS[1], "suite": "fgsm", **arm})}
    with pytest.raises(UserError, match=message):
        run_small(entry_of(arms, ABOVE, **given), tmp_path, quiet=True)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"sweep": "x"}, "either a sweep, given models or commands"),
        ({"compare": ()}, "a sweep and given models have some"),
        ({"arms": {**arms_of("fgsm"), "b": Arm()}}, "'b': a model and its suite belong to given models"),
        ({"compare": (ABOVE, Comparison("c", "c", ranked=("a", "b")))}, "either differences or rankings"),
        ({"compare": (replace(ABOVE, lower=("c",)),)}, "no arm 'c'"),
    ],
)
def test_forms_that_contradict_themselves_are_refused(form, message):
    whole = {"given": Given(images=5), "arms": arms_of("fgsm"), "compare": (ABOVE,)}
    with pytest.raises(ValueError, match=message):
        Small(**{**whole, **form})
    with pytest.raises(ValueError, match="or ranked"):
        Comparison("c", "c", ("a",), ("b",), ranked=("a",))
