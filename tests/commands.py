"""The commands of the documentation: where they are, and whether the command line would take them.

In a fence ```` ```sh ```` a command is run by the tests. In ```` ```bash ````, in a workflow and in the text it is only
checked: command and options exist, and every name and setting in them means something. Nothing is computed.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import nn

from robustvit.analysis.analyze import _built
from robustvit.cards.limits import parse_limits
from robustvit.cards.preset import load_preset
from robustvit.cli.listing import OTHERS, component_kinds
from robustvit.cli.main import app
from robustvit.core.component import registered
from robustvit.core.config import apply_overrides, validated
from robustvit.core.errors import UserError
from robustvit.data.base import AnyDataset
from robustvit.evaluation.evaluate import evaluator_from
from robustvit.models.create import ModelSettings
from robustvit.models.hints import ModelHints
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.models.registered import timm
from robustvit.models.zoo import PREFIX, zoo_names
from robustvit.planning import hardware_from, parse_utilization
from robustvit.reproduce import find_entries
from robustvit.synthesis.sampler import Heun
from robustvit.threats import LpBall
from robustvit.training.base_recipe import any_recipe
from robustvit.training.sweep import check_sweep
from robustvit.training.sweep_grid import sweep_from

ROOT = Path(__file__).parents[1]
AROUND = tuple(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *AROUND]
RUN, CHECKED = "sh", "bash"
PROGRAMS = ("robustvit", "torchrun", "srun", "python", "make", "pip", "uv")
_BEGINS = re.compile(rf"(?:\w+=\S+ )*(?:{'|'.join(PROGRAMS)})(?: |$)")
_PLACEHOLDER = re.compile(r"(?<![\w/:.-])[A-Z][A-Z_]+(?:\.\w+)?(?![\w=])|OWNER/|\.\.\.|\[-|\[OPT|\]\.\.\.")
"""MODEL, DIR, W.npz or [OPTIONS]: the command is a form, not complete."""


@dataclass(frozen=True)
class Command:
    """A line of a page."""

    page: str
    line: int
    text: str
    kind: str
    """The language of its fence; `text` between backticks, `indented` without a fence."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands(page: Path) -> Iterator[Command]:
    """Every command of a page, in its order; what a backslash continues is one."""
    fence: str | None = None
    pending = ""
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if opened := re.match(r"\s*```(\w*)", line):
            fence = (opened[1] or "plain") if fence is None else None
            continue
        if fence is None:
            if line.startswith("    ") and _BEGINS.match(line.strip()):
                yield Command(page.name, number, line.strip(), "indented")
            for text in re.findall(r"`([^`]+)`", line):
                yield from (Command(page.name, number, part, "text") for part in _parts(text))
            continue
        text = pending + re.sub(r"(^|\s)#.*", "", line.strip().removeprefix("- run: ")).strip()
        pending = f"{text[:-1].strip()} " if text.endswith("\\") else ""
        if not pending:
            yield from (Command(page.name, number, part, fence) for part in _parts(text))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(" && ") if _BEGINS.match(part)]


def check(command: Command) -> None:
    """An error with the reason if the command line would refuse the command for what it says.

    Models are looked up as `robustvit.models.reference.RESOLVERS` does; tests put `named_model` there.
    """
    words = shlex.split(re.sub(r'"?\$\{\w+:-([^}]*)\}"?', r"\1", command.text.partition(" -> ")[0]))
    while re.fullmatch(r"\w+=\S+", words[0]) or words[0] == "srun":
        del words[0]
    program, *arguments = words
    if command.kind == "text" and (not arguments or program == "torchrun"):
        return  # it is spoken of
    if program == "torchrun":
        program, *arguments = _launched(arguments)
    CHECKS[program](arguments, command)


def _launched(arguments: list[str]) -> list[str]:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args([re.sub(r"^\$\w+", "1", word) for word in arguments])
    assert given.module, "torchrun needs -m for a module"
    return [word for word in (given.training_script, *given.training_script_args) if word != "--"]


def _check_robustvit(arguments: list[str], command: Command) -> None:
    known = typer.main.get_command(app)
    name, *rest = arguments or ["--help"]
    if name.startswith("-"):
        assert name in [option for one in known.params for option in one.opts] + ["--help"], f"no option {name}"
        return
    if name.isupper():
        return
    assert name in known.commands, f"no command {name}"
    if rest and rest[-1] == "...":
        rest = rest[:-1]
    options = {"--help"}.union(*((*one.opts, *one.secondary_opts) for one in known.commands[name].params))
    given = [re.split(r"[=\]]", word.lstrip("["))[0] for word in rest if word.lstrip("[").startswith("-")]
    assert not [word for word in given if word not in options], f"no option of {name}: {given}"
    if _PLACEHOLDER.search(" ".join(rest)) or "--help" in given:
        return
    try:
        context = known.commands[name].make_context(name, list(rest))
    except Exception as error:
        if getattr(error, "exit_code", None) != 2:  # of click, which newer versions of typer contain
            raise
        if command.kind == "text" and type(error).__name__ in ("MissingParameter", "BadOptionUsage"):
            return  # it speaks of a command and some of its options
        raise UserError(str(error)) from None
    _check_values(name, context.params)


def _check_values(name: str, given: dict[str, Any]) -> None:
    """What the options name, read as the command reads it."""
    threat, changes = LpBall("inf", 0.1), list(given.get("override") or [])
    if name in ("train", "check", "plan") and not Path(given["recipe"].partition(":")[0]).suffix:
        any_recipe(given["recipe"], changes)
    if name == "sweep":
        check_sweep(sweep_from(given["what"], changes, given["suite"], given["images"]))
    if name in ("evaluate", "analyze", "card"):
        changes = _check_analyses(given["what"], changes, threat) if name == "analyze" else changes
        _check_changes(given["data"], changes)
    for key in {"evaluate": ["suite"], "attack": ["attack"], "analyze": ["on"]}.get(name, ()):
        for suite in [given[key]] if isinstance(given[key], str) else given[key] or ():
            evaluator_from(suite, threat)
    if name == "card" and not given["references"][0].endswith(".json"):
        parse_limits(given["fail_under"] or [], load_preset(given["preset"] or "quick").lines)
    if name == "list" and given["kind"]:
        assert given["kind"] in {*OTHERS, *component_kinds()}, f"nothing to list: {given['kind']}"
    if name == "reproduce" and given["what"]:
        assert find_entries(given["what"])
    if name == "generate":
        validated(Heun, apply_overrides({"steps": given["steps"]}, changes), "sampler")
    for key, read in (("hardware", hardware_from), ("utilization", parse_utilization)):
        if given.get(key):
            read(given[key])
    for key in MODELS.get(name, ()):
        for model in [given[key]] if isinstance(given[key], str) else given[key] or ():
            resolve_model(model)
    _check_data(given["reference"] if name in ("score", "quality") else given.get("data"))
    assert given.get("head") in (None, "acc", "rob", "joint"), f"no head {given['head']}"


MODELS = {
    "evaluate": ["reference"], "analyze": ["reference", "compare"], "card": ["references"], "verify": ["reference"],
    "push": ["reference"], "attack": ["model"], "playground": ["models"], "leaderboard": ["folders"],
    "score": ["model"], "quality": ["model", "judge"], "export": ["reference"],
}  # fmt: skip
"""Parameters of the commands that name models."""


def _check_analyses(what: str, changes: list[str], threat: LpBall) -> list[str]:
    """What `-o` says about anything else is left."""
    names = list(registered("analysis")) if what == "all" else what.split(",")
    own = [change for change in changes if change.partition(".")[0] in names]
    for settings in apply_overrides({name: {"name": name} for name in names}, own).values():
        _built(settings, threat)
    return [change for change in changes if change not in own]


def _check_changes(data: str | None, changes: list[str]) -> None:
    """`-o data.`, `threat.` and `model.`, as `evaluate` knows them."""
    name = data if data in registered("data") else "folder"
    of_data = {"name": name, **({"path": data or "."} if name == "folder" else {})}
    tree = apply_overrides(
        {"data": of_data, "threat": {"norm": "inf", "eps": 0.1}, "model": {"name": "resnet18"}}, changes
    )
    assert set(tree) == {"data", "threat", "model"}, f"-o {changes}: nothing else can be set"
    for key, kind in (("data", AnyDataset), ("threat", LpBall), ("model", ModelSettings)):
        validated(kind, tree[key], key)


def named_model(text: str, hints: ModelHints) -> ModelRef:
    """In place of the resolvers: a model whose name means something, without opening or downloading it."""
    if text.startswith(PREFIX):
        assert text.removeprefix(PREFIX) in zoo_names(), f"no model {text}"
    elif not (Path(text).suffix or text.startswith("runs") or ":" in text or "/" in text):
        assert timm.is_model(text), f"no model {text}"
    return ModelRef(text, "0" * 8, text, {"path": None, "name": text}, built=nn.Identity())


def _check_data(text: str | None) -> None:
    if text is not None and "/" not in text and not Path(text).suffix:
        assert text in registered("data"), f"no data {text}"


def _check_make(arguments: list[str], command: Command) -> None:
    text = (ROOT / "Makefile").read_text()
    for word in arguments:
        variable, equals, _ = word.partition("=")
        pattern = rf"\$\({variable}\)" if equals else rf"^{re.escape(word)}:"
        assert re.search(pattern, text, re.M), f"make knows no {word}"


def _check_python(arguments: list[str], command: Command) -> None:
    """The file is there and speaks of every option and sub-command."""
    is_module = arguments[0] == "-m"
    place = ROOT / (arguments[1].replace(".", "/") if is_module else arguments[0])
    files = sorted(place.glob("*.py")) if place.is_dir() else [place]
    assert [file for file in files if file.is_file()], f"{place.name}: not there"
    source = "".join(file.read_text() for file in files)
    for word in arguments[1 + is_module :]:
        if re.fullmatch(r"-+[\w-]+|[a-z]+", word):
            assert f'"{word}"' in source or f"{word}(" in source, f"{place.name} knows no {word}"


def _check_install(arguments: list[str], command: Command) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "install" in arguments, "only installs"
    for word in arguments:
        for extra in re.findall(r"\[(.+)\]", word):
            assert extra in extras, f"no extra {extra}"


CHECKS = {
    "robustvit": _check_robustvit,
    "make": _check_make,
    "python": _check_python,
    "pip": _check_install,
    "uv": _check_install,
}
Refused = (AssertionError, UserError, SystemExit)
"""What `check` raises."""
