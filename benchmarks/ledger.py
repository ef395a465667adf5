"""How long a resumed evaluation takes to read its ledger: 50,000 images under 95 conditions."""

import json
import tempfile
from pathlib import Path

import numpy as np
from measure import ratio, seconds, table, write_page

from robustvit.core.journal import read_checked
from robustvit.evaluation.ledger import Ledger

IMAGES, CONDITIONS, BATCH = 50_000, 95, 128


def write(folder: Path, conditions: int = CONDITIONS) -> None:
    """What an evaluation over conditions writes: one line a batch."""
    ledger, random = Ledger(folder), np.random.default_rng(0)
    for condition in range(conditions):
        for begin in range(0, IMAGES, BATCH):
            images = np.arange(begin, min(begin + BATCH, IMAGES))
            predicted = random.integers(0, 1000, len(images))
            ledger.record_answers(f"condition/{condition}", images, predicted, predicted % 3 == 0)


def read(folder: Path) -> int:
    ledger = Ledger(folder)
    return sum(int(ledger.answers(f"condition/{number}").correct.sum()) for number in range(CONDITIONS))


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wrote = seconds(lambda: write(folder))
        path = folder / "ledger-0.jsonl"
        first = seconds(lambda: read(folder))
        floor = ratio(lambda: read(folder), lambda: [json.loads(line) for line in path.open("rb")], 3)
        lines, size = len(read_checked(path).rows), path.stat().st_size / 1e6
    head = ["lines", "size, MB", "writing, s", "reading, s", "reading / parsing the JSON"]
    lines_of_page = [
        "# Benchmarks of the ledger",
        "",
        f"`make bench` writes this page: a synthetic ledger of {IMAGES:,} images under {CONDITIONS} conditions, one",
        f"line for each batch of {BATCH}, with a checksum. One thread; median of 3 interleaved rounds.",
        "",
        *table(head, [[f"{lines:,}", f"{size:.0f}", f"{wrote:.1f}", f"{first:.1f}", f"{floor:.2f}"]]),
    ]
    write_page("benchmarks-ledger.md", lines_of_page)


if __name__ == "__main__":
    main()
