"""Laws of the report: it says what the files say, trusts nothing in them, and asks nothing of the outside."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustvit.core.errors import UserError
from robustvit.core.examples import Examples, write_examples
from robustvit.core.result import (
    ConditionResult,
    Control,
    Measure,
    Outcomes,
    Provenance,
    Result,
    ResultWarning,
    StageResult,
    ThreatInfo,
)
from robustvit.core.result_files import write_result
from robustvit.reporting import report
from robustvit.reporting.axes import ticks
from robustvit.reporting.charts import LABEL_LINE, LONGEST_LABEL, Series, line_chart, thinned
from robustvit.reporting.pictures import pictures
from robustvit.reporting.read import read_runs

VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Every tag with its attributes, the text of each table row, and whether tags close in the order they opened."""

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page.read_text(encoding="utf-8") if isinstance(page, Path) else page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append("")
        elif tag in ("th", "td"):
            self.rows[-1] += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        self.text += data
        if "tr" in self.open:
            self.rows[-1] += data

    def row(self, *words: str) -> str:
        """The first table row that says all of these."""
        return next(row for row in self.rows if all(word in row for word in words))

    def classed(self, tag: str, word: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag and word in (attrs.get("class") or "").split()]


def metrics_rows(steps: int = 5) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        place = {"total_step": 10 * step, "phase": "main", "step": 10 * step, "epoch": step / 2}
        rows.append({**place, "kind": "train", "loss": 2.0 / step, "clean_accuracy": 0.5, "robust_accuracy": 0.25})
    rows.append({**place, "kind": "validation", "clean_accuracy": 0.75, "robust_accuracy": 0.5})
    return rows


def result(**changes: Any) -> Result:
    """An evaluation as it is written; changes are fields of the result or of its provenance."""
    robust, interval = round(360 * changes.pop("robust", 0.8)) / 360, changes.pop("interval", (0.7556, 0.8381))
    provenance = {
        "data": "digits/test",
        "data_sha256": "def456",
        "num_images": 360,
        "images_rule": "all 360",
        "seed": 17,
        "precision": "float32",
        "device": "cpu",
        "processes": 1,
        "threads": 3,
        "model": {"name": "vit"},
        "checkpoint": of_weights("abc123"),
        "versions": {"torch": "9.8.7"},
        "command": "robustvit evaluate run",
        "settings": {},
    }
    provenance |= {key: changes.pop(key) for key in tuple(changes) if key in (*provenance, "class_names")}
    fields = {
        "kind": "attacked",
        "title": "pgd-20",
        "measures": (
            Measure("clean_accuracy", 348 / 360, (0.9426, 0.9808), kind="accuracy"),
            Measure("robust_accuracy", robust, interval, kind="accuracy"),
        ),
        "provenance": Provenance(**provenance),
        "outcomes": outcomes(np.arange(360) < round(360 * robust)),
        "threat": ThreatInfo("inf", 8 / 255, "8/255"),
        "stages": (stage("pgd-20", 348, 60, 0.8, settings={"name": "pgd", "steps": 20}),),
    }
    return Result(**{**fields, **changes})


def outcomes(robust: np.ndarray) -> Outcomes:
    correct = (np.arange(len(robust)) < round(len(robust) * 348 / 360)) | robust
    return Outcomes(np.arange(len(robust)), np.zeros(len(robust), int), correct, robust)


def of_weights(sha256: str) -> dict[str, str]:
    return {"path": "checkpoints/best.safetensors", "sha256": sha256, "rule": "best on the hold-out"}


def at_eps(number: int, robust: float) -> Result:
    """A result at so many 255ths."""
    threat = ThreatInfo("inf", number / 255, f"{number}/255")
    return result(threat=threat, robust=robust, interval=(robust - 0.05, robust + 0.05))


def stage(
    name: str, met: int, fooled: int, left: float, seconds: float = 1.0, passes: int = 100, settings: Any = None
) -> StageResult:
    return StageResult(name, met, fooled, 0, left, seconds, passes, settings or {"name": name.partition("/")[0]})


def make_run(
    folder: Path, *, rows: list[dict[str, Any]] | None = None, evaluation: Any = None, others: Any = ()
) -> Path:
    folder.mkdir(parents=True)
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "recipe.yaml").write_text("name: tiny-recipe\nseed: 0\n")
    if evaluation is not None:
        write_result(folder / "eval" / "pgd", evaluation)
    for number, other in enumerate(others):
        write_result(folder / "eval" / f"pgd-{number}", other)
    return folder


def keep_examples(run: Path, eps: float) -> None:
    clean = np.full((2, 3, 4, 4), 0.5, np.float16)
    adversarial = clean.copy()
    adversarial[:, :, 0, 0] += eps
    adversarial[:, :, 3, 3] -= eps
    examples = Examples(
        index=np.array([4, 9]),
        clean=clean,
        adversarial=adversarial,
        label=np.array([7, 2]),
        predicted=np.array([1, 3]),
        confidence_clean=np.array([0.875, 0.75]),
        confidence_adversarial=np.array([0.625, 0.5]),
    )
    write_examples(run / "eval" / "pgd" / "examples.npz", examples)


def test_one_run_says_what_its_result_says(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=metrics_rows(), evaluation=result())
    path = report([run])
    assert path == run / "report.html"
    page = Page(path)
    assert all(said in page.rows[1] for said in ("pgd-20", "Linf", "digits/test", "all 360"))
    for said in ("run", "best checkpoint", "8/255", "96.7 %", "94.3 to 98.1", "80.0 %", "75.6 to 83.8"):
        assert said in page.rows[2]
    assert "run classifies 80.0 % of 360 images correctly whatever pgd-20 tries at Linf 8/255" in page.text
    for setting in ("tiny-recipe", "abc123", "best on the hold-out", "9.8.7", "robustvit evaluate run", "steps: 20"):
        assert setting in page.text
    assert len(page.classed("button", "copy")) == [tag for tag, _ in page.tags].count("pre")


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rows=metrics_rows(), evaluation=result()) for name in ("one", "two")]
    page = Page(report(runs))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    links = [link for _, attrs in page.tags if (link := attrs.get("href") or "").startswith("#")]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_nothing_is_asked_of_the_outside(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=metrics_rows(), evaluation=result())
    keep_examples(run, 8 / 255)
    path = report([run])
    text = path.read_text()
    assert not re.search(r"https?://|@import|url\(", text)
    page = Page(path)
    sources = [attrs["src"] for _, attrs in page.tags if "src" in attrs]
    assert len(sources) == 6
    assert all(source and source.startswith("data:image/png;base64,") for source in sources)
    links = [attrs["href"] for _, attrs in page.tags if "href" in attrs]
    assert all(link and link.startswith(("#", "data:")) for link in links)


def test_text_from_files_stays_text(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    name = attack.replace("/", "")  # a folder's name can't hold a slash
    row = {**metrics_rows(1)[0], "phase": attack}
    evaluation = result(
        title=attack,
        data=attack,
        warnings=(ResultWarning(attack, attack, attack),),
        notes=(attack,),
        command=attack,
        images_rule='"><img src=x>',
        stages=(stage(attack, 348, 60, 0.8, settings={attack: attack}),),
    )
    run = make_run(tmp_path / name, rows=[*metrics_rows(), row], evaluation=evaluation)
    (run / "recipe.yaml").write_text(f"name: '{attack}'\n")
    page = Page(report([run]))
    assert attack in page.text
    assert name in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert not any(tag == "img" for tag, _ in page.tags)


def test_warnings_are_in_their_box_only_if_there_are_any(tmp_path: Path) -> None:
    calm = make_run(tmp_path / "calm", evaluation=result())
    loud = make_run(tmp_path / "loud", evaluation=result(warnings=(ResultWarning("masked", "gradients look masked"),)))
    assert not Page(report([calm])).classed("div", "warnings")
    page = Page(report([loud]))
    assert page.classed("div", "warnings")
    assert "gradients look masked" in page.text


def test_a_warning_comes_once_with_what_to_do(tmp_path: Path) -> None:
    known = ResultWarning("not-finite", "3 clean images gave logits that aren't finite", "look for overflow")
    runs = [make_run(tmp_path / name, evaluation=result(warnings=(known,))) for name in ("one", "two")]
    page = Page(report(runs))
    assert page.text.count(known.observation) == 1
    assert "one, pgd-20, Linf 8/255; two, pgd-20, Linf 8/255" in page.text
    assert "Look for overflow." in page.text
    other = make_run(tmp_path / "three", evaluation=result(warnings=(replace(known, observation="5 of them"),)))
    page = Page(report([*runs, other]))
    assert "not-finite, 3 times" in page.text
    assert page.text.count("Look for overflow.") == 1
    assert "three, pgd-20, Linf 8/255: 5 of them" in page.text


def test_what_training_noticed_is_shown_with_its_advice(tmp_path: Path) -> None:
    rows = metrics_rows(2)
    place = {"total_step": 20, "phase": "main", "step": 20, "epoch": 1.0}
    rows += [{**place, "kind": "train", "loss": 0.5, "skipped_steps": skipped} for skipped in (2, 3)]
    warned = {"name": "stuck", "observation": "hardly better than chance", "advice": "try a smaller lr"}
    rows.append({**place, "kind": "warning", **warned})
    page = Page(report([make_run(tmp_path / "run", rows=rows)]))
    assert "2 warnings" in page.text
    assert "3 training steps were skipped: their loss or gradient was not finite run" in page.text
    assert "stuck: hardly better than chance runTry a smaller lr." in page.text


def test_events_of_the_training_are_drawn(tmp_path: Path) -> None:
    event = {"total_step": 30, "kind": "event", "name": "an-event", "values": {"most": 0.5, "least": None, "odd": "x"}}
    page = Page(report([make_run(tmp_path / "run", rows=[*metrics_rows(), event, {**event, "values": 3}])]))
    assert any((chart["aria-label"] or "").startswith("an-event") for chart in page.classed("svg", "chart"))


def test_a_control_is_shown_with_the_result_that_names_it(tmp_path: Path) -> None:
    measures = (
        Measure("clean_accuracy", 0.9, (0.8, 0.95), kind="accuracy"),
        Measure("robust_accuracy", 0.83, (0.8, 0.9), kind="accuracy"),
    )
    named = result(control=Control("random factors", "pgd-20: random", measures, "pgd-0"), notes=("with chance: 83 %",))
    run = make_run(tmp_path / "run", evaluation=named, others=[result(title="pgd-20: random")])
    page = Page(report([run]))
    assert len([row for row in page.rows if "best checkpoint" in row]) == 1
    assert "with chance: 83 %" in page.text
    assert "pgd-20: random" not in page.text


def test_a_result_without_a_threat_shows_measures_and_conditions(tmp_path: Path) -> None:
    conditions = tuple(ConditionResult(f"fog/{i}", ("weather",), 360, 0.5 + i / 10, (0.4, 0.9)) for i in range(3))
    mean = Measure("mean_accuracy", 0.6125, (0.5, 0.7), "over three", kind="accuracy")
    shifted = result(kind="fog", title="fog", threat=None, stages=(), conditions=conditions, measures=(mean,))
    page = Page(report([make_run(tmp_path / "run", evaluation=shifted)]))
    assert page.row("mean accuracy").split() == ["mean", "accuracy", "61.3", "%", "50.0", "to", "70.0", "over", "three"]
    assert "70.0 %" in page.row("fog/2")
    assert "classifies" not in page.text


def test_accuracy_that_rises_with_eps_is_doubted(tmp_path: Path) -> None:
    falling = make_run(tmp_path / "falling", others=[at_eps(2, 0.8), at_eps(4, 0.5), at_eps(8, 0.52)])
    assert not Page(report([falling])).classed("div", "warnings")  # 0.52 is within the interval of 0.5
    rising = make_run(tmp_path / "rising", others=[at_eps(2, 0.8), at_eps(4, 0.5), at_eps(8, 0.7)])
    page = Page(report([rising]))
    assert "robust accuracy rises with eps rising, pgd-20, up to Linf 8/255" in page.text


def test_two_runs_share_one_page(tmp_path: Path) -> None:
    rows = metrics_rows()
    strong = make_run(tmp_path / "strong", rows=rows, evaluation=result())
    lower = result(robust=0.1, interval=(0.05, 0.15), checkpoint=of_weights("weak"))
    weak = make_run(tmp_path / "weak", rows=rows, evaluation=lower)
    path = report([weak, strong])
    assert path == tmp_path / "report.html"
    page = Page(path)
    assert [row.split()[0] for row in page.rows[2:4]] == ["weak", "strong"]
    assert len(page.classed("svg", "chart")) == 4
    assert ["highest" in row for row in page.rows[2:4]] == [False, True]
    assert "strong classifies 80.0 %" in page.text
    assert "the most robust of the 2 compared" in page.text


AT_CHANCE = ResultWarning("at-chance", "clean accuracy 12.5 % is no better than chance")
MASKED = ResultWarning("gradient-masking", "10 of 64 images are robust", inflates=True)


@pytest.mark.parametrize(
    ("higher", "said"),
    [
        ({"robust": 0.8}, "the most robust of the 2 compared"),
        ({"robust": 0.514}, "none of the 2 compared can be called the most robust"),  # 5 images more: p = 0.0625
        ({"robust": 0.517}, "the most robust of the 2 compared"),  # 6 images more: p = 0.03125
        ({"robust": 0.5}, "none of the 2 compared can be called the most robust"),
        ({"robust": 0.8, "warnings": (AT_CHANCE,)}, "lower classifies 50.0 %"),
        ({"robust": 0.8, "warnings": (MASKED,)}, "none of the 2 compared can be called the most robust"),
        ({"robust": 0.8, "checkpoint": of_weights("abc123")}, "none of the 2 compared can be called the most robust"),
    ],
)
def test_highest_is_marked_only_where_a_paired_test_tells_it_from_the_others(
    tmp_path: Path, higher: dict[str, Any], said: str
) -> None:
    lower = make_run(tmp_path / "lower", evaluation=result(robust=0.5))
    other = make_run(tmp_path / "higher", evaluation=result(**{"checkpoint": of_weights("other"), **higher}))
    page = Page(report([lower, other]))
    assert said in page.text
    assert ("highest" in page.row("higher", "%")) == ("the most robust" in said and "none" not in said)
    assert "highest" not in page.row("lower", "%")


def test_results_that_are_all_doubtful_have_no_winner_and_say_so(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", evaluation=result(robust=0.125, warnings=(AT_CHANCE,)))
    other = make_run(
        tmp_path / "other", evaluation=result(robust=0.0, checkpoint=of_weights("other"), warnings=(MASKED,))
    )
    page = Page(report([one, other]))
    assert "but see the warnings below" in page.text
    assert "highest" not in " ".join(page.rows)


@pytest.mark.parametrize(("least", "is_marked"), [(0.51, True), (0.5, False), (0.4, False)])
def test_highest_needs_a_higher_bound_where_a_sample_met_autoattack(
    tmp_path: Path, least: float, is_marked: bool
) -> None:
    """Of a sample many may have fallen, and most other survivors did not meet what took them."""
    bound = {"bound": {"robust_accuracy_at_least": least}}
    lower = make_run(tmp_path / "lower", evaluation=result(robust=0.5))
    other = result(checkpoint=of_weights("other"), robust=0.8, details=bound)
    page = Page(report([lower, make_run(tmp_path / "higher", evaluation=other)]))
    assert ("highest" in page.row("higher", "%")) == is_marked
    assert ("the most robust of the 2" in page.text) == is_marked


@pytest.mark.parametrize(
    ("again", "is_marked"), [({"robust": 0.78}, True), ({"robust": 0.5}, False), ({"warnings": (MASKED,)}, False)]
)
def test_one_good_result_of_a_model_does_not_hide_a_worse_one(
    tmp_path: Path, again: dict[str, Any], is_marked: bool
) -> None:
    lower = make_run(tmp_path / "lower", evaluation=result(robust=0.5))
    seeds = [result(checkpoint=of_weights("other"), seed=seed, **more) for seed, more in enumerate(({}, again))]
    page = Page(report([lower, make_run(tmp_path / "higher", others=seeds)]))
    assert any("highest" in row for row in page.rows if row.strip().startswith("higher")) == is_marked


def test_results_on_other_images_are_not_compared_in_pairs() -> None:
    one, other = result(robust=0.8), result(robust=0.1)
    assert one.is_higher(other)
    moved = replace(other, outcomes=replace(other.outcomes, index=other.outcomes.index + 1))
    assert not one.is_higher(moved)


@pytest.mark.parametrize(
    "change",
    [
        {"title": "pgd-10"},
        {"data": "digits/train"},
        {"data_sha256": "fed654"},
        {"settings": {"quantized": True}},
        {"images_rule": "100 of 360 at random, seed 0"},
        {"threat": ThreatInfo("2", 8 / 255, "8/255")},
        {"threat": ThreatInfo("inf", 0.5, "0.5")},
    ],
)
def test_only_like_is_ranked_with_like(tmp_path: Path, change: dict[str, Any]) -> None:
    one = make_run(tmp_path / "one", evaluation=result())
    other = make_run(tmp_path / "other", evaluation=result(robust=0.1, checkpoint=of_weights("other"), **change))
    page = Page(report([one, other]))
    assert "highest" not in page.text
    assert not any("%" in row and "one" in row and "other" in row for row in page.rows)


def test_titles_say_in_what_two_blocks_differ(tmp_path: Path) -> None:
    """Other pixels under one title, and the same ones quantized."""
    changes: list[dict[str, Any]] = [{}, {"data_sha256": "0123456789abcdef"}, {"settings": {"quantized": True}}]
    runs = [make_run(tmp_path / f"run{i}", evaluation=result(**change)) for i, change in enumerate(changes)]
    page = Page(report(runs))
    titles = [row.strip() for row in page.rows if "all 360" in row]
    assert titles[:3] == [
        "pgd-20 Linf, digits/test, content def456, all 360",
        "pgd-20 Linf, digits/test, content 01234567, all 360",
        "pgd-20, quantized Linf, digits/test, content def456, all 360",
    ]
    assert page.text.count("Evaluation pgd-20, quantized, Linf 8/255") == 1
    alone = Page(report([make_run(tmp_path / "alone", evaluation=result())]))
    assert "pgd-20 Linf, digits/test, all 360" in alone.text
    assert "content" not in alone.row("digits/test")


def test_several_eps_make_a_curve_and_one_row(tmp_path: Path) -> None:
    strong = make_run(tmp_path / "strong", others=[at_eps(4, 0.75), at_eps(2, 0.875), at_eps(16, 0.25)])
    weak = make_run(tmp_path / "weak", others=[at_eps(2, 0.5), at_eps(4, 0.125)])
    page = Page(report([weak, strong]))
    row = page.row("strong", "87.5 %")
    assert re.findall(r"\d+\.\d %", row) == ["96.7 %", "87.5 %", "75.0 %", "25.0 %"]
    assert re.findall(r"\d+\.\d to \d+\.\d", row) == [
        "94.3 to 98.1",
        "82.5 to 92.5",
        "70.0 to 80.0",
        "20.0 to 30.0",
    ]
    assert re.findall(r"\d+\.\d %", page.row("weak", "50.0 %")) == ["96.7 %", "50.0 %", "12.5 %"]
    (chart,) = page.classed("svg", "chart")
    assert chart["aria-label"] == "Robust accuracy against eps, pgd-20, Linf. At the end: strong 25 %, weak 12 %."
    bands = page.classed("path", "band")
    assert [len(re.findall("[ML]", band["d"] or "")) for band in bands] == [8, 6]  # 0 and each eps, above and below
    assert "in 255ths" in page.text


def test_checkpoints_of_one_run_are_distinguished(tmp_path: Path) -> None:
    def at(name: str, sha256: str) -> Result:
        return result(checkpoint={"path": f"checkpoints/{name}.safetensors", "sha256": sha256})

    run = make_run(tmp_path / "run", others=[at("best", "123456789"), at("last", "abcdefgh"), at("last", "hgfedcba")])
    rows = Page(report([run])).rows[2:5]
    assert [row.split()[1:4] for row in rows] == [
        ["best", "checkpoint", "8/255"],
        ["last", "checkpoint", "abcdef"],
        ["last", "checkpoint", "hgfedc"],
    ]


def test_attacks_that_met_no_image_say_so(tmp_path: Path) -> None:
    stages = [stage("apgd-ce", 348, 347, 1 / 360), stage("apgd-t/1", 1, 0, 1 / 360)]
    stages += [stage("apgd-t/2", 1, 1, 0.0, 2.5, 50), stage("apgd-t/3", 0, 0, 0.0, 0, 0)]
    stages += [stage("square", 0, 0, 0.0, 0, 0)]
    run = make_run(
        tmp_path / "run", evaluation=result(title="mine", stages=tuple(stages), robust=0.0, interval=(0, 0.1))
    )
    page = Page(report([run]))
    assert re.findall(r"[\d.,]+(?: %)?", page.row("apgd-ce")) == ["348", "347", "0.3 %", "100", "1.0"]
    joined = page.row("apgd-t/1 to 3")
    assert "1 of them met no image" in joined
    assert joined.split()[-6:] == ["1", "1", "0.0", "%", "150", "3.5"]
    assert "met no image: none was left" in page.row("square")


def test_images_that_fell_at_a_smaller_eps_meet_no_attack(tmp_path: Path) -> None:
    curve = {"carried_from": "4/255", "carried": 48, "attacked_again": 48, "survived_again": 0}
    stages = (stage("pgd-20", 300, 12, 0.8),)
    run = make_run(tmp_path / "run", evaluation=result(stages=stages, details={"curve": curve}))
    page = Page(report([run]))
    row = page.row("48 fooled at a smaller eps")
    assert row.split()[-6:] == ["300", "12", "80.0", "%", "100", "1.0"]
    assert "carried_from: 4/255" in page.text


def test_recipes_are_compared_where_they_differ(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rows=metrics_rows(), evaluation=result()) for name in ("one", "two")]
    assert "What differs" not in Page(report(runs)).text
    phase = "phases:\n- objective: {name: %s}\n  epochs: 3\nseed: 0\n"
    for run, objective in zip(runs, ("trades, beta: 6", "standard"), strict=True):
        (run / "recipe.yaml").write_text(phase % objective)
    page = Page(report(runs))
    assert page.row("objective.name").split() == ["objective.name", "trades", "standard"]
    assert page.row("objective.beta").split() == ["objective.beta", "6", "-"]
    assert not any("epochs" in row or "seed" in row for row in page.rows)


def test_what_the_recipe_expects_is_shown_with_its_source(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=metrics_rows(), evaluation=result())
    recipe = {"name": "r", "info": {"paper": "A Paper", "expect": [
        {"suite": "autoattack", "value": 71.3, "paper": "A Paper", "table": "Table 6", "row": "ViT"},
        {"suite": "clean", "value": 96, "measured_with": "torch 9"}]}}  # fmt: skip
    (run / "recipe.yaml").write_text(json.dumps(recipe))
    page = Page(report([run]))
    assert page.row("71.3 %").split() == [
        "run",
        "autoattack",
        "71.3",
        "%",
        "paper:",
        "A",
        "Paper,",
        "Table",
        "6,",
        "ViT",
    ]
    assert "this project, torch 9" in page.row("96 %")
    for damaged in ("name: r\ninfo: 3\n", "name: r\ninfo: {expect: [{suite: 1}]}\n", "- 3\n"):
        (run / "recipe.yaml").write_text(damaged)
        assert "Expected accuracy" not in Page(report([run])).text


def test_a_suite_without_attacks_claims_no_robustness(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluation=result(title="clean", stages=(), measures=result().measures[:1]))
    page = Page(report([run]))
    assert "not attacked" in page.rows[2]
    assert "classifies" not in page.text


def test_runs_of_one_name_are_distinguished_and_the_same_one_is_shown_once(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / seed / "run", evaluation=result()) for seed in ("seed0", "seed1"))
    assert [run.name for run in read_runs([first, second, first])] == ["seed0/run", "seed1/run"]


def test_a_torn_line_and_missing_losses_leave_gaps(tmp_path: Path) -> None:
    rows = metrics_rows(7)
    for place in (2, 3, 5):
        rows[place]["loss"] = None
    run = make_run(tmp_path / "run", rows=rows)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"total_step": 80, "kind": "train", "lo')
    page = Page(report([run]))
    *_, loss = (attrs["d"] for tag, attrs in page.tags if tag == "path" and "class" not in attrs)
    assert loss is not None
    assert re.sub(r"[\d. ]", "", loss) == "MLMhMh"  # two joined, a gap, one alone, a gap, one alone
    assert "not finite in 3 rows" in page.text


def test_a_run_without_one_finite_value_still_has_a_page(tmp_path: Path) -> None:
    row = {"total_step": 10, "phase": "main", "kind": "train", "loss": float("nan"), "robust_accuracy": None}
    assert "no finite values yet" in Page(report([make_run(tmp_path / "run", rows=[row])])).text


def test_a_run_in_progress_is_shown_as_such(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=metrics_rows())
    assert "in progress, 50 steps" in Page(report([run])).rows[1]
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.safetensors").touch()
    assert "not evaluated yet" in Page(report([run])).rows[1]
    (run / "eval" / "begun").mkdir(parents=True)
    (run / "eval" / "begun" / "ledger-0.jsonl").touch()
    assert "evaluation begun is not finished" in Page(report([run])).rows[1]


def test_pictures_name_classes_where_the_data_does(tmp_path: Path) -> None:
    names = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "<horse>")
    run = make_run(tmp_path / "run", evaluation=result(class_names=names))
    keep_examples(run, 0.125)
    page = report([run]).read_text()
    assert "class <b>&lt;horse&gt;</b>" in page
    assert 'seen as <b class="robust">car</b>' in page
    few = make_run(tmp_path / "few", evaluation=result(class_names=("airplane",)))
    keep_examples(few, 0.125)
    assert "class <b>7</b>" in report([few]).read_text()


def test_plots_end_at_the_same_place_whatever_their_labels() -> None:
    charts = [
        str(line_chart("t", [Series(name, "clean", [(0.0, 0.5), (7.0, 1.0)])], x_title="x", y_text=str))
        for name in ("a", "a long name that is written in two lines", "so long " * 10 + "that it is cut")
    ]
    axes = [re.findall(r'class="axis" d="([^"]*)"', chart)[0] for chart in charts]
    assert axes[0] == axes[1] == axes[2]
    lines = [re.findall(r'class="name clean"[^>]*>([^<]*)<', chart) for chart in charts]
    assert lines[:2] == [["a 1.0"], ["a long name that is", "written in two lines", "1.0"]]
    assert len(lines[2]) == 3
    assert "…" in " ".join(lines[2])
    assert lines[2][-1].endswith("it is cut 1.0")
    assert all(len(line) <= LONGEST_LABEL for line in lines[2])


def test_labels_of_several_lines_do_not_overlap() -> None:
    series = [Series(f"a name of the model number {n}", "clean", [(0.0, 0.5), (7.0, 1.0)]) for n in range(6)]
    chart = str(line_chart("t", series, x_title="x", y_text=str))
    places = sorted(float(y) for y in re.findall(r'class="name clean" x="[^"]*" y="([^"]*)"', chart))
    assert len(places) == 12
    assert all(after - before >= LABEL_LINE for before, after in pairwise(places))
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', chart)[1])
    assert 0 < places[0] < places[-1] < height


@pytest.mark.parametrize(("norm", "largest"), [("inf", 0.125), ("2", 0.0625)])
def test_the_change_is_grey_where_there_is_none(tmp_path: Path, norm: str, largest: float) -> None:
    """Linf fills the range from -eps to eps; in L2, whose eps no pixel reaches, the largest change does."""
    import base64
    import io

    from PIL import Image

    run = make_run(tmp_path / "run", evaluation=result(threat=ThreatInfo(norm, 0.125, "0.125")))
    keep_examples(run, largest)
    shown = list(pictures(read_runs([run])[0].evaluations[0]))
    assert [(picture.label, picture.predicted) for picture in shown] == [("7", "1"), ("2", "3")]
    data = base64.b64decode(shown[0].change.partition(",")[2])
    levels = np.asarray(Image.open(io.BytesIO(data)))
    assert levels[0, 0].tolist() == [255] * 3
    assert levels[3, 3].tolist() == [0] * 3
    assert levels[1, 2].tolist() == [128] * 3
    page = Page(report([run]))
    assert "87.5 %" in page.text
    assert "62.5 %" in page.text


def test_damaged_pictures_cost_a_warning_not_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluation=result())
    (run / "eval" / "pgd" / "examples.npz").write_bytes(b"PK torn")
    assert "examples.npz is damaged" in Page(report([run])).text


def test_what_is_no_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        report([tmp_path / "nowhere"])
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match="is a file"):
        report([file])
    with pytest.raises(UserError, match=r"metrics\.jsonl nor eval/\*/result\.json"):
        report([tmp_path])
    make_run(tmp_path / "inside", rows=metrics_rows())
    with pytest.raises(UserError, match=r"did you mean .*inside\?"):
        report([tmp_path])
    with pytest.raises(UserError, match="at least one"):
        report([tmp_path / "report.html"])  # `runs/*` also names an earlier page
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        "{}",
        json.dumps({**result().to_dict(), "version": 0}),
        json.dumps({**result().to_dict(), "measures": [{"name": "robust_accuracy", "value": float("nan")}]}),
        json.dumps({**result().to_dict(), "threat": {"norm": "inf", "eps": -1, "eps_text": "-1"}}),
        json.dumps({**result().to_dict(), "stages": [{"name": "pgd-20"}]}),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", evaluation=result())
    (run / "eval" / "pgd" / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"eval/pgd/result\.json: not"):
        report([run])


def test_the_page_goes_where_out_says(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluation=result())
    assert report([run], out=tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert report(str(run), out=tmp_path / "new") == tmp_path / "new" / "report.html"
    assert (tmp_path / "new" / "page.html").read_text() == (tmp_path / "new" / "report.html").read_text()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2.31), (-3, 1e-4), (0, 123456), (5, 5), (0, 0), (0, 1e-300)])
def test_ticks_cover_the_range_and_are_few(low: float, high: float) -> None:
    found = ticks(low, high, 5)
    assert found[0] <= low
    assert found[-1] >= high * (1 - 1e-9)
    assert 2 <= len(found) <= 8


def test_thinning_keeps_the_ends_the_mean_and_the_gaps() -> None:
    points = [(float(step), None if step == 500 else 1.0 + step % 2) for step in range(1000)]
    few = thinned(points, 100)
    assert len(few) == 100
    assert few[-1][0] == 999
    assert [y for _, y in few].count(None) == 1
    assert {y for _, y in few if y is not None} == {1.5}
    assert thinned(points[:100], 100) == points[:100]


def test_a_page_can_be_sent_by_mail(tmp_path: Path) -> None:
    """Photographs of 20 evaluations, noise that no format makes small: the first of each run are shown."""
    noise = np.random.default_rng(0).random((8, 3, 224, 224), np.float32).astype(np.float16)
    runs = [make_run(tmp_path / name, others=[at_eps(eps, 0.5) for eps in range(1, 11)]) for name in ("one", "two")]
    for run in runs:
        for folder in (run / "eval").iterdir():
            examples = Examples(
                clean=noise,
                adversarial=noise[::-1],
                **{name: np.zeros(8, int) for name in ("index", "label", "predicted")},
                **{name: np.zeros(8) for name in ("confidence_clean", "confidence_adversarial")},
            )
            write_examples(folder / "examples.npz", examples)
    path = report(runs)
    assert 1_000_000 < path.stat().st_size < 5_000_000
    page = Page(path)
    assert re.search(r"those of \d+ evaluations are left out", page.text)
    opened = [tag for tag, attrs in page.tags if tag == "details" and "open" in attrs]
    assert len(opened) == 2


@pytest.mark.parametrize("loss", [1e308, 10**400, -1e200, "text", [1], True])
def test_a_loss_that_no_chart_can_hold_leaves_a_gap(tmp_path: Path, loss: object) -> None:
    rows = metrics_rows(4)
    rows = [
        *rows[:1],
        *({**row, "loss": -loss if isinstance(loss, float) and i % 2 else loss} for i, row in enumerate(rows[1:])),
    ]
    page = Page(report([make_run(tmp_path / "run", rows=rows, evaluation=result())]))
    assert not re.search(r"\b(nan|inf|e\+\d{2,})\b", " ".join(str(attrs) for _, attrs in page.tags))
