"""`robustvit card`: a plan first, then the card; exit code 1 under a limit, 2 for what can't be."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from conftest import tiny_vit
from robustvit.cards.limits import Limit, parse_limits, under_limit
from robustvit.cli.main import app
from robustvit.core.card import FILE, PAGE, read_card, write_card
from robustvit.core.errors import UserError
from robustvit.core.progress import Progress, part_of
from robustvit.core.result import Measure, mean_accuracy_measure
from robustvit.models import save_model
from robustvit.reporting import open_card
from test_card import PRESET

FOG = {"name": "corruptions", "which": ["fog", "contrast"], "severities": [3]}
ROWS = [
    {"name": "clean", "suite": "accuracy", "images": 100},
    {"name": "robust", "suite": "pgd-2", "threat": {"eps": 0.1, "prefer_run": True}, "images": 50},
    {
        "name": "fog",
        "suite": FOG,
        "measures": {"fog": "mean_accuracy", "relative": "ce_relative_to_baseline"},
        "images": 10,
    },
    {"name": "imagenet-r", "suite": "imagenet-r"},
]


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Once for each worker: it would not load a second module of this name."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "linear.py").write_text("from conftest import linear_digits as build\n")
    (folder / "small.yaml").write_text(yaml.safe_dump({**PRESET, "rows": ROWS}))
    return folder


def card(place: Path, *more: str, run: str = "run", model: str = "linear.py:build"):
    given = [] if "--preset" in more else ["--preset", str(place / "small.yaml")]
    given += [] if "--data" in more else ["--data", "digits"]
    model = str(place / model) if model.startswith("linear") else model
    where = ["--run", str(place / run), "--device", "cpu", "--processes", "1"]
    return CliRunner().invoke(app, ["card", model, *given, *where, *more])


@pytest.fixture(scope="session")
def done(place):
    return card(place)


def test_a_plan_comes_first_then_the_numbers_and_the_page(place, done):
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[1].startswith("card 'small' of ")
    assert [line.split()[0] for line in lines[2:7]] == ["row", "clean", "robust", "fog", "imagenet-r"]
    shown = done.stdout.splitlines()
    assert shown[0].split() == ["measure", "value", "(95", "%),", "change", "from", "clean", "images", "protocol"]
    made = open_card(place / "run")
    for line, text in zip(made.lines, shown[1:], strict=False):
        assert text.split()[0] == line.name
        assert line.cells[0].text in text
    assert shown[-1] == str(place / "run" / PAGE)
    again = card(place)
    assert "3 of 4 rows to compute" in done.stderr
    assert "0 of 4 rows to compute, nothing to compute" in again.stderr
    assert again.stdout == done.stdout


def test_other_eps_are_for_rows_that_follow_the_run(place, done):
    made = card(place, "--eps", "0.2", "--images", "20", run="other")
    assert made.exit_code == 0, made.output
    assert "pgd-2 at Linf 0.2" in made.stderr
    assert "--eps: a card takes one" in card(place, "--eps", "0.1,0.2").output


def test_under_a_limit_the_exit_code_is_1(place, done):
    value = 100 * open_card(place / "run").measure("robust").value
    under = card(place, "--fail-under", f"robust={value + 0.5}")
    assert under.exit_code == 1
    assert under.stdout == done.stdout
    (said,) = [line for line in under.stderr.splitlines() if line.startswith("robustvit:")]
    assert f"robust of linear-build is {value:.1f} %" in said
    assert said.endswith(f", lower than {value + 0.5:g} %, which is within the interval")
    far = card(place, "--fail-under", "robust=99.9", "--fail-under", "clean=1")
    assert far.exit_code == 1
    assert far.stderr.rstrip().endswith("lower than 99.9 %")
    assert card(place, "--fail-under", f"robust={value}").exit_code == 0
    near = card(place, "--fail-under", f"robust={value - 0.5}")
    assert near.exit_code == 0
    assert "but the limit is within the interval" in near.stderr
    assert card(place, "--fail-under", "robust=1").stderr.count("robustvit:") == 0
    assert (
        "--fail-under robust=0.4 means 0.4 %; limits are in percent" in card(place, "--fail-under", "robust=0.4").stderr
    )


def test_a_finished_card_is_checked_from_its_files(place, done):
    file = str(place / "run" / FILE)
    checked = CliRunner().invoke(app, ["card", file, "--fail-under", "clean=1"])
    assert (checked.exit_code, checked.stdout) == (0, done.stdout)
    assert CliRunner().invoke(app, ["card", file, "--fail-under", "clean=100"]).exit_code == 1
    wrong = CliRunner().invoke(app, ["card", file, "--fail-under", "claen=1"])
    assert wrong.exit_code == 2
    assert "did you mean 'clean'?" in wrong.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--fail-under", "robst=40"], "the card has no 'robst'; did you mean 'robust'?"),
        (["--fail-under", "robust"], "--fail-under robust: expected NAME=PERCENT"),
        (["--fail-under", "robust=most"], "'most' is not a number"),
        (["--fail-under", "robust=140"], "a percentage is from 0 to 100"),
        (["--fail-under", "imagenet-r=3"], "--fail-under imagenet-r: the card won't have it (its images are not at"),
        (["--fail-under", "relative=3"], "--fail-under relative: takes accuracies and other fractions of images"),
        (["--fail-under", "mCE=3", "--preset", "standard"], "--fail-under mCE: takes accuracies and other fractions"),
        (["--eps", "0"], "--eps 0: allows no change at all"),
        (["--norm", "2", "--eps", "0.5"], "preset 'small': no row follows a given threat of L2 0.5; leave it out"),
        (["--preset", "tora", "--eps", "4/255"], "preset 'tora': no row follows a given threat of Linf 4/255"),
        (
            ["--preset", "understanding"],
            "preset 'understanding' sets data.preprocess: data.preprocess: no such setting",
        ),
        (
            ["--preset", "understanding", "-o", "data.preprocess.size=224"],
            "-o data.preprocess.size=224: preset 'understanding' sets data.preprocess itself; leave it out",
        ),
        (["--preset", "standard", "--fail-under", "shape=3"], "the preset has no such row for images of this size"),
        (["--preset", "standrd"], "no preset 'standrd'"),
        (["--data", "nowhere"], "no data 'nowhere'"),
        (["--path", "imagenet-r"], "--path imagenet-r: expected SUITE=FOLDER"),
        (["--path", "imagnet-r=x"], "path of 'imagnet-r': no row has this suite; did you mean 'imagenet-r'?"),
        (["--path", "imagenet-r=x"], "path of 'imagenet-r': 'x' is not there"),
        (["--images", "0"], "images: a whole number"),
    ],
)
def test_what_can_not_be_is_refused_before_any_work(place, more, words):
    refused = card(place, *more, run="never")
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.output
    assert not (place / "never").exists()


def test_models_that_are_none_are_refused(place, tmp_path):
    assert "no run folder (it has no recipe.yaml)" in card(place, model=str(tmp_path)).stderr
    assert "is not there: expected a run folder" in card(place, model="runs/nowhere").stderr
    lost = CliRunner().invoke(app, ["card", str(tmp_path / FILE)])
    assert lost.exit_code == 2
    assert "no card; robustvit card MODEL makes one" in lost.stderr


def test_options_that_a_finished_card_would_ignore_are_refused(place, done):
    for more, name in (
        (["--plan"], "--plan"), (["--preset", "quick"], "--preset"), (["--images", "3"], "--images"),
        (["--seed", "2"], "--seed"), (["-o", "threat.eps=0.3"], "-o"), (["--batch-size", "3"], "--batch-size"),
        (["--head", "rob"], "--head"),
    ):  # fmt: skip
        refused = CliRunner().invoke(app, ["card", str(place / "run" / FILE), *more])
        assert refused.exit_code == 2
        assert f"{name}: card.json is read as it is; leave the option out" in " ".join(refused.stderr.split())


def test_only_one_finished_card_is_read_at_a_time(place, done):
    refused = CliRunner().invoke(app, ["card", str(place / "run" / FILE), str(place / "run" / FILE)])
    assert refused.exit_code == 2
    assert "card.json: one card is read at a time; name one file, or the models" in " ".join(refused.stderr.split())


def test_one_folder_named_in_two_ways_is_one_model(place, done, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(tiny_vit(), path)
    same = path.parent / ".." / path.parent.name / path.name
    refused = CliRunner().invoke(
        app, ["card", str(path), str(same), "--data", "digits", "--plan", "--run", str(tmp_path)]
    )
    assert refused.exit_code == 2
    assert "is there twice; name each model once" in " ".join(refused.stderr.split())


def test_a_shape_bias_has_limits_too(place, done):
    made = open_card(place / "run")
    line = made.line("robust")
    bias = Measure("shape_bias", 0.27, (0.2, 0.3), kind="fraction")
    one = replace(made, lines=(replace(line, cells=(replace(line.cells[0], measure=bias),)),))
    assert [len(part) for part in under_limit(one, [Limit("robust", 40)])] == [1, 0]
    drop = replace(bias, kind="difference")
    one = replace(made, lines=(replace(line, cells=(replace(line.cells[0], measure=drop),)),))
    with pytest.raises(UserError, match="--fail-under robust: takes accuracies and other fractions"):
        under_limit(one, [Limit("robust", 40)])


def test_limits_are_of_every_model_and_of_exact_values(place, done):
    made = open_card(place / "run")
    line = made.line("robust")
    measures = [Measure("robust_accuracy", value, (0.2, 0.5), kind="accuracy") for value in (0.29, 0.28999)]
    line = replace(line, cells=tuple(replace(line.cells[0], measure=measure) for measure in measures))
    two = replace(made, models=(made.models[0], replace(made.models[0], name="other")), lines=(line,))
    under, unsure = under_limit(two, [Limit("robust", 29)])
    assert [text.split(" is ")[0] for text in under] == ["robust of other"]
    assert len(unsure) == 1
    half = mean_accuracy_measure("mean_accuracy", np.random.default_rng(1).permutation(150).reshape(3, 50) < 75)
    assert half.value < 0.5, "by rounding alone"
    line = replace(line, cells=(replace(line.cells[0], measure=half),))
    assert under_limit(replace(made, lines=(line,)), [Limit("robust", 50)])[0] == []
    assert len(under_limit(replace(made, lines=(line,)), [Limit("robust", 50.001)])[0]) == 1
    known = ["clean", "robust"]
    assert parse_limits(["robust=40", "clean=90.5"], known) == [Limit("robust", 40), Limit("clean", 90.5)]


def test_presets_are_listed():
    listed = CliRunner().invoke(app, ["list", "presets"])
    assert [line.split()[0] for line in listed.output.splitlines()] == ["quick", "standard", "tora", "understanding"]


def test_progress_names_the_job_that_it_is_part_of(capsys, monkeypatch):
    monkeypatch.setattr("robustvit.core.progress.PLAIN_SECONDS", -1.0)
    with part_of("2 of 3, robust"), Progress("apgd", 10) as progress:
        progress.advance(4)
    assert capsys.readouterr().err.startswith("2 of 3, robust: apgd: 4/10 images")
    with Progress("apgd", 10) as progress:
        progress.advance(4)
    assert capsys.readouterr().err.startswith("apgd: 4/10")


MEASURED = "<script>document.title = [...document.querySelectorAll('.numbers, .numbers *')].every(\
one => one.getBoundingClientRect().right <= innerWidth) ? 'all is on the page' : 'cut off'</script></body>"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to open the page in")
def test_four_models_fit_on_narrow_screens_and_two_printed_pages(place, done, tmp_path):
    from test_report_browser import OFFLINE, QUIETLY

    shutil.copytree(place / "run", tmp_path / "run")
    card = read_card(tmp_path / "run" / FILE)
    models = tuple(replace(card.models[0], name=f"{card.models[0].name}-{number}") for number in range(4))
    write_card(tmp_path / "run", replace(card, models=models))
    page = open_card(tmp_path / "run").page
    options = (*QUIETLY, OFFLINE, f"--user-data-dir={tmp_path / 'profile'}")
    subprocess.run(["chromium", *options, f"--print-to-pdf={tmp_path / 'card.pdf'}", page.as_uri()], check=True)
    assert (tmp_path / "card.pdf").read_bytes().count(b"/Type /Page\n") <= 2
    page.write_text(page.read_text().replace("</body>", MEASURED).replace("Content-Security-Policy", "nothing"))
    for width in (500, 800, 1280):
        size = f"--window-size={width},1500"
        shown = subprocess.run(
            ["chromium", *options, size, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True
        ).stdout
        assert "<title>all is on the page</title>" in shown, width


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to open the page in")
def test_a_browser_reads_and_prints_the_card_without_complaint(place, done, tmp_path):
    from test_report_browser import OFFLINE, QUIETLY, opened

    page = tmp_path / PAGE
    shutil.copy(place / "run" / PAGE, page)
    text, complaints = opened(page)
    assert not complaints
    assert "not measured" in text
    options = (*QUIETLY, OFFLINE, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={tmp_path / 'card.pdf'}")
    subprocess.run(["chromium", *options, page.as_uri()], capture_output=True, check=True)
    assert (tmp_path / "card.pdf").read_bytes().count(b"/Type /Page\n") == 1, "one printed page"
