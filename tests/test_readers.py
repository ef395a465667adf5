"""Whatever lies in a file, its reader gives a value of its schema, or one clear error that names the file."""

import json
import os
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import TypeAdapter

from jax_vit import parameters
from robustvit.attacks.factors_file import read_factors
from robustvit.core.adversarial import Adversarial
from robustvit.core.binary import INDICES, NUMBERS, map_array, read_arrays
from robustvit.core.card import CardFile, CardModel, CardRow, read_card, write_card
from robustvit.core.checksum import row_checksums, with_checksum
from robustvit.core.config import read_yaml
from robustvit.core.errors import UserError
from robustvit.core.examples import read_examples
from robustvit.core.figures import Chart, Heatmap, Line, Pictures, Table
from robustvit.core.finding import Finding, read_finding, write_finding
from robustvit.core.journal import checked_line, read_rows
from robustvit.core.numbers import parse_number
from robustvit.core.readers import parse_json, parse_yaml, read_json
from robustvit.core.result_files import read_result, write_result
from robustvit.core.run import RunFolder
from robustvit.data.arrays import open_arrays
from robustvit.data.pictures import check_index, index_shards
from robustvit.data.shards import _write_index
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.ledger_rows import batch_row
from robustvit.evaluation.saved import Saver
from robustvit.evaluation.store import read_identity
from robustvit.models.jax_weights import read_jax
from robustvit.models.weights import load_facts, load_state, write_safetensors
from robustvit.reporting import report
from robustvit.training.recorder import Recorder
from shards import random_images, write_shard
from test_report import keep_examples, make_run, metrics_rows, result

OUTCOMES = {"clean": ["correct"] * 5 + ["wrong"], "pgd-3": ["fooled", "survived", "survived", "unverified", "fooled"]}
LONGEST_MESSAGE = 900


@dataclass(frozen=True)
class Reader:
    """A kind of file: how a valid folder is made, and how it is read."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def ledger_rows() -> list[dict[str, Any]]:
    more = {"predicted": 3, "margin": -0.25, "seconds": 0.5, "passes": 3.0, "ranked": [3, 1, 2]}
    return [
        *(
            {"stage": stage, "image": image, "outcome": outcome, **more}
            for stage, outcomes in OUTCOMES.items()
            for image, outcome in enumerate(outcomes)
        ),
        {"warning": {"name": "few-classes", "observation": "only 3", "advice": "", "inflates": False}},
        batch_row("fog/3", np.arange(20), np.arange(20) % 10, np.arange(20) % 3 == 0),
        batch_row("grid", np.arange(9), np.arange(9), np.arange(9) > 4, np.where(np.arange(9) > 4, -1, np.arange(9))),
    ]


def write_ledger(folder: Path) -> None:
    path = folder / "evaluation" / "ledger-0.jsonl"  # its checksums are of this folder's name too
    path.parent.mkdir()
    path.write_bytes(b"".join(checked_line(row, path) for row in ledger_rows()))


def read_ledger(folder: Path) -> Ledger:
    """Damaged rows are missing, so that they are computed again; none counts."""
    Ledger.repair(folder)
    ledger = Ledger(folder)
    for stage, outcomes in OUTCOMES.items():
        for image, outcome in enumerate(outcomes):
            assert ledger.outcome(stage, image) in (outcome, None)
    answers = ledger.answers("fog/3")
    assert np.array_equal(answers.correct, answers.images % 3 == 0)
    grid = ledger.answers("grid")
    assert np.array_equal(grid.first_wrong, np.where(grid.images > 4, -1, grid.images))
    return ledger


def write_states(folder: Path) -> None:
    recorder = Recorder(RunFolder(folder), {}, quiet=True)
    for number in (1, 2):
        recorder.save_state(number, {"phase": 0, "step": number, "task": {"weight": torch.arange(4.0)}})


def read_states(folder: Path) -> object:
    state = Recorder(RunFolder(folder), {}, quiet=True).load_state()
    assert state is None or (state["step"] in (1, 2) and torch.equal(state["task"]["weight"], torch.arange(4.0)))
    return state


def finding() -> Finding:
    return Finding(
        "Title",
        "caption",
        tables=(Table("t", ("a", "b"), (("1", "2"), ("3", "4"))),),
        charts=(
            Chart("c", "x", (Line("l", (0.0, 1.0), (0.5, None), ((0.4, 0.6), (0.1, 0.2))),), in_percent=True),
            Chart("d", "", (Line("l", (0.0, 1.0), (0.5, 0.25)),), kind="dots", rows=("one", "two")),
            Heatmap("h", ("a",), ("b", "c"), ((0.5, None),), scale="diverging"),
            Heatmap("m", (), (), array="matrix"),
        ),
        pictures=(Pictures("p", "pictures", ("left", "right"), ("first",)),),
        facts={"command": "robustvit analyze"},
        arrays={"pictures": np.full((1, 2, 3, 4, 4), 0.5, np.float32), "matrix": np.eye(30)},
    )


def write_run(folder: Path) -> None:
    shutil.rmtree(folder)
    make_run(folder, rows=metrics_rows(2), evaluation=result())
    keep_examples(folder, 8 / 255)
    write_finding(folder / "analysis" / "a", finding())
    (folder / "environment.json").write_text('{"command": "robustvit train x", "cores": 2}')
    (folder / "recipe.yaml").write_text("name: tiny\nphases: [{epochs: 3, objective: {name: trades}}]\n")


def write_set(folder: Path) -> None:
    images = np.full((2, 3, 4, 4), 0.5, np.float32)
    np.save(folder / "adversarial.npy", images)
    sums = row_checksums({"images": images}).tolist()
    facts = {"indices": [3, 7], "labels": [1, 0], "threat": {"eps": 0.1}, "checksums": sums}
    (folder / "adversarial.json").write_text(json.dumps(with_checksum(facts)))


def write_part(folder: Path) -> None:
    images, index = torch.full((2, 3, 4, 4), 0.5), torch.tensor([3, 7])
    Saver(folder / "evaluation").offer(index, images, images, index, images, torch.tensor([True, True]))


def read_parts(folder: Path) -> None:
    """A damaged part is missing, so that its images are attacked again."""
    for _, index, images in Saver(folder / "evaluation").parts():
        assert index.tolist() == [3, 7]
        assert np.all(images == 0.5)


def write_tar_index(folder: Path) -> None:
    _write_index(folder / "index.npy", [write_shard(folder / "a.tar", random_images(3), [0, 1, 2])], "a.tar")


def read_tar_index(folder: Path) -> None:
    index = check_index(map_array(folder / "index.npy"), [folder / "a.tar"], folder / "index.npy")
    assert index["label"].tolist() == [0, 1, 2]


def write_arrays(folder: Path, **arrays: Any) -> None:
    np.savez_compressed(folder / "a.npz", **(arrays or {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4) > 1}))


def write_images(folder: Path) -> None:
    np.savez(folder / "plain.npz", image=random_images(3), label=np.arange(3))


def write_weights(folder: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    write_safetensors(layer, folder / "w.safetensors", {"model": {"name": "vit", "num_classes": 2}, "epoch": 3})


YAML = """
name: &name mine  # with an anchor
threat: {norm: inf, eps: 8/255}
phases:
  - {name: *name, epochs: 3, lr: 1.0e-3}
  - epochs: 5
    objective: {name: trades, beta: 6, attack: {name: pgd, steps: 10}}
date: 2020-01-01
"""


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def rows(name: str, content: list[dict[str, Any]]) -> Callable[[Path], object]:
    return text(name, "".join(json.dumps(row) + "\n" for row in content))


SEARCH = {"search": {"steps": 10}, "model": "abc", "factors": [0.5, 2.0], "images": 8, "passes": 80, "seconds": 0.25}
IDENTITY = {"model": "abc", "seed": 0, "logits": [[0.5, None], [1, 2]]}
CARD = CardFile(
    "quick", "A look.", (CardRow("clean", {"clean": ""}), CardRow("r", {"r": "accuracy"})),
    (CardModel("mine", "runs/mine", "", {"clean": "eval/accuracy-1a2b3c4d"}, {"r": "its images are not there"}),),
)  # fmt: skip
READERS = {
    "json": Reader(text("a.json", '{"a": [1, 2.5, null, {"b": "c"}], "d": -1e-3}'),
                   lambda folder: read_json(folder / "a.json", TypeAdapter(dict[str, Any]), "map")),
    "json lines": Reader(rows("a.jsonl", [{"a": 1}, {"b": [2, 3]}]), lambda folder: read_rows(folder / "a.jsonl")),
    "metrics": Reader(rows("metrics.jsonl", metrics_rows(2)), lambda folder: RunFolder(folder).metrics.repair()),
    "ledger": Reader(
        write_ledger, lambda folder: read_ledger(folder / "evaluation")
    ),
    "npz": Reader(write_arrays, lambda folder: read_arrays(folder / "a.npz", None)),
    "jax weights": Reader(
        lambda folder: np.savez(folder / "w.npz", **parameters(np.random.default_rng(0), "big_vision", "gap", 8, 1)),
        lambda folder: read_jax(folder / "w.npz"),
    ),
    "npy": Reader(lambda folder: np.save(folder / "a.npy", np.arange(12).reshape(3, 4)),
                  lambda folder: np.array(map_array(folder / "a.npy"))),
    "image arrays": Reader(write_images, lambda folder: open_arrays(folder / "plain.npz").take(torch.tensor([0]))),
    "examples": Reader(lambda folder: [(folder / "eval" / "pgd").mkdir(parents=True), keep_examples(folder, 0.1)],
                       lambda folder: read_examples(folder / "eval" / "pgd" / "examples.npz")),
    "yaml": Reader(text("a.yaml", YAML), lambda folder: read_yaml(folder / "a.yaml")),
    "safetensors": Reader(write_weights, lambda folder: (load_facts(folder / "w.safetensors"),
                                                         load_state(folder / "w.safetensors"))),
    "tar": Reader(lambda folder: write_shard(folder / "a.tar", random_images(3), [0, 1, 2]),
                  lambda folder: index_shards([folder / "a.tar"], "a.tar")),
    "zipped tar": Reader(lambda folder: write_shard(folder / "a.tar.gz", random_images(2), [0, 1]),
                         lambda folder: index_shards([folder / "a.tar.gz"], "a.tar.gz")),
    "result": Reader(lambda folder: write_result(folder, result()), read_result),
    "finding": Reader(lambda folder: write_finding(folder, finding()), read_finding),
    "card": Reader(lambda folder: write_card(folder, CARD), lambda folder: read_card(folder / "card.json")),
    "saved set": Reader(write_set, lambda folder: Adversarial.load(folder / "adversarial.npy")),
    "saved part": Reader(write_part, read_parts),
    "tar index": Reader(write_tar_index, read_tar_index),
    "factors": Reader(text("factors.json", json.dumps([with_checksum(SEARCH)])),
                      lambda folder: read_factors(folder / "factors.json")),
    "identity": Reader(text("identity.json", json.dumps(with_checksum(IDENTITY))),
                       lambda folder: read_identity(folder / "identity.json")),
    "training state": Reader(write_states, read_states),
    "report of a run": Reader(write_run, lambda folder: report([folder], folder / "page.html")),
}  # fmt: skip


def obey(reader: Reader, folder: Path) -> None:
    try:
        reader.read(folder)
    except UserError as error:
        message = str(error)
        assert str(folder) in message
        assert len(message.splitlines()) == 1, message
        assert len(message) < LONGEST_MESSAGE + len(str(folder)), message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from([b"", b"\n", b"\x00", b"\xff" * 8, b"[" * 2000, b'{"a":' * 2000, b"9" * 5000, b"1e999",
                         b"NaN", b"true", b'"', b"&a [*a]", b"PK\x03\x04", b"-1", b"2147483648", b"{}"])  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid file with pieces replaced, cut, repeated or swapped; of JSON, also with values that are others."""
    data = valid
    if data[:1] in (b"{", b"[") and b"\n{" not in data and draw(st.booleans()):
        return json.dumps(draw(changed_json(json.loads(data)))).encode()
    for _ in range(draw(st.integers(1, 3))):
        first, second = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        second = min(second, first + draw(st.sampled_from([0, 1, 8, 10_000])))
        piece = draw(st.sampled_from(["random", "word", "repeated", "bit"]))
        if piece == "random":
            new = draw(st.binary(max_size=12))
        elif piece == "word":
            new = draw(WORDS)
        elif piece == "repeated":
            new = data[first:second] * 2
        else:
            new = bytes([data[first] ^ (1 << draw(st.integers(0, 7)))]) if first < len(data) else b""
            second = first + len(new)
        data = data[:first] + new + data[second:]
    return data


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """One value somewhere inside replaced or left out."""
    if not isinstance(value, list | dict) or not value or draw(st.integers(0, 4)) == 0:
        return draw(JSON)
    copied = value.copy()
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else list(range(len(value)))))
    if draw(st.integers(0, 5)) == 0:
        del copied[key]
    else:
        copied[key] = draw(changed_json(value[key]))
    return copied


def fuzz(name: str, examples: int, place: Path) -> None:
    """Half of the examples are any bytes, half are valid files that were damaged."""
    reader, valid, tried = READERS[name], place / "valid", place / "tried"
    valid.mkdir()
    reader.write(valid)
    files = [path.relative_to(valid) for path in sorted(valid.rglob("*")) if path.is_file()]
    contents = [(valid / file).read_bytes() for file in files]
    reader.read(valid)

    def put(file: Path, data: bytes) -> None:
        shutil.rmtree(tried, ignore_errors=True)
        for other, content in zip(files, contents, strict=True):
            (tried / other).parent.mkdir(parents=True, exist_ok=True)
            (tried / other).write_bytes(data if other == file else content)
        obey(reader, tried)

    quiet = list(HealthCheck)
    options = settings(max_examples=examples // 2, deadline=None, database=None, derandomize=True,
                       suppress_health_check=quiet)  # fmt: skip

    @options
    @given(st.sampled_from(files), st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
    def any_bytes(file: Path, data: bytes) -> None:
        put(file, data)

    @options
    @given(st.data())
    def any_damage(data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(files) - 1))
        put(files[number], data.draw(damaged(contents[number])))

    any_bytes()
    any_damage()


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_give_a_value_or_one_clear_error(name, tmp_path):
    fuzz(name, 40 if name in ("report of a run", "jax weights") else 200, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_files_give_a_value_or_one_clear_error(name, tmp_path):
    fuzz(name, 10_000, tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_pipes_folders_and_broken_links_never_hang(name, tmp_path):
    reader, valid = READERS[name], tmp_path / "valid"
    valid.mkdir()
    reader.write(valid)
    for number, file in enumerate(path for path in sorted(valid.rglob("*")) if path.is_file()):
        for kind, make in (("pipe", os.mkfifo), ("folder", Path.mkdir), ("link", lambda path: path.symlink_to("no"))):
            folder = tmp_path / f"{number}-{kind}"
            shutil.copytree(valid, folder)
            changed = folder / file.relative_to(valid)
            changed.unlink()
            make(changed)
            obey(reader, folder)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n" for before, after in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LAUGHS, "its aliases expanded"),
        (LAUGHS.replace("[x, x, x, x, x, x, x, x, x, x]", "{k: 1}").replace("[*", "{<<: [*").replace("]\n", "]}\n"),
         "its aliases expanded"),
        ("a: &a [*a]", "contains itself"),
        ("a: &a {b: {c: *a}}", "contains itself"),
        ("a: " + "[" * 100_000, "nested deeper than 64"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(500)), "nested deeper than 64"),
        ("a: " + "9" * 100_000, "a number of 100000 characters"),
        ("a: 0x" + "f" * 100_000, "a number of 100002 characters"),
        ("a: " + "1:" * 50_000 + "1", "a number of 100001 characters"),
        ("eps: 1\neps: 2", "'eps' is given twice"),
        ("a: 2020-99-99", "month must be in"),
        ("a: !!int x", "broken YAML"),
        ("a: !!timestamp x", "broken YAML"),
        ("a: !!python/name:os.system", "broken YAML"),
    ],
)  # fmt: skip
def test_yaml_that_explodes_ends_at_once(content, problem):
    with pytest.raises(UserError, match=problem):
        parse_yaml(content, "file")


def test_yaml_with_anchors_that_are_harmless_is_read():
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]", "file") == {
        "a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 100_000, "not JSON"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b"9" * 100_000, "not JSON"),
        (b"1e999", "too large for a number"),
        (b"\xff", "not JSON"),
        (b"", "not JSON"),
    ],
)
def test_json_that_explodes_ends_at_once(content, problem):
    with pytest.raises(UserError, match=problem):
        parse_json(content, "file")
    assert parse_json(b"[" * 64 + b"]" * 64, "file")
    assert parse_json(b'[NaN, "[[["]', "file") == [None, "[[["]


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "9" * 5000, "8/255/2", "1/1e999999999", "0x10", "",
                                  "1_000", "\u0661", "nan", "inf", True, False])  # fmt: skip
def test_what_is_no_number_is_refused_at_once(text):
    with pytest.raises(ValueError, match="number") as caught:
        parse_number(text)
    assert len(str(caught.value)) < 200


def npy_header(shape: str, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(-1,)", "(2147483648, 2147483648, 4)", "(0, 99999999999999999999)"]
)
def test_an_array_that_claims_more_than_its_file_takes_no_memory(shape, tmp_path):
    (tmp_path / "a.npy").write_bytes(npy_header(shape))
    with pytest.raises(UserError, match="not a whole NumPy array file"):
        map_array(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", npy_header(shape))
    tracemalloc.start()
    with pytest.raises(UserError, match="not an .npz file"):
        read_arrays(tmp_path / "a.npz", None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_a_compressed_file_may_not_expand_without_end(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1_000_000))
    assert len(read_arrays(tmp_path / "a.npz", None)["a"]) == 1_000_000
    monkeypatch.setattr("robustvit.core.binary.MOST_UNPACKED", 1_000_000)
    with pytest.raises(UserError, match="once unpacked"):
        read_arrays(tmp_path / "a.npz", None)


def test_arrays_hold_numbers_of_the_right_kind(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3), b=np.arange(4.0))
    schema = {"a": INDICES, "b": NUMBERS}
    for wanted, problem in (({"a": INDICES}, "it holds the arrays"), (schema, "differ in length"),
                            ({"a": NUMBERS, "b": NUMBERS}, "'a' is int64")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            read_arrays(tmp_path / "a.npz", wanted)
    np.savez(tmp_path / "b.npz", a=np.array(["text"]))
    with pytest.raises(UserError, match="not numbers"):
        read_arrays(tmp_path / "b.npz", None)


@pytest.mark.parametrize("size", [1 << 40, 1 << 28, -512])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_a_tar_header_that_claims_too_much_is_refused(kind, size, tmp_path):
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = kind, size
    whole = write_shard(tmp_path / "a.tar", random_images(1), [0]).read_bytes()
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + whole)
    tracemalloc.start()
    with pytest.raises(UserError, match="not a whole tar archive"):
        index_shards([tmp_path / "a.tar"], "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20
