"""Robustness cards: every number is a result's, nothing is computed twice, and what is missing says why."""

import json
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.cards import load_preset, make, shipped_presets
from robustvit.cards.opening import plan_card, with_names
from robustvit.cards.plan import Options
from robustvit.cards.preset import Preset
from robustvit.core.card import FILE, PAGE
from robustvit.core.config import validated
from robustvit.core.numbers import short_count
from robustvit.core.result import Measure
from robustvit.core.result_files import read_result
from robustvit.data.folder import Folder
from robustvit.data.preprocess import Preprocess
from robustvit.evaluation.evaluate import named_evaluator
from robustvit.evaluation.sampling import Sample, bound, bound_note
from robustvit.evaluation.suite import suite_from
from robustvit.models import through
from robustvit.reporting import open_card
from robustvit.reporting.card import CardLine, _rule
from robustvit.threats import LpBall
from test_heads import TwoHeads
from test_shifts import R, Reader, picture, write_folders

PRESET = {
    "about": "Seconds.",
    "rows": [
        {"name": "clean", "suite": "accuracy"},
        {"name": "robust", "suite": "pgd-3", "threat": {"eps": {"small": 0.1}}, "images": {"small": 60, "large": 5}},
        {
            "name": "corruptions",
            "suite": {"name": "corruptions", "which": ["fog", "contrast"], "severities": [1, 3]},
            "measures": {
                "corruptions": "mean_accuracy",
                "worst-corruption": "worst_type_accuracy",
                "relative": "ce_relative_to_baseline",
            },
            "images": 40,
        },
        {"name": "imagenet-r", "suite": "imagenet-r", "measures": {"imagenet-r": "present_classes_accuracy"}},
        {"name": "large-only", "suite": "accuracy", "images": {"large": 10}},
    ],
}
LINES = ["clean", "robust", "corruptions", "worst-corruption", "imagenet-r"]


def write_preset(folder: Path, **changes) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**PRESET, **changes}))
    return path


@pytest.fixture(scope="module")
def made(trained, digits, tmp_path_factory):
    """A card of two models, and its folder."""
    folder = tmp_path_factory.mktemp("card")
    options = {"preset": write_preset(folder), "run": folder / "run", "device": "cpu", "quiet": True}
    return rv.card([trained, linear_digits()], digits, **options), folder


@pytest.fixture
def again(made, tmp_path):
    """A copy of the folder, to be damaged."""
    shutil.copytree(made[1] / "run", tmp_path / "run")
    return tmp_path / "run"


def results(folder: Path):
    return [read_result(path.parent) for path in sorted(folder.glob("eval/*/result.json"))]


class Text(HTMLParser):
    """What a reader sees of a page, cell by cell of its tables; what the picture says to a screen reader."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.hidden, self.words, self.rows, self.pictures = False, [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.hidden = self.hidden or tag in ("style", "title")
        self.pictures += [value for name, value in attrs if name == "aria-label"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.hidden = self.hidden and tag not in ("style", "title")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += " ".join(data.split()) + " "


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


def known_numbers(found) -> set[str]:
    """Every number of these results, as text writes it."""
    known = {"95", "256"}  # the intervals, and the hash's name
    for result in found:
        known |= numbers(json.dumps(result.to_dict()))
        clean = result.clean.value if result.has_clean else 0.0
        for measure in result.measures:
            values = (measure.value, *(measure.interval or ()))
            known |= {f"{100 * value:.1f}" for value in values} | {f"{value:.4g}" for value in values}
            known.add(f"{abs(100 * (clean - measure.value)):.1f}")
            known.add(f"{100 * measure.value:.3g}")
        size = result.provenance.model
        known |= numbers(" ".join(short_count(size[key]) for key in ("parameters", "multiply_adds") if key in size))
        known.add(result.provenance.checkpoint["weights_sha256"][:8])
    return known


def test_every_number_is_in_a_result_file(made):
    card, folder = made
    text = Text(card.page.read_text())
    found = results(folder / "run")
    shown = " ".join(text.words).replace(rv.__version__, "")
    for digest in {result.provenance.checkpoint["weights_sha256"][:8] for result in found}:  # one word
        assert digest in shown
        shown = shown.replace(digest, "")
    ticks = {str(tick) for tick in range(0, 101, 20)}
    assert numbers(shown) - known_numbers(found) - ticks == set()
    assert numbers(" ".join(text.pictures)) - known_numbers(found) == set()
    assert numbers(card.summary()) - known_numbers(found) == set()


def test_the_card_has_the_results_of_evaluate(made, trained, digits):
    card = made[0]
    options = {"device": "cpu", "quiet": True}
    clean = rv.evaluate(trained, digits, suite="accuracy", **options)
    robust = rv.evaluate(trained, digits, suite="pgd-3", threat=LpBall("inf", 0.1), images=60, **options)
    assert card.measure("clean") == clean.headline
    assert card.measure("robust") == robust.headline
    cell = card.line("robust").cells[0]
    assert cell.drop == robust.clean_accuracy - robust.robust_accuracy > 0
    assert cell.num_images == "60"
    assert cell.drop_text == f"-{100 * cell.drop:.1f}"
    for value, text in ((cell.result.clean.value, "0.0"), (cell.result.clean.value - 0.4, "-40.0")):
        assert replace(cell, measure=Measure("robust_accuracy", value, (0, 1), kind="accuracy")).drop_text == text
    assert card.line("clean").cells[0].drop is None
    assert [line.name for line in card.lines] == LINES, "no CE without a baseline, no row for large images"


def test_no_accuracy_without_images_interval_and_protocol(made):
    card = made[0]
    table = [row for row in Text(card.page.read_text()).rows if row and set(row[0].split()[:1]) & set(LINES)]
    assert len(table) == len(card.lines) == len(LINES)
    for row, line in zip(table, card.lines, strict=True):
        head, *cells, images = (cell.strip() for cell in row)
        protocol = head.removeprefix(line.name).strip()
        assert len(cells) == len(card.models) == 2
        if line.name == "imagenet-r":
            assert cells == ["not measured"] * 2
            assert "its images are not at" in protocol
            continue
        assert all(re.search(r"\d+\.\d % +\d+\.\d to \d+\.\d", cell) for cell in cells)
        assert int(images) > 0
        assert protocol
    assert "pgd-3, Linf 0.1" in table[1][0]
    assert "mean over 2 types x 2 severities" in table[2][0]


def test_the_data_is_named_once_and_by_rows_that_have_other(made):
    card = made[0]
    text = " ".join(" ".join(Text(card.page.read_text()).words).split())
    assert text.count(card.data) == 1
    assert f"Images: {card.data}; all 360; 60 of 360 at random, seed 0; 40 of 360 at random, seed 0. " in text
    line = card.line("robust")
    result = line.cells[0].result
    other = replace(result, provenance=replace(result.provenance, data="elsewhere"))
    moved = replace(line, cells=tuple(replace(cell, result=other) for cell in line.cells))
    mixed = replace(card, lines=tuple(moved if one is line else one for one in card.lines))
    assert (mixed.data, moved.data) == (card.data, "elsewhere")
    assert mixed.rules == ["all 360", "40 of 360 at random, seed 0"]


def test_a_warning_names_each_model_once(digits, tmp_path):
    """Not once a row, where rows have the same images."""
    models = {name: nn.Sequential(nn.Flatten(), nn.Linear(192, 10)) for name in ("a", "b")}
    rows = [{**PRESET["rows"][0], "name": name} for name in ("one", "two", "three")]
    preset = write_preset(tmp_path, rows=rows)
    card = rv.card(models, digits, preset=preset, run=tmp_path / "run", device="cpu", quiet=True)
    (warned,) = [one for one in card.warnings if one.text.startswith("at-chance")]
    assert [place.partition(":")[0] for place in warned.places] == ["a, one, two, three", "b, one, two, three"]


def test_a_difference_is_no_accuracy(trained, digits, tmp_path):
    """A drop has no change from clean itself, is written in points and has no place in the profile."""
    row = {**PRESET["rows"][2], "measures": {"mean": "mean_accuracy", "drop": "drop_from_clean_accuracy"}}
    preset = write_preset(tmp_path, rows=[row])
    card = rv.card(trained, digits, preset=preset, run=tmp_path / "run", device="cpu", quiet=True)
    (cell,) = card.line("drop").cells
    assert (cell.measure.kind, cell.drop, cell.drop_text) == ("difference", None, "")
    assert cell.value == f"{100 * cell.measure.value:.1f} points"
    assert cell.measure.value == pytest.approx(card.line("mean").cells[0].drop)
    assert "mean" in str(card.chart)
    assert "drop" not in str(card.chart)


def test_an_accuracy_without_an_interval_is_not_shown(again):
    for path in again.glob("eval/corruptions-*/result.json"):
        change_result(path.parent, "mean_accuracy", interval=None)
    card = open_card(again)
    assert "too few" in card.line("corruptions").missing
    with pytest.raises(rv.UserError, match="corruptions: not on this card"):
        card.measure("corruptions")


def change_result(folder: Path, name: str, **changes) -> None:
    from robustvit.core.result_files import write_result

    result = read_result(folder)
    measures = tuple(replace(one, **changes) if one.name == name else one for one in result.measures)
    write_result(folder, replace(result, measures=measures))


def test_two_cards_of_one_folder_are_equal_bytes(made, trained, digits):
    card, folder = made
    first, file = card.page.read_bytes(), (folder / "run" / FILE).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("ledger-*.jsonl")}
    options = {"preset": folder / "small.yaml", "run": folder / "run", "device": "cpu", "quiet": True}
    rv.card([trained, linear_digits()], digits, **options)
    assert card.page.read_bytes() == first
    assert (folder / "run" / FILE).read_bytes() == file
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is computed twice"
    card.page.unlink()
    assert open_card(folder / "run" / FILE).page.read_bytes() == first, "files alone are enough"
    assert len(first) < 200_000


def test_a_bound_is_next_to_its_number(made):
    cell = made[0].line("robust").cells[0]
    bounded = replace(cell.result, details={"bound": {"robust_accuracy_at_least": 0.614}})
    assert cell.bound == ""
    assert replace(cell, result=bounded).bound == "AutoAttack: at least 61.4 %"
    assert replace(cell, result=bounded, measure=bounded.clean).bound == ""


def test_the_epoch_is_named_once():
    assert _rule("best pgd-20 accuracy on 100 images", "20") == "best pgd-20 accuracy on 100 images, epoch 20"
    assert _rule("last epoch (10)", "1") == "last epoch (10), epoch 1"
    assert _rule("last epoch (10)", "10") == "last epoch (10)"
    assert _rule("", "3") == "epoch 3"
    assert _rule("given", "") == "given"


def test_a_moved_folder_is_the_same_card(made, again):
    assert open_card(again).page.read_bytes() == made[0].page.read_bytes()


def test_models_stand_next_to_each_other(made, trained):
    card = made[0]
    assert [one.name for one in card.models] == ["Normalized", "Sequential"]
    parameters = short_count(sum(p.numel() for p in trained.parameters()))
    assert dict(card.facts)["parameters"][0] == parameters
    assert card.title == "Normalized and Sequential"
    label = next(text for text in Text(card.page.read_text()).pictures if text.startswith("Profile"))
    assert "clean, Normalized" in label
    assert "imagenet-r" not in label


def test_the_axis_of_the_profile_ends_at_100_percent(made):
    card = made[0]
    low = replace(card.line("clean").cells[0], measure=Measure("clean_accuracy", 0.1, (0.05, 0.2), kind="accuracy"))
    assert ">100 %<" in replace(card, lines=(CardLine("clean", ("a", "b"), (low, low)),)).chart


def test_the_profile_has_what_is_written_in_percent(made):
    cell = made[0].line("clean").cells[0]
    bias = replace(cell, measure=Measure("shape_bias", 0.27, (0.2, 0.35), kind="fraction"))
    error = replace(cell, measure=Measure("mce", 0.8, None, kind="number"))
    lines = [CardLine(name, ("a", "b"), (cell, cell)) for name, cell in (("shape bias", bias), ("mCE", error))]
    chart = replace(made[0], lines=tuple(lines)).chart
    assert "shape bias" in chart
    assert "mCE" not in chart


def planned(model, data, preset, tmp_path, **options):
    candidates = [make.candidate(rv.resolve_model(one), data, options.pop("threat", None), tmp_path) for one in model]
    how = Options(device="cpu", quiet=True, **options)
    return plan_card(with_names(candidates), "small", validated(Preset, preset, "preset"), how)


def test_the_plan_says_all_before_anything_is_written(trained, digits, tmp_path):
    plan = planned([trained], digits, PRESET, tmp_path / "run")
    lines = plan.text().splitlines()
    assert lines[0].startswith("card 'small' of Normalized: 3 of 4 rows to compute, at most ")
    assert " passes, about " in lines[0]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert rows["clean"][:2] == ["360", "360"]
    assert rows["robust"][:2] == ["60", f"{60 * 8:,}"]
    assert rows["robust"][-4:] == ["pgd-3", "at", "Linf", "0.1"]
    assert rows["corruptions"][:2] == ["40", f"{40 * 5}"]
    assert " ".join(rows["imagenet-r"][3:]).startswith("missing: its images are not at")
    assert set(rows) == {"clean", "robust", "corruptions", "imagenet-r"}
    assert not (tmp_path / "run").exists()


def test_images_are_as_many_as_there_are_and_as_are_allowed(trained, digits, tmp_path):
    rows = [{"name": "clean", "suite": "accuracy", "images": 1000}, {"name": "few", "suite": "accuracy", "images": 7}]
    preset = {"about": "", "rows": rows}
    assert [row.num_images for row in planned([trained], digits, preset, tmp_path).rows] == [360, 7]
    assert [row.num_images for row in planned([trained], digits, preset, tmp_path, images=9).rows] == [9, 7]


def test_a_row_follows_the_eps_of_the_run_if_its_norm_is_the_same(trained, digits, tmp_path):
    def titles(threat, **settings):
        row = {"name": "robust", "suite": "pgd-1", "threat": {"eps": 0.25, **settings}, "images": 4}
        preset = {"about": "", "rows": [row]}
        return planned([trained], digits, preset, tmp_path, threat=threat).rows[0].title

    own = LpBall("inf", 0.1)
    assert titles(own, prefer_run=True) == "pgd-1 at Linf 0.1"
    assert titles(own) == "pgd-1 at Linf 0.25"
    assert titles(own, prefer_run=True, norm="2") == "pgd-1 at L2 0.25"
    assert titles(None, prefer_run=True) == "pgd-1 at Linf 0.25"


def test_a_card_that_was_stopped_goes_on(made, trained, digits, tmp_path, monkeypatch):
    options = {"preset": made[1] / "small.yaml", "run": tmp_path / "run", "device": "cpu", "quiet": True}
    done = []

    def stopped(subject, evaluator, *rest):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(evaluator)
        return evaluate_subject(subject, evaluator, *rest)

    evaluate_subject = make.evaluate_subject
    monkeypatch.setattr(make, "evaluate_subject", stopped)
    with pytest.raises(KeyboardInterrupt):
        rv.card([trained, linear_digits()], digits, **options)
    assert not (tmp_path / "run" / PAGE).exists()
    monkeypatch.undo()
    plan = planned([trained, linear_digits()], digits, PRESET, tmp_path / "run")
    assert [row.row.name for row in plan.rows if row.is_done] == ["clean"]
    assert rv.card([trained, linear_digits()], digits, **options).page.read_bytes() == made[0].page.read_bytes()


def test_what_evaluate_computed_is_not_computed_again(trained, digits, tmp_path):
    threat = LpBall("inf", 0.1)
    options = {"suite": "pgd-3", "threat": threat, "images": 60, "device": "cpu", "quiet": True}
    rv.evaluate(trained, digits, run=tmp_path, **options)
    plan = planned([trained], digits, PRESET, tmp_path)
    assert [row.row.name for row in plan.rows if row.is_done] == ["robust"]
    assert "robust           60       0  done  pgd-3 at Linf 0.1" in plan.text()


def test_the_images_of_a_suite_are_found_by_path_or_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path / "data"))
    x = torch.stack([torch.from_numpy(picture(number)).permute(2, 0, 1) for number in range(4)])
    data = (x, torch.arange(4))
    measures = {"imagenet-r": "present_classes_accuracy"}
    suite = {"name": "imagenet-r", "preprocess": {"how": "none"}}
    preset = {"about": "", "rows": [{"name": "imagenet-r", "suite": suite, "measures": measures, "images": 8}]}
    with pytest.raises(rv.UserError, match="none of its rows .* its images are not at .*/data/imagenet-r; say where"):
        planned([Reader()], data, preset, tmp_path)
    folder = write_folders(tmp_path / "elsewhere", R)
    plan = planned([Reader()], data, preset, tmp_path / "run", paths={"imagenet-r": folder})
    card = make.make_card(plan)
    assert card.measure("imagenet-r").value == 1
    assert card.line("imagenet-r").cells[0].drop is None, "there are no clean images to compare with"
    rows = [{"name": "clean", "suite": "accuracy"}, {**preset["rows"][0], "images": {"large": 8}}]
    with pytest.raises(rv.UserError, match="path of 'imagenet-r': no row for small images has this suite"):
        planned([Reader()], data, {"about": "", "rows": rows}, tmp_path / "run", paths={"imagenet-r": folder})
    (tmp_path / "data").mkdir()
    folder.rename(tmp_path / "data" / "imagenet-r")
    assert not planned([Reader()], data, preset, tmp_path / "run").rows[0].missing


def test_published_corruptions_are_read_where_path_says(trained, digits, tmp_path):
    rows = [*PRESET["rows"][:1], {"name": "fog", "suite": {"name": "corruptions", "which": ["fog"], "size": 16}}]
    preset, folder = {"about": "", "rows": rows}, tmp_path / "cifar-10-c"
    assert not planned([trained], digits, preset, tmp_path).missing("fog")
    with pytest.raises(rv.UserError, match="path of 'corruptions': .*cifar-10-c' is not there"):
        planned([trained], digits, preset, tmp_path, paths={"corruptions": folder})
    x, y = digits
    folder.mkdir()
    reason = planned([trained], digits, preset, tmp_path, paths={"corruptions": folder}).missing("fog")
    assert str(folder) in reason
    darker = (x * 127).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.save(folder / "fog.npy", np.concatenate([darker] * 5))
    np.save(folder / "labels.npy", np.concatenate([y.numpy()] * 5))
    card = make.make_card(planned([trained], digits, preset, tmp_path, paths={"corruptions": folder}))
    right = trained(torch.from_numpy(darker).permute(0, 3, 1, 2) / 255).argmax(1) == y
    assert card.measure("fog").value == pytest.approx(right.float().mean().item())
    assert any(note.startswith("fog: published files of") for note in card.notes)


SUITES = [(name, row) for name in shipped_presets() for row in load_preset(name).rows]


@pytest.mark.parametrize(("name", "row"), SUITES, ids=lambda one: one if isinstance(one, str) else one.name)
def test_every_row_of_a_shipped_preset_names_an_evaluation(name, row):
    if named_evaluator(row.suite) is None:
        suite_from(row.suite)
        assert row.threat is not None


@pytest.mark.parametrize("name", ["corruptions", "spatial"])
def test_results_have_the_measures_that_presets_show(name, trained, digits):
    rows = [row for _, row in SUITES if (named_evaluator(row.suite) or {}).get("name") == name]
    assert len(rows) >= 2
    for suite in {str(row.suite): row.suite for row in rows}.values():
        shown = [next(iter(row.lines.values())) for row in rows if row.suite == suite]
        if isinstance(suite, dict):  # at their own size: which measures there are does not depend on it
            suite = {key: value for key, value in suite.items() if key != "size"}
        result = rv.evaluate(trained, digits, suite=suite, images=4, device="cpu", quiet=True)
        assert all(result.has(measure) for measure in shown)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": []}, "small.rows: at least 1 item, not []"),
        (
            {"rows": [{"name": "a", "suite": "fgsm", "threat": {"eps": "8/0"}}]},
            "eps: '8/0' divides by zero",
        ),
        (
            {"rows": [{"name": "a", "suite": "fgsm", "threat": 3}]},
            "threat: input should be a map of settings, not 3",
        ),
        ({"rows": [{"name": "a", "suite": "fgsm"}] * 2}, "rows: 'a' is there twice"),
        ({"rows": [{"name": "a b", "suite": "fgsm"}]}, "letters, digits and hyphens"),
        ({"rows": [{"name": "a", "siute": "fgsm"}]}, "did you mean 'suite'?"),
        ({"rows": [{"name": f"a{i}", "suite": "fgsm"} for i in range(13)]}, "13 lines, where a card has at most 12"),
        ({"rows": [{"name": "a", "suite": "fgsm", "images": {"tiny": 3}}]}, "images"),
        ({"models": ["resnet18"]}, "models: no such setting"),
    ],
)
def test_mistakes_in_a_preset_are_told(changes, words):
    with pytest.raises(rv.UserError) as caught:
        validated(Preset, {**PRESET, **changes}, "small")
    assert words in str(caught.value)
    assert "[" not in str(caught.value).replace("not []", "")


def test_an_unknown_preset_is_told():
    with pytest.raises(rv.UserError, match="no preset 'qick': neither a file nor .*; did you mean 'quick'?"):
        load_preset("qick")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"suite": {"name": "corruption"}}, "no suite 'corruption'; did you mean 'corruptions'?"),
        ({"suite": "corruption"}, "'corruption'"),
        ({"suite": "corruptions:which=fogg"}, "corruptions.which: "),
        ({"suite": {"name": "corruptions", "severitis": [1]}}, "did you mean 'severities'?"),
        ({"suite": "fgsm"}, "threat: how large a change is allowed?"),
        ({"suite": "fgsm", "threat": {"eps": {"large": 1}}}, "the preset has no eps for small images"),
        (
            {"suite": "corruptions:which=fog", "measures": {"x": "mean_accuracy", "y": "mean_75_accuracy"}},
            "measures: corruptions with these settings has no 'mean_75_accuracy'",
        ),
        ({"suite": "imagenet-r", "measures": {"r": "presnt_classes_accuracy"}}, "'present_classes_accuracy'?"),
        ({"suite": "spatial", "measures": {"r": "shape_bias"}}, "spatial with these settings has no 'shape_bias'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_row_is_refused_before_any_work(trained, digits, tmp_path, row, words):
    rows = [*PRESET["rows"][:1], {"name": "new", **row}]
    with pytest.raises(rv.UserError, match="preset 'small', row 'new': ") as caught:
        planned([trained], digits, {"about": "", "rows": rows}, tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_have_names_of_their_own(trained, digits, tmp_path):
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    options = {
        "preset": write_preset(tmp_path, rows=PRESET["rows"][:1]),
        "run": tmp_path,
        "device": "cpu",
        "quiet": True,
    }
    with pytest.raises(rv.UserError, match=r"several models are called 'Sequential'; give each a name: rv.card\(\{"):
        rv.card([linear_digits(), other], digits, **options)
    card = rv.card({"linear": linear_digits(), "random": other}, digits, **options)
    assert [one.name for one in card.models] == ["linear", "random"]
    assert "head" not in card.models[0].facts
    for models, words in (([], "at least one"), ({}, "at least one"), ({1: other}, "names are text")):
        with pytest.raises(rv.UserError, match=words):
            rv.card(models, digits, **options)


def test_a_card_of_one_head(digits, tmp_path):
    preset, model = write_preset(tmp_path, rows=PRESET["rows"][:1]), TwoHeads().eval()
    options = {"preset": preset, "device": "cpu", "quiet": True}
    one = rv.card({"model": model}, digits, head="right", run=tmp_path / "one", **options)
    assert one.models[0].facts["head"] == "right"
    same = rv.card({"model": through(model, "right")}, digits, run=tmp_path / "same", **options)
    assert same.measure("clean") == one.measure("clean")
    with pytest.raises(rv.UserError, match="head 'middle': the model has no such head"):
        rv.card({"model": model}, digits, head="middle", run=tmp_path / "none", **options)


def test_suites_with_pictures_of_their_own_follow_the_size_of_the_data(tmp_path):
    """A model that takes 96 px alone; a preset that says otherwise is followed."""

    class Only96(nn.Module):
        def forward(self, x):
            assert x.shape[2:] == (96, 96)
            return nn.functional.one_hot((x.mean((1, 2, 3)) * 999).long(), 1000).float()

    folder = write_folders(tmp_path / "elsewhere", R)
    stimuli = tmp_path / "stimuli"
    stimuli.mkdir()
    for name in ("cat1-dog1", "dog1-cat1"):
        Image.fromarray(picture(1)).save(stimuli / f"{name}.png")
    rows = [{"name": "r", "suite": "imagenet-r", "images": 4}, {"name": "shape", "suite": "cue-conflict", "images": 2}]
    paths = {"imagenet-r": folder, "cue-conflict": stimuli}
    x = torch.rand(4, 3, 96, 96)
    made = planned([Only96()], (x, torch.arange(4)), {"about": "", "rows": rows}, tmp_path, paths=paths)
    assert [row.missing for row in made.rows] == ["", ""]
    assert made.rows[0].evaluator.preprocess == Preprocess(size=96, how="crop")
    native = Folder(path=folder, labels="imagenet1k")  # pictures of one size, taken as they are
    made = planned([Reader()], native, {"about": "", "rows": rows[:1]}, tmp_path, paths={"imagenet-r": folder})
    assert made.rows[0].evaluator.preprocess == Preprocess(size=len(picture(0)), how="crop")
    squashed = Folder(path=folder, preprocess={"how": "squash", "size": 96}, labels="imagenet1k")
    made = planned([Only96()], squashed, {"about": "", "rows": rows}, tmp_path, paths=paths)
    assert [row.evaluator.preprocess.how for row in made.rows] == ["squash", "squash"]
    rows[0]["suite"] = {"name": "imagenet-r", "preprocess": {"how": "crop", "size": 80}}
    made = planned([Only96()], squashed, {"about": "", "rows": rows}, tmp_path, paths=paths)
    assert made.rows[0].missing


def test_a_row_that_one_model_lacks_is_missing_for_that_one_alone(digits, tmp_path):
    rows = [*PRESET["rows"][:1], {"name": "scaled", "suite": "aas-fgsm", "threat": {"eps": 0.1}, "images": 8}]
    plan = planned([tiny_vit(), linear_digits()], digits, {"about": "", "rows": rows}, tmp_path)
    models = make._file(plan, {("Normalized", "scaled"): str(tmp_path / "eval" / "x")}, tmp_path).models
    assert models[0].missing == {}
    assert models[0].results == {"scaled": "eval/x"}
    assert list(models[1].missing) == ["scaled"]


def test_models_that_can_not_be_compared_are_refused(trained, digits, tmp_path):
    twelve = nn.Sequential(nn.Flatten(), nn.Linear(192, 12))
    x, y = digits
    with pytest.raises(rv.UserError, match=r"Normalized and Sequential have different classes \(10 and 12\)"):
        planned([trained, twelve], (x, y), PRESET, tmp_path)
    with pytest.raises(rv.UserError, match="'Normalized' is there twice"):
        planned([trained, trained], digits, PRESET, tmp_path)
    candidates = [
        replace(make.candidate(rv.resolve_model(model), digits, LpBall("inf", eps), tmp_path), name=name)
        for model, eps, name in ((trained, 0.1, "a"), (linear_digits(), 0.2, "b"))
    ]
    row = {"name": "robust", "suite": "pgd-1", "threat": {"eps": 0.25, "prefer_run": True}}
    preset = validated(Preset, {"about": "", "rows": [row]}, "preset")
    how = Options(device="cpu", quiet=True)
    with pytest.raises(rv.UserError, match="row 'robust': pgd-1 at Linf 0.1 and pgd-1 at Linf 0.2 can't be compared"):
        plan_card(candidates, "small", preset, how)
    other = [candidates[0], replace(candidates[1], threat=LpBall("inf", 0.1), data=(x.flip(0), y.flip(0)))]
    with pytest.raises(rv.UserError, match="row 'robust': a and b have different images; say which with --data"):
        plan_card(other, "small", preset, how)
    other = [candidates[0], replace(candidates[1], data=(x[:50], y[:50]))]
    with pytest.raises(rv.UserError, match="a and b have different data .*; say which with --data"):
        plan_card(other, "small", preset, how)


def test_a_preset_without_rows_for_this_size_is_refused(trained, digits, tmp_path):
    with pytest.raises(rv.UserError, match="preset 'small': it has no rows for small images"):
        planned([trained], digits, {"about": "", "rows": PRESET["rows"][-1:]}, tmp_path)


def test_a_preset_that_changes_the_data_needs_its_name(trained, digits, tmp_path):
    preset = {**PRESET, "data": {"preprocess": {"how": "squash", "size": 384}}}
    with pytest.raises(rv.UserError, match="data: the preset changes its settings, so it must be given by a name"):
        planned([trained], digits, preset, tmp_path)
    with pytest.raises(rv.UserError, match="preset 'small' sets data.preprocess: data.preprocess: no such setting"):
        planned([trained], "digits", preset, tmp_path)


def test_a_damaged_card_file_is_told(again):
    path = again / FILE
    content = json.loads(path.read_text())
    for change, words in (
        ({"about": "Hours."}, "its content was changed after it was written"),
        ({"rows": 3}, "not a whole card"),
        ({"version": 2}, "not a whole card"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(rv.UserError, match=f"{FILE}: .*{words}.*robustvit card writes it anew"):
            open_card(again)
    path.write_text(path.read_text()[:40])
    with pytest.raises(rv.UserError, match=f"{FILE}: not JSON .*robustvit card writes it anew"):
        open_card(again)


def test_a_card_without_its_results_is_told(again, tmp_path):
    next(again.glob("eval/pgd-3-*/result.json")).unlink()
    with pytest.raises(rv.UserError, match="the result of 'robust' is not there .*; run robustvit card MODEL again"):
        open_card(again)
    with pytest.raises(rv.UserError, match="no card; robustvit card MODEL makes one"):
        open_card(tmp_path)


def test_names_of_lines_are_corrected(made):
    with pytest.raises(rv.UserError, match="the card has no 'robst'; did you mean 'robust'?"):
        made[0].line("robst")


def test_a_name_can_not_end_the_page(trained, digits, tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = trained

        def forward(self, x):
            return self.inner(x)

    Odd.__name__ = "</table><script>alert(1)</script>"
    preset = write_preset(tmp_path, rows=PRESET["rows"][:1])
    run = tmp_path / "run"
    page = rv.card(Odd(), digits, preset=preset, run=run, device="cpu", quiet=True).page.read_text()
    assert "<script" not in page
    assert "&lt;/table&gt;&lt;script&gt;" in page


def test_warnings_are_shown_with_their_rows(digits, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    preset = write_preset(tmp_path, rows=PRESET["rows"][:2])
    card = rv.card(model, digits, preset=preset, run=tmp_path / "run", device="cpu", quiet=True)
    (warned,) = [one for one in card.warnings if one.text.startswith("at-chance")]
    assert [place.partition(":")[0] for place in warned.places] == ["clean", "robust"], "of other images each"
    assert "at-chance" in card.page.read_text()


def test_run_folders_of_their_own_have_the_card_around_them(trained, digits, tmp_path):
    models = {"one": trained, "two": linear_digits()}
    preset = validated(Preset, {**PRESET, "rows": PRESET["rows"][:1]}, "preset")
    candidates = [
        replace(make.candidate(rv.resolve_model(model), digits, None, tmp_path / name), name=name)
        for name, model in models.items()
    ]
    plan = plan_card(candidates, "small", preset, Options(device="cpu", quiet=True))
    card = make.make_card(plan)
    assert card.page == tmp_path.resolve() / PAGE
    assert rv.report(sorted(tmp_path.iterdir()), tmp_path / "report.html").exists(), "runs/* names the card, too"
    assert [len(list((tmp_path / name / "eval").iterdir())) for name in models] == [1, 1]
    values = [cell.measure.value for cell in card.line("clean").cells]
    assert values == [pytest.approx(np.mean(rv.evaluate(m, digits, suite="accuracy", quiet=True).is_correct))
                      for m in models.values()]  # fmt: skip
    assert os.path.commonpath([card.page, tmp_path]) == str(tmp_path)


def test_protocols_that_differ_name_their_models(made):
    card, _ = made
    line = card.line("clean")
    first, second = line.cells
    assert line.protocol == "images as they are"
    other = replace(first.measure, name="worst", description="fog, the lowest of 15 types")
    mixed = replace(line, cells=(replace(first, measure=other), second))
    names = [one.name for one in card.models]
    assert mixed.protocol.startswith(f"{first.result.suite}")
    assert mixed.protocol.endswith(f"fog, the lowest of 15 types ({names[0]}) / images as they are ({names[1]})")


def test_no_bound_where_no_image_was_left():
    nobody = bound(Sample((), 0, 0.1), 0, 30)
    assert bound_note(nobody) == "no image was left for the attacks of AutoAttack that meet a sample alone"
    assert bound_note(bound(Sample((3,), 1, 0.1), 0, 30)).startswith("AutoAttack would leave at least")
