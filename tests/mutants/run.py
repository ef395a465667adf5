"""Applies each change to a copy of the sources and runs the tests that concern it.

The process that runs this has imported what is slow to import, but nothing of robustvit; each change is tried in a
fork of it, which imports the changed sources and runs pytest. That saves seconds for each change.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.entries import ROOT, SOURCE, Entry, changed

WARM = (
    "torch", "torchvision", "torchvision.transforms.v2", "timm", "timm.optim", "timm.data", "numpy", "scipy.stats",
    "sklearn.datasets", "PIL.Image", "pydantic", "yaml", "rich.progress", "typer", "jinja2", "safetensors.torch",
    "pytest", "xdist", "tqdm",
)  # fmt: skip
COPIED = ("src", "tests", "pyproject.toml", "README.md", "docs", "CHANGELOG.md")
PROGRESS = ROOT / ".stamps" / "mutants.jsonl"
CAUGHT, SURVIVED, TIMED_OUT = "caught", "survived", "timed out"
NO_TESTS, BROKEN = 5, 70
"""Exit codes: pytest found no test, as where all are marked slow; and this module failed itself."""
LONGEST = 120.0
"""Seconds after which a change counts as caught; its tests take a few."""


@dataclass(frozen=True)
class Outcome:
    """Of one change."""

    id: str
    outcome: str
    seconds: float
    test: str = ""
    """The one that failed first."""


def tree_digest(root: Path = ROOT) -> str:
    """Of the sources and tests: results hold for these alone."""
    digest = hashlib.sha256()
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if path.is_file() and "__pycache__" not in name.parts and "mutants" not in name.parts:
                digest.update(str(name).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Journal:
    """What is known already: a file with a line for each change, valid for the sources that it names."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest
        self.known: dict[str, Outcome] = {}
        path.parent.mkdir(exist_ok=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for line in lines:
            if line.pop("digest") == digest:
                self.known[line["key"]] = Outcome(*line["outcome"])

    @staticmethod
    def key(entry: Entry) -> str:
        return hashlib.sha256("\n".join([entry.key, *entry.tests]).encode()).hexdigest()[:16]

    def record(self, entry: Entry, outcome: Outcome) -> None:
        self.known[self.key(entry)] = outcome
        line = {"digest": self.digest, "key": self.key(entry), "outcome": list(vars(outcome).values())}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class _FirstFailure:
    """A plugin of pytest that notes which test failed first, and how long each took."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([report.nodeid, report.failed, report.duration]) + "\n")  # type: ignore[attr-defined]


def warm_up() -> None:
    """What the forks share; robustvit itself must come from their own trees."""
    for name in WARM:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    assert "robustvit" not in sys.modules


class Worker:
    """A copy of the project, in which one change after the other is tried."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.tree, self.report, self.log = folder / "tree", folder / "report.jsonl", folder / "log.txt"
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, self.tree / name, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
            elif source.exists():
                self.tree.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, self.tree / name)
        self.process, self.changes = 0, 0

    def start(self, entry: Entry | None, tests: Sequence[str], stop_at_first: bool = True) -> None:
        """Try a change, or the sources as they are."""
        self.entry, self.began = entry, time.monotonic()
        if entry is not None:
            self.original = (self.tree / SOURCE / entry.file).read_text()
            self._write(entry.file, changed(entry, self.original))
        self.report.write_text("")
        self.process = os.fork()
        if self.process == 0:
            self._run_tests([*tests, *(["-x"] if stop_at_first else [])])

    def _run_tests(self, arguments: list[str]) -> None:
        """In the fork, which never returns."""
        try:
            os.setsid()  # so that what the tests start can be ended with them
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            os.chdir(self.tree)
            os.environ |= {"PYTHONPATH": str(self.tree / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            others = [path for path in sys.path if path not in ("", str(ROOT), str(ROOT / "src"))]
            sys.path[:] = [str(self.tree / "src"), *others]
            for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
                del sys.modules[name]
            importlib.invalidate_caches()
            import pytest

            options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--tb=short", "--rootdir", str(self.tree)]
            code = int(pytest.main([*options, *arguments], plugins=[_FirstFailure(self.report)]))
        except BaseException:
            traceback.print_exc()
            code = BROKEN
        os._exit(code)

    def poll(self, limit: float) -> Outcome | None:
        """The outcome, once there is one."""
        ended = os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        seconds = time.monotonic() - self.began
        if not ended and seconds < limit:
            return None
        try:  # with whatever the tests left running
            os.killpg(self.process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # so early that it leads no group yet
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        if self.entry is not None:
            self._write(self.entry.file, self.original)
        code = os.waitstatus_to_exitcode(status) if ended else None
        if code == BROKEN:
            raise RuntimeError(f"pytest could not be run:\n{self.log.read_text()}")
        outcome = TIMED_OUT if code is None else SURVIVED if code in (0, NO_TESTS) else CAUGHT
        failed = [name for name, has_failed, _ in self.reports() if has_failed]
        return Outcome("" if self.entry is None else self.entry.id, outcome, round(seconds, 1), *failed[:1])

    def reports(self) -> list[tuple[str, bool, float]]:
        return [tuple(json.loads(line)) for line in self.report.read_text().splitlines()]

    def _write(self, file: str, text: str) -> None:
        """With a time of its own: Python takes a file of the same size and second for the one that it compiled."""
        path = self.tree / SOURCE / file
        path.write_text(text)
        self.changes += 1
        os.utime(path, (1e9 + self.changes, 1e9 + self.changes))


def run_entries(
    entries: Iterable[Entry], count: int, root: Path = ROOT, limit: float = LONGEST
) -> Iterator[tuple[Entry, Outcome]]:
    """Outcomes as they come, of `count` workers."""
    waiting = iter(entries)
    with TemporaryDirectory(prefix="mutants-") as folder:
        idle, busy = [Worker(Path(folder) / str(i), root) for i in range(count)], list[Worker]()
        try:
            while True:
                while idle and (entry := next(waiting, None)) is not None:
                    busy.append(idle.pop())
                    busy[-1].start(entry, entry.tests)
                if not busy:
                    return
                for worker in list(busy):
                    if (outcome := worker.poll(limit)) is not None:
                        busy.remove(worker), idle.append(worker)
                        assert worker.entry is not None
                        yield worker.entry, outcome
                time.sleep(0.05)
        finally:
            for worker in busy:
                worker.poll(0)


def failing_unchanged(tests: Sequence[str], count: int, root: Path = ROOT) -> list[str]:
    """Tests that fail, or don't exist, while nothing is changed: they would catch everything."""
    parts = [part for i in range(count) if (part := tests[i::count])]
    with TemporaryDirectory(prefix="mutants-") as folder:
        workers = [Worker(Path(folder) / str(i), root) for i in range(len(parts))]
        for worker, part in zip(workers, parts, strict=True):
            worker.start(None, part, stop_at_first=False)
        problems: list[str] = []
        for worker in workers:
            while (outcome := worker.poll(3600)) is None:
                time.sleep(0.2)
            failed = sorted({name for name, has_failed, _ in worker.reports() if has_failed})
            unknown = [line for line in worker.log.read_text().splitlines() if line.startswith("ERROR: not found")]
            problems += failed or unknown
            if outcome.outcome != SURVIVED and not failed and not unknown:
                problems.append(f"pytest ended with an error:\n{worker.log.read_text()[-2000:]}")
        return problems
