"""A number that was changed in a file is noticed, whichever it is."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from robustvit.core.errors import UserError
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
