"""Every command of the documentation runs, or is at least one that the command line takes."""

import re
import shlex

import numpy as np
import pytest
import timm
import torch
from typer.testing import CliRunner

import robustvit as rv
from commands import CHECKED, PAGES, ROOT, RUN, Command, Refused, check, commands, named_model
from jax_vit import parameters
from robustvit.cli.main import app
from shards import random_images, write_shard

SMALLER = {
    "train": ["-o", "epochs=1", "-o", "data.select.images=few.npy"],
    "generate": ["--images", "200", "--steps", "2"],
    "evaluate": ["--images", "2"],
    "analyze": ["--images", "2"],
}
"""What the tests add, so that the commands of the pages take seconds."""
FIRST = ("train", "generate", "score")
"""What makes something for others, in the order of the pages; a page may speak of it before."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the pages speak of: a data set, somebody's model and checkpoint, a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path / "data"))
    write_shard(tmp_path / "data" / "cifar10" / "test-0.tar", random_images(10, (32, 32)), list(range(10)))
    code = re.search(r"```python\n(# mymodel.py\n.*?)```", (ROOT / "docs" / "your-model.md").read_text(), re.S)
    (tmp_path / "mymodel.py").write_text(code[1])
    weights = timm.create_model("resnet18", num_classes=10).state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    torch.save({"state_dict": weights}, tmp_path / "checkpoint.pt")
    np.savez(tmp_path / "vit.npz", **parameters(np.random.default_rng(0), "big_vision", "gap"))
    np.save(tmp_path / "few.npy", np.arange(200))
    for seed, name in enumerate(("mine", "other")):
        settings = ["epochs=1", "checkpoints.every=1", f"seed={seed}"]
        rv.train("digits/trades", run=tmp_path / "runs" / name, overrides=settings, quiet=True)
    return tmp_path


def answered() -> dict[str, list[str]]:
    """The commands of the page of questions, by its headings."""
    _, *sections = re.split(r"^## ", (ROOT / "docs" / "which-command.md").read_text(), flags=re.M)
    return {text.partition("\n")[0]: re.findall(r"\| `(robustvit [^`]+)` \|", text) for text in sections}


def test_every_command_answers_a_question_in_its_group():
    groups: dict = {}
    for command in app.registered_commands:
        groups.setdefault(command.rich_help_panel, set()).add(command.name)
    assert {"Train", "Attack and evaluate", "Understand", "Share"} <= set(groups)
    shown = {title: {command.split()[1] for command in commands} for title, commands in answered().items()}
    assert list(shown) == list(groups)
    assert all(groups[title] <= shown[title] for title in groups), "docs/which-command.md lacks a command"


def run_by_tests() -> list[list[str]]:
    """Words of every command, what others need first; those of the README are run by tests/test_stories.py."""
    lines = [one.text for page in PAGES if page.parent != ROOT for one in commands(page) if one.kind == RUN]
    answers = [command for commands in answered().values() for command in commands]
    lines += [command for command in answers if command != "robustvit quickstart" and not command.endswith("...")]
    words = [shlex.split(line)[1:] for line in dict.fromkeys(lines)]
    return sorted(words, key=lambda one: one[0] not in FIRST)


def test_the_commands_of_the_pages_run(place):
    """Small: with few images, in one epoch."""
    for words in run_by_tests():
        done = CliRunner().invoke(app, [*words, *SMALLER.get(words[0], ())])
        assert done.exit_code == 0, f"{words}: {done.output} {done.exception}"


def test_a_fence_says_whether_a_command_is_run():
    found = [one for page in PAGES for one in commands(page)]
    assert len(found) > 300
    for one in found:
        in_diagram = one.kind == "plain" and " -> " in one.text
        known = one.kind in (RUN, CHECKED, "text", "yaml") or in_diagram
        assert known, f"{one}: put it into a fence of sh, which runs, or of bash, which is checked"
        if one.kind == RUN:
            is_whole = one.text.startswith("robustvit ") and "..." not in one.text
            assert is_whole, f"{one}: sh is what the tests can run"


@pytest.fixture
def unopened(monkeypatch, tmp_path):
    """No model is opened, and nothing is in the folder."""
    monkeypatch.setattr("robustvit.models.reference.RESOLVERS", (named_model,))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("extended", "unopened")
def test_the_commands_of_the_pages_can_be_given():
    problems = []
    for one in [one for page in PAGES for one in commands(page)]:
        try:
            check(one)
        except Refused as error:
            problems.append(f"{one}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "robustvit trian digits/trades",
        "robustvit train digits/tradse",
        "robustvit train digits/trades --runs runs/mine",
        "robustvit train digits/trades -o objective.bta=5",
        "robustvit train RECIPE --runs runs/mine",
        "robustvit sweep sweeps/tora_lambda_digit",
        "robustvit sweep digits/trades -o objective.bta=1,6",
        "robustvit sweep digits/trades -o objective.beta=1,6 --suite pdg-20",
        "robustvit evaluate runs/mine --suite pdg-20",
        "robustvit evaluate zoo:speedrnu --data cifar10",
        "robustvit evaluate resnet81 --data cifar10 --eps 8/255",
        "robustvit evaluate resnet18 --data cifar01 --eps 8/255",
        "robustvit evaluate resnet18 --data cifar10 -o 'data.preproces={how: crop}'",
        "robustvit evaluate runs/mine --head robust",
        "robustvit evaluate runs/mine --suite 'transfer-matrix:models=[zoo:speedrnu]'",
        "robustvit analyze runs/mine --what lesoin",
        "robustvit analyze runs/mine --what lesion -o lesion.drwas=5",
        "robustvit analyze runs/mine --what lesion --on pdg-10",
        "robustvit analyze runs/mine --what lesion --compare zoo:speedrnu",
        "robustvit attack sample:0 --model zoo:speedrun --attack pdg-10",
        "robustvit card runs/mine --preset qiuck",
        "robustvit card runs/mine --fail-under robsut=40",
        "robustvit generate runs/x --images 10 --out generated -o chrun=40",
        "robustvit quality generated --reference digit",
        "robustvit list atacks",
        "robustvit reproduce beats-wrn/table-55",
        "robustvit plan digits/trades --hardware a100-8gb:8",
        "robustvit export runs/mine --format npy",
        "torchrun --nproc-per-mode 8 -m robustvit train digits/trades",
        "torchrun --nproc-per-node 8 -m -- robustvit train digits/tradse",
        "torchrun --nproc-per-node 8 robustvit train digits/trades",
        "make tset",
        "make slow ARAE=verdicts",
        "python benchmarks/zoos.py",
        "python -m tests.mutants rnu",
        "pip install '.[notebok]'",
    ],
)
@pytest.mark.usefixtures("unopened")
def test_a_typo_in_a_command_is_found(text):
    with pytest.raises(Refused):
        check(Command("page.md", 1, text, CHECKED))


def test_commands_are_found_wherever_they_are(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text `robustvit list attacks`, `code`.\n\n    robustvit report runs/mine\n\n"
        "```sh\nrobustvit train digits/trades  # why\n```\n"
        "```bash\nX=1 torchrun --nnodes 2 \\\n    -m robustvit evaluate x\nmake check && make test\n```\n"
        "```yaml\n- run: robustvit card runs/mine\n```\n"
        "```\nrobustvit report RUN -> page\n```\n"
    )
    assert [(one.kind, one.text) for one in commands(page)] == [
        ("text", "robustvit list attacks"),
        ("indented", "robustvit report runs/mine"),
        ("sh", "robustvit train digits/trades"),
        ("bash", "X=1 torchrun --nnodes 2 -m robustvit evaluate x"),
        ("bash", "make check"),
        ("bash", "make test"),
        ("yaml", "robustvit card runs/mine"),
        ("plain", "robustvit report RUN -> page"),
    ]
