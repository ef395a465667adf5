"""Laws of the report: it says what the files say, trusts nothing in them, and asks nothing of the outside."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustvit.core.errors import UserError
from robustvit.reporting import report
from robustvit.reporting.charts import thinned, ticks
from robustvit.reporting.pictures import pictures
from robustvit.reporting.read import read_runs

VOID = {"meta", "link", "br", "img", "line", "circle", "path", "input", "hr"}


class Page(HTMLParser):
    """Every tag with its attributes, the text of each table row, and whether tags close in the order they opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        self.text += data
        if "tr" in self.open:
            self.rows[-1] += data

    def classed(self, tag: str, word: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag and word in (attrs.get("class") or "").split()]


def metrics_rows(steps: int = 5) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        place = {"total_step": 10 * step, "phase": "main", "step": 10 * step, "epoch": step / 2}
        rows.append({**place, "kind": "train", "loss": 2.0 / step, "clean_accuracy": 0.5, "robust_accuracy": 0.25})
    rows.append({**place, "kind": "validation", "clean_accuracy": 0.75, "robust_accuracy": 0.5})
    return rows


def result(**changes: Any) -> dict[str, Any]:
    stage = {"name": "pgd-20", "fell": 60, "unverified": 0, "robust_accuracy": 0.8, "seconds": 1.5, "passes": 6000}
    return {
        "suite": "pgd-20",
        "clean_accuracy": 348 / 360,
        "clean_interval": [0.9426, 0.9808],
        "robust_accuracy": 0.8,
        "interval": [0.7556, 0.8381],
        "num_images": 360,
        "images_rule": "all 360",
        "data": "digits/test",
        "threat": {"norm": "inf", "eps": 8 / 255, "eps_text": "8/255"},
        "attacks": [{**stage, "settings": {"name": "pgd", "steps": 20}}],
        "seed": 17,
        "precision": "float32",
        "threads": 3,
        "device": "cpu",
        "model": {"name": "vit"},
        "checkpoint": {"path": "checkpoints/best.safetensors", "sha256": "abc123", "rule": "best on the hold-out"},
        "warnings": [],
        "versions": {"torch": "9.8.7"},
        "command": "robustvit evaluate run",
        **changes,
    }


def make_run(folder: Path, *, rows: list[dict[str, Any]] | None = None, evaluation: Any = None) -> Path:
    folder.mkdir(parents=True)
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "recipe.yaml").write_text("name: tiny-recipe\nseed: 0\n")
    if evaluation is not None:
        (folder / "eval" / "pgd").mkdir(parents=True)
        (folder / "eval" / "pgd" / "result.json").write_text(json.dumps(evaluation))
    return folder


def keep_examples(run: Path, eps: float) -> None:
    clean = np.full((2, 3, 4, 4), 0.5, np.float16)
    adversarial = clean.copy()
    adversarial[:, :, 0, 0] += eps
    adversarial[:, :, 3, 3] -= eps
    np.savez(
        run / "eval" / "pgd" / "examples.npz",
        index=np.array([4, 9]),
        clean=clean,
        adversarial=adversarial,
        label=np.array([7, 2]),
        predicted=np.array([1, 3]),
        confidence_clean=np.array([0.875, 0.75]),
        confidence_adversarial=np.array([0.625, 0.5]),
    )


def test_one_run_says_what_its_result_says(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=metrics_rows(), evaluation=result())
    path = report([run])
    assert path == run / "report.html"
    page = Page(path)
    row = page.rows[1]
    for said in ("run", "pgd-20", "Linf 8/255", "digits/test", "96.7 %", "80.0 %", "75.6 % to 83.8 %", "all 360"):
        assert said in row
    for setting in ("tiny-recipe", "abc123", "best on the hold-out", "9.8.7", "robustvit evaluate run", "steps: 20"):
        assert setting in page.text


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
    evaluation = result(suite=attack, data=attack, warnings=[attack], command=attack, images_rule='"><img src=x>')
    evaluation["attacks"][0]["settings"] = {attack: attack}
    run = make_run(tmp_path / name, rows=[*metrics_rows(), row], evaluation=evaluation)
    (run / "recipe.yaml").write_text(f"name: '{attack}'\n")
    page = Page(report([run]))
    assert attack in page.text
    assert name in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert not any(tag == "img" for tag, _ in page.tags)


def test_warnings_are_in_their_box_only_if_there_are_any(tmp_path: Path) -> None:
    calm = make_run(tmp_path / "calm", evaluation=result())
    loud = make_run(tmp_path / "loud", evaluation=result(warnings=["gradients look masked"]))
    assert not Page(report([calm])).classed("div", "warnings")
    page = Page(report([loud]))
    assert page.classed("div", "warnings")
    assert "gradients look masked" in page.text


def test_two_runs_share_one_page(tmp_path: Path) -> None:
    rows = metrics_rows()
    strong = make_run(tmp_path / "strong", rows=rows, evaluation=result())
    weak = make_run(tmp_path / "weak", rows=rows, evaluation=result(robust_accuracy=0.1, interval=[0.05, 0.15]))
    path = report([weak, strong])
    assert path == tmp_path / "report.html"
    page = Page(path)
    assert [row.split()[0] for row in page.rows[1:3]] == ["weak", "strong"]
    assert len(page.classed("svg", "chart")) == 4
    assert ["highest" in row for row in page.rows[1:3]] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"suite": "pgd-10"},
        {"data": "digits/train"},
        {"images_rule": "100 of 360 at random, seed 0"},
        {"threat": {"norm": "2", "eps": 0.5, "eps_text": "0.5"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_only_like_is_ranked_with_like(tmp_path: Path, change: dict[str, Any]) -> None:
    one = make_run(tmp_path / "one", evaluation=result())
    other = make_run(tmp_path / "other", evaluation=result(**change))
    assert not Page(report([one, other])).classed("tr", "best")


def test_a_suite_without_attacks_claims_no_robustness(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluation=result(suite="clean", attacks=[]))
    assert "not attacked" in Page(report([run])).rows[1]


def test_runs_of_one_name_are_told_apart_and_the_same_one_is_shown_once(tmp_path: Path) -> None:
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
    loss = next(attrs["d"] for tag, attrs in page.tags if tag == "path")
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


@pytest.mark.parametrize(("norm", "largest"), [("inf", 0.125), ("2", 0.0625)])
def test_the_change_is_grey_where_there_is_none(tmp_path: Path, norm: str, largest: float) -> None:
    """Linf fills the range from -eps to eps; in L2, whose eps no pixel reaches, the largest change does."""
    import base64
    import io

    from PIL import Image

    threat = {"norm": norm, "eps": 0.125, "eps_text": "0.125"}
    run = make_run(tmp_path / "run", evaluation=result(threat=threat))
    keep_examples(run, largest)
    shown = list(pictures(read_runs([run])[0].evaluations[0]))
    assert [(picture.label, picture.predicted) for picture in shown] == [(7, 1), (2, 3)]
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
        report([])
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", json.dumps(result(interval=[0.5])), json.dumps(result(robust_accuracy=float("nan"))), "{}"],
)
def test_a_damaged_result_is_named(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", evaluation=result())
    (run / "eval" / "pgd" / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"eval/pgd/result\.json: not"):
        report([run])


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
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


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to open the page in")
def test_a_browser_opens_it_without_complaint(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rows=metrics_rows(), evaluation=result()) for name in ("one", "two")]
    keep_examples(runs[0], 8 / 255)
    page = report(runs)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        ["chromium", *options, "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    table = re.search(r'<section id="headline">.*?</table>', done.stdout, re.DOTALL)
    assert table is not None
    assert "75.6 % to 83.8 %" in table[0]
    buttons = re.findall(r"<button[^>]*>", done.stdout)
    assert buttons
    assert not any("hidden" in button for button in buttons)  # the page's script was allowed to run
