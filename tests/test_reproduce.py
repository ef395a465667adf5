"""The papers' tables and figures: all of them are there, and what is said of a claim follows from stored results."""

import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.core.component import registered
from robustvit.core.config import load_recipe, load_sweep
from robustvit.core.errors import UserError
from robustvit.core.files import write_text
from robustvit.core.finding import Finding
from robustvit.core.numbers import crossed_interval, mean_interval
from robustvit.core.result import as_control
from robustvit.evaluation import evaluate, evaluator_from
from robustvit.models import fingerprint, load_model
from robustvit.models.zoo import PREFIX, zoo_names
from robustvit.planning import hardware_from
from robustvit.reproduce import find_entries, load_paper, paper_names
from robustvit.reproduce.compare import compared, effect, printed
from robustvit.reproduce.entries import Arm, Comparison, Entry, Full, Small, seen_by_us
from robustvit.reproduce.finding import entry_finding
from robustvit.reproduce.full import absent, costs, full_commands, trainings
from robustvit.reproduce.listing import lines_of
from robustvit.reproduce.page import write_claims
from robustvit.reproduce.run import run_small, stored_findings
from robustvit.reproduce.swept import points_of, swept_results
from robustvit.reproduce.verdict import NO_CLAIM, OURS, verdict
from robustvit.threats import LpBall
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import Sweep, sweep_from

ENTRIES = {entry.name: entry for name in paper_names() for entry in load_paper(name).entries.values()}
FORMS = [
    (entry, form)
    for entry in ENTRIES.values()
    for form in (entry.small, *(entry.full.stored if entry.full else ()))
    if form
]
ZOO = [f"{PREFIX}{name}" for name in zoo_names()]
COUNTS = {"beats-wrn": (6, 3), "light": (11, 18), "aas": (5, 5), "understanding": (5, 34), "tora": (3, 3)}
NOT_PRINTED = {
    "aas/table-3": {"random - searched", "twice - then AAS", "TRADES, random", "ViT's gain - WRN's"},
    "aas/figure-1": {
        "random - searched",
        "twice - then AAS",
        *(f"{attack}, logits" for attack in ("FGSM", "PGD-100", "CW", "DLR", "GAMA")),
    },
    "aas/table-5": {"every 3 - 1", "AAS-AT - random"},
    "aas/figure-4": {f"{steps} steps{judge}" for steps in (10, 50) for judge in ("", ", scaled")},
    "beats-wrn/table-3": {"ViT's gain - WRN's"},
    "beats-wrn/table-5": {"Lion - SGD 0.2, robust", "Muon - AdamW, robust", "Muon - Lion, robust"},
    "light/table-8": {"class - another"},
    "light/table-11": {"gap"},
    "tora/table-1": {"0.9 - 0.1, AutoAttack"},
    "tora/table-3": {f"TORA - {other}, AA" for other in ("AdapterFusion", "single", "head")},
    "understanding/figure-3": {"spatial grid"},
    "understanding/figure-6": {"shape, 16 - 4", "spatial, 4 - 8", "spatial, 4 - 16"},
}
"""Comparisons for which a paper that prints others has no numbers."""
WITHOUT_NUMBERS = (
    "aas/figure-3", "aas/figure-5", "light/figure-7", "light/figure-12", "tora/figure-2",
    *(f"understanding/figure-{number}" for number in (2, 8, 9, *range(10, 30), 34)),
)  # fmt: skip
"""Pictures."""


def reproduce(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("name", COUNTS)
def test_every_table_and_figure_is_there(name):
    tables, figures = COUNTS[name]
    expected = [f"table-{n}" for n in range(1, tables + 1)] + [f"figure-{n}" for n in range(1, figures + 1)]
    assert list(load_paper(name).entries) == expected


@pytest.mark.parametrize("name", ENTRIES)
def test_what_an_entry_names_exists(name):
    entry = ENTRIES[name]
    commands = [*(entry.full.commands if entry.full else ()), *(entry.small.commands if entry.small else ())]
    group = get_command(app)
    for command in commands:
        program, name, *rest = shlex.split(command)
        assert program == "robustvit"
        group.get_command(None, name).make_context(name, rest)
    if entry.full is not None:
        assert all(map(load_recipe, entry.full.recipes))
        assert all(map(load_sweep, entry.full.sweeps))
        assert entry.full.recipes or entry.full.sweeps or entry.full.commands
    for text in (entry.claim, entry.no_full, entry.no_small):
        assert not text.endswith(".")


@pytest.mark.parametrize(("entry", "form"), FORMS, ids=lambda value: getattr(value, "name", ""))
def test_arms_are_runs_of_the_sweep_or_models_and_the_paper_has_them_in_this_order(entry, form):
    sweep = sweep_from(form.sweep, []) if form.sweep is not None else None
    for name, arm in form.arms.items():
        printed(entry, form, arm)
        if sweep is None:
            assert arm.model in ZOO, name
            assert arm.suite.partition(":")[0] in registered("analysis") or evaluator_from(
                arm.suite, LpBall("inf", 0.1)
            )
            continue
        assert arm.suite is None or arm.suite in map(str, sweep.suites), name
        assert arm.head is None or arm.head in sweep.heads, name
    for comparison in form.compare:
        seeds = {frozenset(points_of(sweep, form.arms[name])) for name in comparison.arms if sweep is not None}
        assert len(seeds) == (sweep is not None)
        size = effect(entry, form, comparison)
        unknown = comparison.label in NOT_PRINTED.get(entry.name, ()) or entry.name in WITHOUT_NUMBERS
        assert (size is None) == unknown, comparison.label
        assert size is None or size > 0, comparison.claim
        assert len(comparison.label) <= 24, "rows of the chart are cut"


@pytest.mark.parametrize(
    ("interval", "size", "expected"),
    [
        ((0.01, 0.05), 0.2, "seen"),
        ((0.01, 0.05), None, "seen"),
        ((-0.05, -0.01), 0.2, "opposite"),
        ((-0.02, 0.05), 0.2, "not seen"),
        ((-0.02, 0.05), 0.03, "too noisy"),
        ((-0.02, 0.05), 0.05, "too noisy"),
        ((0.0, 0.05), 0.2, "not seen"),
        ((-0.05, 0.0), 0.01, "not seen"),
        ((-0.02, 0.05), None, "too noisy"),
        (None, 0.2, "too noisy"),
    ],
)
def test_the_rule_of_the_verdict(interval, size, expected):
    assert verdict(interval, size) == expected


@pytest.mark.parametrize(
    ("by_seed", "by_image", "rest"), [(0.02, 0.3, 0.3), (0, 0, 0.5), (0.1, 0, 0.3), (0, 0.4, 0.1), (0.05, 0.1, 0.1)]
)
def test_the_interval_holds_the_mean_as_often_as_it_says(by_seed, by_image, rest):
    random, truth, hits = np.random.default_rng(0), 0.05, 0
    for _ in range(400):
        seeds, images = random.normal(size=(3, 1)), random.normal(size=(1, 200))
        values = truth + by_seed * seeds + by_image * images + rest * random.normal(size=(3, 200))
        low, high = crossed_interval(values, -9, 9)
        hits += low <= truth <= high
    assert 0.92 <= hits / 400 <= 0.995


def test_few_seeds_that_differ_widen_the_interval_and_one_is_an_interval_over_images():
    random = np.random.default_rng(1)
    images = random.normal(size=(1, 400))
    narrow = np.diff(crossed_interval(np.repeat(images, 3, 0), -9, 9))[0]
    assert narrow == pytest.approx(np.diff(mean_interval(images[0], -9, 9))[0], rel=0.01)
    by_seed = np.array([[-0.5], [0.0], [0.5]])
    wide = crossed_interval(by_seed + 0.01 * images, -9, 9)
    assert wide[1] - wide[0] == pytest.approx(2 * 4.303 * 0.5 / 3**0.5, rel=0.02)  # t with 2 degrees of freedom
    assert crossed_interval(images, -9, 9) == mean_interval(images[0], -9, 9)
    both = crossed_interval(0.1 * by_seed + images, -9, 9)  # nothing is left over: the two add in squares
    assert (both[1] - both[0]) ** 2 == pytest.approx((0.1 * (2 * 4.303 * 0.5 / 3**0.5)) ** 2 + narrow**2, rel=0.01)
    assert crossed_interval(by_seed, -9, 9) == mean_interval(by_seed[:, 0], -9, 9)
    low, high = crossed_interval(np.zeros((3, 100)))
    assert low < 0 < high
    assert crossed_interval(np.zeros((1, 1))) is None


SWEEP = {
    "name": "mine", "recipe": "digits/standard", "suite": ["fgsm", "pgd-3"], "images": 40,
    "cases": [{"optimizer": {"opt": "adamw", "lr": 0.006}}, {"optimizer": {"opt": "sgd", "lr": 1.0e-5}}],
    "grid": {
        "epochs": [3], "batch_size": [256], "validation.hold_out": [0], "model.settings.depth": [1],
        "model.settings.embed_dim": [12], "threat.eps": [0.02], "seed": [0, 1],
    },
}  # fmt: skip


def entry_of(sweep: str) -> Entry:
    arms = {
        "adamw": Arm(of={"optimizer.opt": "adamw"}, suite="pgd-3", printed={"clean": 90.0, "robust": 60.0}),
        "sgd": Arm(of={"optimizer.opt": "sgd"}, suite="pgd-3", printed={"clean": 70.0}),
    }
    compare = (
        Comparison("AdamW is better", "clean", ("adamw",), ("sgd",), "clean"),
        Comparison("AdamW is <b>more</b> robust", "robust", ("adamw",), ("sgd",)),
    )
    small = Small(sweep=sweep, column="PGD-3", arms=arms, compare=compare)
    full = Full(recipes=("digits/trades",), suite="pgd-3", images=100, stored=(small,))
    return Entry("light/table-1", "Table I", "a claim", full, small)


@dataclass(frozen=True)
class Ran:
    """A small form that was stopped in the middle, and then went on."""

    entry: Entry
    root: Path
    finding: Finding
    before: dict[Path, int]
    """Weights that were there when it was stopped, with the times of their files."""
    sweep: Sweep
    outcomes: list


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    from robustvit.training import sweep as module

    root = tmp_path_factory.mktemp("reproduce")
    write_text(root / "sweep.yaml", yaml.safe_dump(SWEEP))
    entry, begun, trained = entry_of(str(root / "sweep.yaml")), [], module.train

    def stopped(recipe, **options):
        begun.append(recipe.seed)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return trained(recipe, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_small(entry, root, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("last.safetensors")}
    assert stored_findings(entry, root) == []
    finding, sweep = run_small(entry, root, quiet=True), sweep_from(entry.small.sweep, [])
    return Ran(entry, root, finding, before, sweep, run_sweep(sweep, root / "mine", quiet=True))


def test_a_small_form_that_was_stopped_goes_on(ran):
    assert len(ran.before) == 2
    assert all(path.stat().st_mtime_ns == time for path, time in ran.before.items())
    assert len(list(ran.root.rglob("last.safetensors"))) == 4
    (stored,) = stored_findings(ran.entry, ran.root)
    assert stored.facts["verdicts"] == ran.finding.facts["verdicts"]


def test_stored_results_of_other_questions_are_not_taken(ran, tmp_path):
    """The same suite on fewer images, at another eps or of other weights."""
    root = tmp_path / "runs"
    shutil.copytree(ran.root, root)
    run = next(path.parent.parent for path in sorted((root / "mine").rglob("last.safetensors")))
    for change in ({"images": 20}, {"threat": LpBall("inf", 0.3)}):
        evaluate(run, suite="pgd-3", **{"images": 40, "threat": LpBall("inf", 0.02), "run": run, **change}, quiet=True)
    (stored,) = stored_findings(ran.entry, root)
    assert stored.facts["verdicts"] == ran.finding.facts["verdicts"]
    other = next(path for path in (root / "mine").rglob("last.safetensors") if path.parent.parent != run)
    shutil.copy(other, run / "checkpoints" / "last.safetensors")
    assert stored_findings(ran.entry, root) == []


def test_verdicts_follow_from_the_outcomes_of_images(ran):
    results = {point.folder: outcome for point, outcome in ran.outcomes}
    rows = {}
    for name, arm in ran.entry.small.arms.items():
        own = [results[point.folder][1] for point in points_of(ran.sweep, arm).values()]
        rows[name] = np.stack([result.outcomes.correct for result in own]).astype(float)
    clean, robust = ran.finding.facts["verdicts"]
    differences = rows["adamw"] - rows["sgd"]
    assert clean["difference"] == pytest.approx(differences.mean())
    assert clean["interval"] == pytest.approx(crossed_interval(differences))
    assert (clean["seeds"], clean["images"], clean["paper"]) == (2, 40, pytest.approx(0.2))
    assert clean["verdict"] == verdict(clean["interval"], 0.2)
    assert robust["paper"] is None


def test_the_page_has_the_numbers_and_nothing_from_elsewhere(ran, tmp_path):
    clean = ran.finding.facts["verdicts"][0]
    page = write_claims(tmp_path / "page.html", "A paper", "a claim", [ran.finding]).read_text()
    assert f"{100 * clean['difference']:+.1f}" in page
    assert f">{clean['verdict']}</td>" in page
    assert OURS not in page
    compare = (replace(ran.entry.small.compare[0], ours=True), *ran.entry.small.compare[1:])
    results = swept_results(ran.entry.small, ran.sweep, ran.outcomes)
    control = entry_finding(ran.entry, replace(ran.entry.small, compare=compare), results)
    assert OURS in write_claims(tmp_path / "control.html", "A paper", "a claim", [control]).read_text()
    assert control.tables[0].columns[4].startswith("robust: paper")
    assert "AdamW is &lt;b&gt;more&lt;/b&gt; robust" in page
    assert "crossed random factors" in page
    assert not re.search(r"(src|href)=.https?:", page)


def test_a_difference_of_differences_adds_up_and_other_images_are_not_paired(ran):
    outcomes, form = ran.outcomes, ran.entry.small
    twice = Comparison("twice", "twice", ("adamw", "adamw"), ("sgd", "sgd"), "clean")
    known = swept_results(form, ran.sweep, outcomes)
    once, both = (compared(ran.entry, form, known, one) for one in (form.compare[0], twice))
    assert both.difference.value == pytest.approx(2 * once.difference.value)
    assert both.effect == pytest.approx(2 * once.effect)
    (point, results), *others = outcomes
    moved = replace(results[1], provenance=replace(results[1].provenance, data_sha256="0"))
    with pytest.raises(UserError, match="none can be paired"):
        entry_finding(ran.entry, form, swept_results(form, ran.sweep, [(point, (results[0], moved)), *others]))
    with pytest.raises(UserError, match="out of memory"):
        swept_results(form, ran.sweep, [(point, UserError("out of memory")), *others])


def test_full_scale_prints_commands_cost_and_what_is_not_here(tmp_path, monkeypatch):
    entry = entry_of("sweeps/digits_light")
    monkeypatch.chdir(tmp_path)
    assert list(full_commands(entry, tmp_path)) == [
        f"robustvit train digits/trades --run {tmp_path}/digits-trades",
        f"robustvit evaluate {tmp_path}/digits-trades --suite pgd-3 --images 100",
    ]
    (line,) = costs(entry, hardware_from("a100-80gb:8", "float32"))
    assert line.startswith("digits/trades: ")
    assert absent(entry) == []
    assert absent(ENTRIES["light/table-1"]) == ["data: path: no folder 'imagenet'; expected CLASS/*.png below it"]
    for name in ("light/figure-1", "light/table-7", "aas/table-5"):
        commands = list(full_commands(ENTRIES[name], tmp_path))
        assert commands[0] == "robustvit train imagenet/xcit_s12_light_8 --run runs/imagenet-xcit-s12-light-8", (
            "where the recipes that start from it look for it"
        )
        assert not any("xcit" in text for text in absent(ENTRIES[name])), "its own commands make them"
        assert any(line.startswith("imagenet/xcit_s12_light_8: ") for line in lines_of_costs(ENTRIES[name]))
    assert not any("start" in text for text in absent(ENTRIES["tora/table-2"])), "the sweep makes them"


def test_the_cost_counts_what_the_runs_of_a_sweep_start_from_once():
    titles = list(trainings(ENTRIES["tora/table-2"]))
    (first,) = (title for title in titles if ", first: " in title)
    assert titles.index(first) == 0
    sweeps = len(ENTRIES["tora/table-2"].full.sweeps)
    trained = [line for line in full_commands(ENTRIES["tora/table-2"], Path("runs")) if " train " in line]
    assert sweeps == 2
    assert len(dict.fromkeys(trained)) == len(titles)


def test_recipes_at_full_scale_have_the_settings_that_their_analyses_need():
    entry = ENTRIES["light/figure-7"]
    trained = [line for line in full_commands(entry, Path("runs")) if line.startswith("robustvit train ")]
    assert len(trained) == 4
    assert all("-o checkpoints.every=10 --run runs/" in line for line in trained)
    assert {recipe.checkpoints.every for recipe in trainings(entry).values()} == {10}
    listed = [line for line in lines_of(entry) if "robustvit train imagenet/xcit_s12_light " in line]
    assert "-o checkpoints.every=10; robustvit evaluate" in listed[0]


def test_both_parts_of_absent_data_are_named(tmp_path, monkeypatch):
    (tmp_path / "imagenet" / "train" / "n01440764").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "imagenet" / "train" / "n01440764" / "1.png")
    monkeypatch.chdir(tmp_path)
    (text,) = absent(ENTRIES["light/table-1"])
    assert "val" in text


def test_a_damaged_stored_run_is_named_and_the_next_entry_follows(tmp_path, monkeypatch):
    from robustvit.reproduce import run as module

    monkeypatch.setattr(module, "stored_findings", lambda entry, root: _raised(UserError("runs/x: damaged")))
    monkeypatch.setattr("robustvit.reproduce.full.costs", lambda entry, device: [])
    code, output = reproduce("tora", "--scale", "full", "--runs", tmp_path)
    assert code == 0
    assert output.count("# not drawn from stored results: runs/x: damaged") == 5
    assert "# tora/figure-3: " in output


def _raised(error: Exception):
    raise error


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_computed(tmp_path, monkeypatch):
    from robustvit.reproduce import run as module

    monkeypatch.setattr(module, "run_small", lambda entry, root: pytest.fail("computed first"))
    (tmp_path / "file").touch()
    code, output = reproduce("understanding/figure-8", "--runs", tmp_path / "file")
    assert code == 2
    assert re.search("file': can't be used as a folder", output.replace("\n", ""))


def test_the_readme_counts_the_claims_that_it_lists():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    summary, listed = text.split("<!-- claims, made by")[1].split("<details>")
    kinds = ("seen", "opposite", "not seen", "too noisy")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in listed.splitlines() if line.startswith("| [")]
    counts = [
        [cell.strip() for cell in line.split("|")[2:6]] for line in summary.splitlines() if re.search(r"\| \d", line)
    ]
    assert [sum(int(row[number]) for row in counts) for number in range(4)] == [
        sum(row[-1] == kind for row in rows) for kind in kinds
    ]
    ours = [row for row in rows if OURS in row[1]]
    assert [int(count) for count in counts[-1]] == [sum(row[-1] == kind for row in ours) for kind in kinds]
    assert ours


def lines_of_costs(entry: Entry) -> list[str]:
    first = replace(entry, full=replace(entry.full, sweeps=(), recipes=()))  # the others take long to plan
    return list(costs(first, hardware_from("a100-80gb:8", "float32")))


def test_the_list_shows_every_entry(tmp_path):
    code, output = reproduce("--list")
    assert code == 0
    assert len(re.findall(r"^[a-z-]+/(?:table|figure)-\d+  ", output, re.M)) == len(ENTRIES) == 93
    assert "robustvit sweep sweeps/beats_wrn_optimizer\n" in output
    assert "generated/edm-50m.npz, the 50 million images" in output
    assert "    first  robustvit train digits/standard_token --run runs/digits-standard-token\n    small" in output
    assert (
        "robustvit train imagenet/xcit_s12_canonical; robustvit evaluate RUN --suite autoattack --images 5000" in output
    )
    lines = list(lines_of(ENTRIES["understanding/figure-6"]))
    assert "    with   data/cue-conflict: the cue-conflict images of Geirhos et al., as a folder" in lines
    assert "    with   the data cifar10 below ROBUSTVIT_DATA" in list(lines_of(ENTRIES["aas/table-3"]))
    assert not any(line.startswith("    with") for line in lines_of(ENTRIES["tora/table-1"]))
    assert "    small  a drawing" in "\n".join(lines_of(ENTRIES["tora/figure-1"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say which paper"),
        (("beats-wm",), "no paper 'beats-wm'; did you mean 'beats-wrn'"),
        (("tora/table-4",), "no 'table-4' in Trade-off between.*there are table-1, table-2, table-3, figure-1"),
        (("tora", "--scale", "huge"), "--scale huge: small or full"),
        (
            ("understanding/table-1",),
            "understanding/table-1 has no small form: sizes are counted, not run; --scale full prints",
        ),
        (("",), "no paper ''; known: aas"),
        (("light/figure-ii",), "light/figure-2 has no small form: a drawing $"),
    ],
)
def test_mistakes_are_reported(arguments, message):
    code, output = reproduce(*arguments)
    assert code == 2
    assert re.search(message, output.replace("\n", " "))


def test_what_the_runs_start_from_is_made_first(tmp_path, monkeypatch):
    """And where it is absent all the same, it is named before any training."""
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr("robustvit.cli.reproduce._run_commands", begun.extend)
    code, output = reproduce("beats-wrn/table-3", "--runs", tmp_path)
    assert [" ".join(words) for words in begun] == list(ENTRIES["beats-wrn/table-3"].small.prepare)
    assert code == 2
    assert "generated/digits" in output
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_arm_of_a_sweep_may_be_the_control_of_its_suite(ran):
    sgd, form = replace(ran.entry.small.arms["sgd"], control=True), ran.entry.small
    form = replace(form, arms={"sgd": sgd}, compare=(Comparison("-", "-", ("sgd",), ("sgd",)),))
    with pytest.raises(UserError, match="pgd-3 has no control; only a search has one"):
        swept_results(form, ran.sweep, ran.outcomes)
    fgsm, pgd = ran.outcomes[2][1]
    control = as_control("random factors", fgsm)  # next to it, as those of searches are
    named = [(point, (results[0], replace(results[1], control=control))) for point, results in ran.outcomes]
    point, (first, second) = named[2]
    named[2] = (point, (first, replace(second, folder=pgd.folder)))
    alone = replace(sgd, of={"optimizer.opt": "sgd", "seed": point.settings["seed"]})
    (found,) = swept_results(replace(form, arms={"sgd": alone}), ran.sweep, named)["sgd"]
    assert (found.title, found.folder) == ("fgsm", fgsm.folder)


def test_settings_of_forms_that_do_not_fit(ran):
    with pytest.raises(ValueError, match="arms: 'sgd': eps belongs to given models"):
        replace(ran.entry.small, arms=ran.entry.small.arms | {"sgd": replace(ran.entry.small.arms["sgd"], eps=0.1)})


def test_a_paper_goes_on_after_an_entry_that_fails_and_says_so(ran, tmp_path, monkeypatch):
    from robustvit.reproduce import run as module

    begun = []

    def run_small(entry, root):
        begun.append(entry.name)
        if entry.name == "tora/table-1":
            raise UserError("tora/table-1: no weights")
        return ran.finding

    monkeypatch.setattr(module, "run_small", run_small)
    monkeypatch.setattr("robustvit.cli.reproduce._run_commands", lambda commands: begun.append(commands[-1][-1]))
    code, output = reproduce("tora", "--runs", tmp_path / "big")
    token = "runs/digits-standard-token"  # which is made before each of them
    assert begun == [
        *(token, "tora/table-1"),
        *(token, "tora/table-2"),
        *(token, "tora/table-3"),
        *(token, "tora/figure-2"),
        str(tmp_path / "big" / "reproduce" / "gates"),
    ]
    assert code == 2
    assert "1 of 6 failed; the others are kept, and the same command goes on:\ntora/table-1: no weights" in output
    assert "no weights" in (tmp_path / "big" / "reproduce" / "tora.html").read_text()


def test_roman_numbers_are_understood_and_shown():
    (entry,) = find_entries("light/Table-IV")
    assert (entry.name, entry.title) == ("light/table-4", "Table IV")
    assert find_entries("tora/table-2")[0].title == "Table 2"


def test_what_was_seen_is_of_claims_that_exist_and_follows_the_rule():
    for name, several in seen_by_us().items():
        assert isinstance(several, str) == bool(ENTRIES[name].small.commands), name
        if isinstance(several, str):
            continue
        assert [one.claim for one in several] == [one.claim for one in ENTRIES[name].small.compare]
        for one, comparison in zip(several, ENTRIES[name].small.compare, strict=True):
            size = effect(ENTRIES[name], ENTRIES[name].small, comparison)
            assert one.paper == (None if size is None else pytest.approx(size, abs=1e-9))
            assert one.verdict == (verdict(one.interval, one.paper) if comparison.claimed else NO_CLAIM)
            given = dict.fromkeys(ENTRIES[name].small.arms[arm].model for arm in comparison.arms)
            assert list(one.models) == [f"{model}#{fingerprint(load_model(model))[:8]}" for model in given if model], (
                f"{name} was seen of other weights than the zoo has now: run it again"
            )
