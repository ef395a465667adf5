"""The tutorials run, in short form as plain Python; their published outputs are those of their code."""

import ast
import base64
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import robustvit as rv
from robustvit.core import notebook as notebooks
from robustvit.core.figures import Chart, Line, Pictures, Table
from robustvit.core.finding import Finding
from robustvit.core.progress import Progress, say
from robustvit.core.result import Result

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def run_cell(code: str, names: dict, title: str):
    """As a notebook does: statements, then the value of the last line if it is one."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, title, "exec"), names)
    return eval(compile(ast.Expression(last.value), title, "eval"), names) if last is not None else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_short_form(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, names, shown = read(path), {"__name__": path.stem}, []
    short = content["metadata"]["robustvit"]["short"]
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            value = run_cell("".join(cell["source"]), names, f"{path.name}, {cell['id']}")
            if cell["metadata"].get("tags") == ["parameters"]:
                assert short.keys() <= names.keys()
                names |= short
            if hasattr(value, "_repr_html_"):
                assert value._repr_html_().startswith("<p><b>")
                shown.append(value)
    assert any(isinstance(value, Result | Finding) for value in shown)
    assert list(tmp_path.glob("runs/**/report.html"))


def test_there_are_three():
    assert {path.stem for path in NOTEBOOKS} == {"evaluate_your_model", "train_a_robust_vit", "look_inside"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_small_and_those_of_its_code(path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from execute import LARGEST, source_digest

    content = read(path)
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    advice = f"run python docs/notebooks/execute.py {path.stem}"
    assert content["metadata"]["robustvit"]["executed"] == source_digest(content), advice
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), advice
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert path.stat().st_size <= LARGEST
    assert not [place for place in ("/tmp/", "/home/", "/root/", "/work/") if place in json.dumps(outputs)]


@pytest.fixture
def kernel(monkeypatch):
    """A process as a notebook's kernel has it, with what it was asked to show."""
    shell = SimpleNamespace(kernel=object(), execution_count=1)
    shown: list[tuple[int, dict]] = []

    def display(forms, raw, display_id):
        line = len({number for number, _ in shown})
        shown.append((line, forms))
        return SimpleNamespace(update=lambda forms, raw: shown.append((line, forms)))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    notebooks._line_of.cache_clear()
    yield shell, shown
    notebooks._line_of.cache_clear()


def test_the_jobs_of_a_cell_share_a_line_that_changes(kernel, monkeypatch, capsys):
    shell, shown = kernel
    clock = iter(range(1000))
    monkeypatch.setattr(notebooks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for title in ("<first>", "second"):
        with Progress(title, 4) as progress:
            progress.advance(2, loss="0.5")
            progress.advance(2)
    assert {line for line, _ in shown} == {0}
    texts = [forms["text/plain"] for _, forms in shown]
    assert texts[0].startswith("<first>: 2/4 images  loss 0.5")
    assert texts[-1].startswith("second: 4/4 images  loss 0.5")
    assert "left" not in texts[-1]
    assert shown[0][1]["text/html"].startswith('<progress max="1" value="0.500"></progress> &lt;first&gt;: 2/4')
    shell.execution_count = 2
    with Progress("another cell", 4) as progress:
        progress.advance(1)
    assert shown[-1][0] == 1
    assert capsys.readouterr().err == ""


def test_short_and_quiet_jobs_show_nothing(kernel):
    with Progress("short", 4) as progress:
        progress.advance(4)
    with Progress("quiet", 4, quiet=True) as progress:
        progress.advance(4)
    assert kernel[1] == []


def test_messages_are_no_errors_in_a_notebook(kernel, capsys, monkeypatch):
    say("hello")
    assert capsys.readouterr() == ("hello\n", "")
    monkeypatch.delitem(sys.modules, "IPython")
    say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_a_terminal_of_ipython_is_no_notebook(kernel):
    del kernel[0].kernel
    assert notebooks.cell_number() is None


def test_a_recipe_shows_what_it_changes():
    recipe = rv.load_recipe("digits/trades", ["objective.beta=2.5", "name=<b>mine</b>"])
    (settings, expected) = recipe.sheet().tables
    rows = dict(settings.rows)
    assert rows["objective"].startswith("{name: trades, beta: 2.5, ")
    assert rows["data"] == "digits"
    assert not {"name", "info", "seed", "phases", "checkpoints"} & set(rows)
    assert [row[0] for row in expected.rows] == [one.suite for one in recipe.info.expect]
    page = recipe._repr_html_()
    assert "<b>&lt;b&gt;mine&lt;/b&gt;</b>" in page
    assert "seed: 0" in page
    assert "<details><summary>Every setting</summary>" in page


def test_settings_of_several_phases_are_told_apart():
    tree = {"phases": [{"epochs": 1, "name": "a"}, {"epochs": 1, "name": "b", "batch_size": 8}]}
    rows = dict(rv.load_recipe("digits/trades").sheet().tables[0].rows)
    both = rv.load_recipe({**rv.load_recipe("digits/trades").to_dict(), **tree, "objective": "trades"})
    assert {"phases.0.epochs", "phases.1.batch_size"} <= set(dict(both.sheet().tables[0].rows))
    assert "epochs" in rows


def test_a_finding_shows_figures_first_and_its_tables_to_unfold():
    chart = Chart("Loss <by> step", "step", (Line("loss", (0.0, 1.0), (0.3, 0.4)),))
    table = Table("Numbers", ("step", "loss"), (("one", "0.3"), ("<two>", "0.4")))
    pictures = Pictures("Images", "images", ("clean",), ("image 1",))
    arrays = {"images": np.full((1, 1, 3, 8, 8), 0.5)}
    finding = Finding("Steps", "Of <one> image.", (table,), (chart,), (pictures,), arrays=arrays)
    assert repr(finding) == "Finding(Steps: Of <one> image.)"
    page = finding._repr_html_()
    drawn = [base64.b64decode(text).decode() for text in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)]
    assert ["Loss &lt;by&gt; step" in drawn[0], "data:image/png" in drawn[1]] == [True, True]
    assert page.index("<img") < page.index("<details><summary>Numbers</summary><table>")
    assert "<two>" not in page
    assert "<one>" not in page
    bare = Finding("Steps", "", (table,))._repr_html_()
    assert "<details>" not in bare
    assert '<td style="text-align: left">one</td><td>0.3</td>' in bare
