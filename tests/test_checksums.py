"""A number that was changed in a file is noticed, whichever it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robustvit as rv
from robustvit.core.checksum import row_checksums
from robustvit.core.errors import UserError
from robustvit.core.examples import read_examples
from test_readers import READERS

FILES = {
    "result": "result.json",
    "finding": "finding.json",
    "saved set": "adversarial.json",
    "factors": "factors.json",
    "identity": "identity.json",
}


def changed(value: Any) -> Iterator[Any]:
    """All copies with one value changed: a number, text or flag anywhere, a key left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield from ({**value, key: other} for other in changed(inner))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from ([*value[:number], other, *value[number + 1 :]] for other in changed(inner))
    elif isinstance(value, bool) or value is None:
        yield not value
    else:
        yield value + "x" if isinstance(value, str) else value + (1 if isinstance(value, int) else 0.125)


@pytest.mark.parametrize("name", FILES)
def test_any_changed_value_is_noticed(name, tmp_path):
    reader, path = READERS[name], tmp_path / FILES[name]
    reader.write(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content))
    reader.read(tmp_path)  # written in another way, it is the same
    copies = list(changed(content))
    assert len(copies) > 8
    for copy in copies:
        path.write_text(json.dumps(copy))
        with pytest.raises(UserError, match="remove|save the images anew") as error:
            reader.read(tmp_path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize(("name", "file"), [("result", "outcomes.npz"), ("finding", "arrays.npz")])
def test_arrays_of_something_else_are_noticed(name, file, tmp_path):
    """Reversed outcomes have the same accuracy, and pictures the same shape."""
    READERS[name].write(tmp_path)
    arrays = dict(np.load(tmp_path / file))
    np.savez_compressed(tmp_path / file, **arrays)
    READERS[name].read(tmp_path)
    last = list(arrays)[-1]
    other = arrays[last][::-1] if arrays[last].dtype == bool else arrays[last] * 0.5
    assert not np.array_equal(other, arrays[last])
    np.savez_compressed(tmp_path / file, **{**arrays, last: other})
    with pytest.raises(UserError, match="the checksum differs"):
        READERS[name].read(tmp_path)


def test_pictures_of_something_else_are_noticed(tmp_path):
    READERS["examples"].write(tmp_path)
    path = tmp_path / "eval" / "pgd" / "examples.npz"
    arrays = dict(np.load(path))
    for change in ({"clean": arrays["adversarial"]}, {"label": arrays["label"][::-1]}):
        np.savez(path, **{**arrays, **change})
        with pytest.raises(UserError, match="the checksums differ"):
            READERS["examples"].read(tmp_path)
    np.savez(path, **arrays)
    path.parent.rename(tmp_path / "eval" / "pgd-other")
    with pytest.raises(UserError, match="of another evaluation"):
        read_examples(tmp_path / "eval" / "pgd-other" / path.name)


PARTS = {
    "another image": {"index": np.array([10**6]), "images": np.zeros((1, 3, 8, 8), np.float32)},
    "another size": {"index": np.array([1]), "images": np.zeros((1, 3, 9, 9), np.float32)},
    "other pixels": {"index": np.arange(60), "images": np.zeros((60, 3, 8, 8), np.float32)},
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_something_else_are_attacked_again(name, trained, digits, tmp_path, capsys):
    options = {"suite": "pgd-3", "threat": rv.LpBall("inf", 0.1), "images": 60, "run": tmp_path, "quiet": True}
    folder = Path(rv.evaluate(trained, digits, **options).folder)
    (folder / "adversarial-parts").mkdir()
    arrays = PARTS[name]
    sums = row_checksums(arrays, Path("another"))
    np.savez(folder / "adversarial-parts" / "00000001.npz", **arrays, checksum=sums)
    result = rv.evaluate(trained, digits, **options, save_images=True)
    assert len(result.adversarial()) == (result.is_correct & ~result.is_robust).sum() > 0
    assert "00000001.npz: damaged or of another evaluation" in capsys.readouterr().err


def test_changed_pixels_of_a_saved_set_are_noticed(trained, digits, tmp_path):
    options = {"suite": "pgd-3", "threat": rv.LpBall("inf", 0.1), "images": 60, "run": tmp_path, "quiet": True}
    file = Path(rv.evaluate(trained, digits, **options, save_images=True).folder) / "adversarial.npy"
    assert rv.verify(file, trained).fooled > 0
    images = np.load(file)
    np.save(file, images[::-1])
    with pytest.raises(UserError, match=r"adversarial.npy: the pixels of image \d+ were changed"):
        rv.verify(file, trained)
    np.save(file, images[:, :1])
    with pytest.raises(UserError, match="does not fit"):
        rv.verify(file, trained)
