"""Binary files that are read back, one reader for each format: .npz, .npy, tar archives.

What a header promises is compared with the size of the file before memory is taken for it.
"""

import gzip
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from robustvit.core.errors import UserError, first_line
from robustvit.core.readers import regular_size, unreadable

MOST_UNPACKED = 1 << 30
"""Bytes that a compressed .npz may expand to, if the file itself isn't larger."""
_MOST_HEADER = 1 << 20
"""Bytes of a header inside a tar archive."""


class ArrayType(NamedTuple):
    kinds: str
    """Of its numbers, as numpy's `dtype.kind`: b, i, u, f."""
    ndim: int


INDICES, FLAGS, NUMBERS = ArrayType("iu", 1), ArrayType("b", 1), ArrayType("f", 1)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    order: str
    dtype: Any
    begin: int
    """Where the numbers begin."""


def read_arrays(
    path: Path,
    schema: Mapping[str, ArrayType] | None,
    remedy: str = "",
    optional: Collection[str] = (),
    kinds: str = "biuf",
) -> dict[str, np.ndarray]:
    """The arrays of an .npz file: those of the schema, with the same number of rows; without one, any of these kinds.

    Those in `optional` may be absent.
    """
    size = regular_size(path, remedy)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename.removesuffix(".npy") for member in members]
            if len(set(names)) < len(names):
                raise ValueError("an array is there twice")
            if sum(member.file_size for member in members) > max(MOST_UNPACKED, size):
                raise ValueError(f"more than {MOST_UNPACKED:,} bytes once unpacked")
            arrays = {name: _member(archive, info) for name, info in zip(names, members, strict=True)}
        known = None if schema is None else {k: v for k, v in schema.items() if k in arrays or k not in optional}
        _check_arrays(arrays, known, kinds)
    except Exception as error:  # a damaged archive raises whatever its reader runs into
        raise unreadable(path, f"damaged, or not an .npz file ({first_line(error)[:200]})", remedy) from None
    return arrays


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{info.filename[:80]}' is compressed by an unknown method")
    with archive.open(info) as file:
        header = read_header(file, info.file_size)
        values = np.frombuffer(file.read(), header.dtype, math.prod(header.shape))
    return values.reshape(header.shape, order=cast(Any, header.order)).copy()


def _check_arrays(arrays: Mapping[str, np.ndarray], schema: Mapping[str, ArrayType] | None, kinds: str) -> None:
    if schema is None:
        other = next((name for name, array in arrays.items() if array.dtype.kind not in kinds), None)
        if other is not None:
            raise ValueError(f"'{other[:80]}' holds {arrays[other].dtype}, not numbers")
        return
    if set(arrays) != set(schema):
        raise ValueError(f"it holds the arrays {sorted(arrays)}, not {sorted(schema)}")
    for name, (known, ndim) in schema.items():
        array = arrays[name]
        if array.dtype.kind not in known or array.ndim != ndim:
            raise ValueError(f"'{name}' is {array.dtype} {array.shape}, not {ndim}-dimensional of kind {known}")
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError(f"its arrays differ in length: { {name: len(array) for name, array in arrays.items()} }")


def read_header(file: Any, size: int) -> _Header:
    """Of an array whose file or member has so many bytes; raises whatever a damaged header makes numpy run into."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format is unknown")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    begin = file.tell()
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    if any(side < 0 for side in shape) or begin + math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{size} bytes don't hold {dtype} {shape}")
    return _Header(shape, "F" if fortran else "C", dtype, begin)


def map_array(path: Path, begin: int = 0, size: int | None = None, remedy: str = "") -> np.ndarray:
    """An .npy file, or one that lies so far inside another, as an array that is read on access."""
    whole = regular_size(path, remedy)
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04" and begin == 0:
                raise ValueError("it is an .npz file; rename it")
            file.seek(begin)
            header = read_header(file, whole if size is None else min(whole, begin + size))
        return np.memmap(path, header.dtype, "r", header.begin, header.shape, order=cast(Any, header.order))
    except Exception as error:  # a damaged header raises whatever numpy runs into
        raise unreadable(path, f"not a whole NumPy array file ({first_line(error)[:200]})", remedy) from None


def is_zipped(shard: Path) -> bool:
    regular_size(shard)  # a pipe would never end
    with shard.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def open_tar(shard: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file, and the archive that it holds or zips."""
    regular_size(shard)
    try:
        with shard.open("rb") as file, gzip.GzipFile(fileobj=file) if is_zipped(shard) else nullcontext(file) as stream:
            yield file, cast(BinaryIO, stream)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise unreadable(shard, f"not a whole tar archive ({first_line(error)})") from None


def tar_members(shard: Path, stream: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The members of an archive in their order; between two of them the stream may be moved."""
    before, headers = -1, _Headers(stream)
    try:
        with tarfile.open(fileobj=cast(Any, headers), mode="r:") as archive:
            while (member := archive.next()) is not None:
                # tarfile would keep every header of an archive that may hold millions
                archive.members.clear()  # type: ignore[attr-defined]
                if member.size < 0 or member.offset_data <= before:
                    raise ValueError(f"a member at byte {member.offset} has no end")
                before = member.offset_data
                yield member
        if headers.is_at_end:  # cut between two members, it would only look shorter
            raise ValueError("the mark at its end is missing")
        stream.read(_MOST_HEADER)  # which compares what was unzipped with its checksum
    except UserError:
        raise
    except Exception as error:  # a damaged header raises whatever tarfile runs into
        raise unreadable(shard, f"not a whole tar archive ({first_line(error)[:200]})") from None


class _Headers:
    """The stream as tarfile reads it: headers alone, for which it would take as much memory as they claim."""

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell, self._read = stream.seek, stream.tell, stream.read
        self.is_at_end = False

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MOST_HEADER:
            raise ValueError(f"a header of {size} bytes")
        data = self._read(size)
        self.is_at_end = not data
        return data
