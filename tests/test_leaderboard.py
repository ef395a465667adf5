"""Laws of the leaderboard: it says what results say, and what may be compared with what."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.numbers import mcnemar_p_value, short_count, wilson_interval
from robustvit.core.result import Measure, Outcomes, Result, ResultWarning, ThreatInfo
from robustvit.models.zoo import zoo_card, zoo_result
from robustvit.reporting import leaderboard
from robustvit.reporting.colors import _TO_CUBES, _TO_LINEAR, ordered_colors
from robustvit.reporting.entries import Entry
from robustvit.reporting.robustbench import TEST_IMAGES, packaged, read_published
from robustvit.reporting.standings import compared, places
from robustvit.reporting.trade_off import trade_off_chart
from test_report import Page, make_run, of_weights, result, stage


def judged(weights: str, robust: np.ndarray, suite: str = "autoattack", **changes: Any) -> Result:
    """A result whose images fell as given, on what is called the test set of CIFAR-10."""
    total = len(robust)
    correct = robust | (np.arange(total) % 3 > 0)
    measures = tuple(
        Measure(name, float(hits.mean()), wilson_interval(int(hits.sum()), total), kind="accuracy")
        for name, hits in (("clean_accuracy", correct), ("robust_accuracy", robust))
    )
    usual = {
        "title": suite,
        "measures": measures,
        "outcomes": Outcomes(np.arange(total), np.zeros(total, int), correct, robust),
        "num_images": total,
        "images_rule": f"all {total}",
        "data": "cifar10/test of /data",
        "checkpoint": of_weights(weights),
        "stages": (stage(suite, int(correct.sum()), 9, float(robust.mean()), passes=30 * total),),
    }
    return result(**{**usual, **changes})


WHOLE = TEST_IMAGES["cifar10"]


def robust_images(count: int, shift: int = 0, total: int = WHOLE) -> np.ndarray:
    return (np.arange(total) >= shift) & (np.arange(total) < shift + count)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make_run(folder / "best", evaluation=judged("a", robust_images(5200)))
    make_run(folder / "same", evaluation=judged("b", robust_images(5190, shift=30)))
    make_run(folder / "worst", evaluation=judged("c", robust_images(1000)))
    make_run(folder / "quick", evaluation=judged("d", robust_images(40, total=100), "pgd-20"))
    (folder / "best" / "report.html").write_text("a report")
    (folder / "best" / "cost.json").write_text(json.dumps({"cpu_seconds": 7200, "processor": "one"}))
    return folder


def test_the_published_entries_are_those_of_the_list() -> None:
    entries = {entry.key: entry for entry in packaged().entries}
    assert len(entries) == 236
    known = entries["cifar10", "Linf", "Wang2023Better_WRN-70-16"]
    assert (known.clean_acc, known.autoattack_acc, known.eps, known.year) == (93.25, 70.69, "8/255", 2023)
    assert sum(key[:2] == ("cifar10", "Linf") for key in entries) == 99
    assert all(entry.autoattack_acc is not None or entry.threat == "corruptions" for entry in entries.values())
    assert entries["cifar10", "Linf", "Standard"].year is None


def test_pairs_are_mcnemars_with_holms_correction() -> None:
    first, second, third = (
        judged(*one) for one in (("a", robust_images(5200)), ("b", robust_images(5185, 5)), ("c", robust_images(5150)))
    )
    pairs = {(pair.higher, pair.lower): pair for pair in compared([second, third, first])}
    assert set(pairs) == {(2, 0), (2, 1), (0, 1)}
    raw = {key: pair.p_value for key, pair in pairs.items()}
    assert raw[2, 0] == mcnemar_p_value(first.is_robust, second.is_robust)
    assert (pairs[2, 0].only_higher, pairs[2, 0].only_lower) == (15, 0)
    low, middle, high = sorted(raw, key=lambda key: raw[key])
    assert pairs[low].adjusted == pytest.approx(3 * raw[low])
    assert pairs[middle].adjusted == pytest.approx(max(3 * raw[low], 2 * raw[middle]))
    assert pairs[high].adjusted == pytest.approx(max(2 * raw[middle], raw[high]))


def test_a_place_is_a_range_where_the_order_may_be_chance(runs: Path, tmp_path: Path) -> None:
    made = leaderboard([runs], tmp_path / "page.html")
    (family,) = made.families
    assert [one.name for one in family.members] == ["best", "same", "worst"]
    assert family.places == ((1, 2), (1, 2), (3, 3))
    rows = Page(made.page).rows
    assert any("best" in row and "1 to 2 of 3" in row for row in rows)
    assert any("worst" in row and "3 of 3" in row for row in rows)
    assert any(row.split()[:2] == ["best", "same"] and "may be chance" in row for row in rows)
    assert any(row.split()[:2] == ["best", "worst"] and row.endswith("higher") for row in rows)


def test_a_doubtful_result_is_called_higher_than_none(tmp_path: Path) -> None:
    doubt = ResultWarning("masked", "gradients vanish", inflates=True)
    results = [
        judged("a", robust_images(900, total=1000), warnings=(doubt,)),
        judged("b", robust_images(100, total=1000)),
    ]
    (pair,) = compared(results)
    assert pair.adjusted < 1e-9
    assert not pair.is_settled
    assert places(2, [pair]) == [(1, 2), (1, 2)]


def test_the_bound_of_a_sample_must_be_higher_too() -> None:
    high, low = judged("a", robust_images(600, total=1000)), judged("b", robust_images(400, total=1000))
    bounded = replace(high, details={"bound": {"robust_accuracy_at_least": 0.39}})
    assert compared([high, low])[0].is_settled
    assert not compared([bounded, low])[0].is_settled


def test_only_the_protocol_of_the_table_makes_a_filled_point(runs: Path, tmp_path: Path) -> None:
    made = leaderboard([runs], tmp_path / "page.html")
    differs = {one.name: one.differs for one in made.entries if one.is_here}
    assert differs["best"] == differs["worst"] == ()
    assert differs["quick"] == ("pgd-20, not autoattack", "100 images, not the whole test set of 10,000")
    page = Page(made.page)
    assert len(page.classed("g", "own")) == 4
    assert len(page.classed("g", "whole")) == 3
    assert len(page.classed("g", "published")) == 99


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"threat": ThreatInfo("inf", 4 / 255, "4/255")}, "eps 4/255, not 8/255"),
        ({"images_rule": "10000 of 20000 at random, seed 0"}, "10000 of 20000 at random, seed 0"),
        ({"judges_original": False}, "judged on a changed model"),
        ({"data": "cifar10/test of /data (not the published images: 3 differ)"}, None),
    ],
)
def test_every_other_protocol_makes_a_hollow_one(tmp_path: Path, change: dict[str, Any], why: str | None) -> None:
    if "judges_original" in change:
        usual = judged("a", robust_images(100)).measures
        change = {**change, "measures": (replace(usual[0], name="original_clean_accuracy"), *usual)}
    run = make_run(tmp_path / "run", evaluation=judged("a", robust_images(100), **change))
    (own,) = [one for one in leaderboard(run, tmp_path / "page.html").entries if one.is_here]
    if why is None:  # other images: no entry of RobustBench is shown behind it
        assert own.data == change["data"]
    else:
        assert own.differs == (why,)


@pytest.mark.parametrize("page", ["light", "dark"])
def test_years_are_told_apart_on_light_and_dark_pages(page: Literal["light", "dark"]) -> None:
    years = sorted({one.year for one in packaged().entries if one.year is not None})
    assert len(years) >= 6
    colors = (
        np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in ordered_colors(len(years), page)]) / 255
    )
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    lab = np.cbrt(linear @ np.linalg.inv(_TO_LINEAR).T) @ np.linalg.inv(_TO_CUBES).T
    assert (np.linalg.norm(np.diff(lab, axis=0), axis=1) > 0.08).all(), "of OKLab; 0.02 can just be seen"
    order = 1 if page == "dark" else -1
    assert (order * np.diff(lab[:, 0]) > 0).all(), "the later, the more contrast"
    ground, luminance = (0.008 if page == "dark" else 1.0), linear @ (0.2126, 0.7152, 0.0722)
    contrast = (np.maximum(luminance, ground) + 0.05) / (np.minimum(luminance, ground) + 0.05)
    assert (contrast > 2.2).all()
    assert (contrast[2:] > 3).all()


def test_a_published_point_has_a_color_for_either_page() -> None:
    accuracy = Measure("accuracy", 0.5, None, kind="accuracy")
    common = ("name", "RobustBench", "cifar10", "Linf 8/255", "Linf", 8 / 255, "autoattack", accuracy, accuracy)
    drawn = trade_off_chart("title", [Entry(*common, year=year) for year in (2020, 2021, None)])
    for year, light, dark in zip((2020, 2021), ordered_colors(2, "light"), ordered_colors(2, "dark"), strict=True):
        assert drawn.count(f"--light:{light};--dark:{dark}") == 2, f"{year}: its point and the legend"
    assert drawn.count("--light:#888888;--dark:#888888") == 2


def test_a_name_in_the_chart_covers_no_bar(tmp_path: Path) -> None:
    """The name of a result on few images, whose bars are long, begins where they end."""
    run = make_run(tmp_path / "run", evaluation=judged("a", robust_images(40, total=100)))
    leaderboard(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    (drawn,) = re.findall(r'<g class="line own.*?<path d="M[\d.]+ [\d.]+H([\d.]+)', page)
    (begin,) = re.findall(r'<text class="name own tone-1" x="([\d.]+)"', page)
    assert float(begin) == pytest.approx(float(drawn) + 3, abs=0.1)


def test_a_row_has_what_files_say_and_links_to_what_is_there(runs: Path, tmp_path: Path) -> None:
    made = leaderboard([runs, runs / "best"], tmp_path / "elsewhere" / "page.html")
    best, *_ = (one for one in made.entries if one.name == "best")
    assert (best.core_seconds, best.passes) == (7200, 30)
    assert best.links == (("report", "./../runs/best/report.html"),)
    assert sum(one.name == "best" for one in made.entries) == 1
    page = Page(made.page)
    links = [one["href"] for tag, one in page.tags if tag == "a" and str(one.get("href", "")).startswith("./")]
    assert links == ["./../runs/best/report.html"]


def test_files_of_robustbench_go_out_and_come_back(runs: Path, tmp_path: Path) -> None:
    made = leaderboard(runs, tmp_path / "page.html", export=tmp_path / "info")
    assert {path.relative_to(tmp_path / "info").as_posix() for path in made.exported} == {
        f"cifar10/Linf/{name}.json" for name in ("best", "same", "worst")
    }
    (refused,) = made.not_exported
    assert refused.startswith("quick, pgd-20, Linf 8/255: pgd-20, not autoattack")
    content = json.loads((tmp_path / "info/cifar10/Linf/best.json").read_text())
    assert (content["clean_acc"], content["autoattack_acc"], content["eps"]) == ("84.00", "52.00", "8/255")
    back = {one.id: one for one in read_published([tmp_path / "info"])}
    assert (back["best"].threat, back["best"].autoattack_acc) == ("Linf", 52.0)
    again = leaderboard(runs, tmp_path / "page.html", published=[tmp_path / "info"])
    assert sum(one.name == "best" and not one.is_here for one in again.entries) == 1


def test_bad_input_is_one_sentence(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text('{"dataset": "cifar10", "clean_acc": "many"}')
    for folder, published, message in (
        (tmp_path / "nowhere", [], "does not exist"),
        (tmp_path / "empty", [], "no result of an attack"),
        (runs, [tmp_path / "empty"], "holds no JSON files"),
        (runs, [tmp_path / "bad.json"], "not a model of RobustBench"),
    ):
        with pytest.raises(UserError, match=message):
            leaderboard(folder, tmp_path / "page.html", published=published)


def test_names_from_files_stay_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    run = make_run(tmp_path / "run", evaluation=judged("a", robust_images(100), model={"name": name}))
    made = leaderboard(run, tmp_path / "page.html")
    assert Page(made.page).text.count(name) >= 1
    assert "<script>alert" not in made.page.read_text()


def test_the_command_ranks_a_model_of_the_zoo(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["leaderboard", "zoo:speedrun", "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    row = next(row for row in Page(tmp_path / "page.html").rows if "zoo:speedrun" in row)
    robust = zoo_result("speedrun").headline
    assert robust.interval is not None
    low, high = robust.interval
    assert f"{100 * robust.value:.1f} % {100 * low:.1f} to {100 * high:.1f}" in row
    assert short_count(zoo_card("speedrun").parameters) in row
