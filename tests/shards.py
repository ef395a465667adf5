"""Tar shards to try things on."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def random_images(count: int, size: tuple[int, int] = (8, 6), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), np.uint8)


def encoded(image: np.ndarray, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, {"jpg": "jpeg"}.get(kind, kind))
    return buffer.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(buffer.getvalue()) if path.suffix in (".gz", ".tgz") else buffer.getvalue())
    return path


def write_shard(path: Path, images: np.ndarray, labels: list[int], first: int = 0, kind: str = "png") -> Path:
    members = {}
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=first):
        members[f"{number:06d}.{kind}"] = encoded(image, kind)
        members[f"{number:06d}.cls"] = str(label).encode()
    return write_tar(path, members)
