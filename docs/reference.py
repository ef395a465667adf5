"""Writes cli.md, settings.md, claims.md and the table of zoo.md, which a test compares with the code.

python docs/reference.py
"""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.models import ArgumentInfo

import robustvit
from robustvit.cli.main import app
from robustvit.core.component import kinds, registered, to_dict
from robustvit.reproduce.entries import Entry, Seen
from robustvit.reproduce.verdict import OURS

HERE = Path(__file__).parent
MADE = "<!-- made by docs/reference.py; edit the code instead -->\n"


def command_line() -> str:
    """Every command with its arguments and options, read from the functions behind them."""
    about = "`robustvit COMMAND --help` shows the same. Errors exit with code 2. Not sure which one?"
    parts = ["# Command line\n", MADE, f"{about}\n[Which command for which question](which-command.md).\n", _groups()]
    for command in app.registered_commands:
        callback: Any = command.callback
        parameters = inspect.signature(callback).parameters.values()
        rows = [(_spelled(one), _default_of(one), _info(one).help or "") for one in parameters]
        arguments = [_spelled(one).strip("`") for one in parameters if _is_argument(one)]
        about, _, example = inspect.cleandoc(callback.__doc__).partition("Example:")
        usage = " ".join(["robustvit", str(command.name), *arguments, "[OPTIONS]"])
        parts += [f"## {command.name}\n", f"`{usage}`\n", about.strip() + "\n", f"```bash\n{example.strip()}\n```\n"]
        parts.append(_table(("argument or option", "default", "meaning"), rows))
    return "\n".join(parts)


def _groups() -> str:
    """The commands as `robustvit --help` groups them."""
    groups: dict[Any, list[str]] = {}
    for command in app.registered_commands:
        groups.setdefault(command.rich_help_panel, []).append(f"[{command.name}](#{command.name})")
    return "".join(f"- {title}: {', '.join(links)}\n" for title, links in groups.items())


def _info(parameter: inspect.Parameter) -> Any:
    return parameter.annotation.__metadata__[0]


def _is_argument(parameter: inspect.Parameter) -> bool:
    return isinstance(_info(parameter), ArgumentInfo)


def _spelled(parameter: inspect.Parameter) -> str:
    info, kind = _info(parameter), str(parameter.annotation.__origin__)
    if _is_argument(parameter):
        return f"`{info.metavar or parameter.name.upper()}`"
    given = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    names = given or [f"--{parameter.name.replace('_', '-')}"]
    kinds = {"int": "INTEGER", "Path": "PATH"}
    value = info.metavar or next((text for name, text in kinds.items() if name in kind), "TEXT")
    return ", ".join(f"`{name}`" if "bool" in kind else f"`{name} {value}`" for name in names)


def _default_of(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "required"
    return "" if parameter.default in (None, False) else f"`{parameter.default}`"


def settings_of_recipes() -> str:
    """The settings of a recipe, and of every component that one of them can name."""
    from robustvit.cards.preset import Preset, PresetRow, RowThreat
    from robustvit.synthesis.recipe import DenoisePhase, DenoiseRecipe
    from robustvit.training.recipe import Phase, Recipe, Validation

    for module in pkgutil.walk_packages(robustvit.__path__, "robustvit."):
        importlib.import_module(module.name)
    parts = [
        "# Settings\n", MADE,
        "Every setting of a [recipe](training.md), of every component and of a [preset](card.md#presets), with its\n"
        "default. A component is given by its name, or by a map with its `name` and settings;\n"
        "`-o path.to.setting=value` changes one. Numbers may be fractions such as `8/255`.\n",
    ]  # fmt: skip
    recipes = (Recipe, Phase, DenoiseRecipe, DenoisePhase)
    classes = [_described(cls, cls.__name__, "##") for cls in recipes]
    presets = [_described(cls, cls.__name__, "##") for cls in (Preset, PresetRow, RowThreat)]
    plain = {cls for cls in map(_class_of, _annotations(*recipes)) if cls} - set(recipes)
    classes += [
        _described(cls, cls.__name__, "##") for cls in sorted({*plain, Validation}, key=lambda cls: cls.__name__)
    ]
    for kind in kinds():
        classes += [f"## {kind}\n", *(_described(cls, f"`{name}`", "###") for name, cls in registered(kind).items())]
    return "\n".join(parts + classes + presets)


def _annotations(*classes: Any) -> list[Any]:
    return [field.type for cls in classes for field in dataclasses.fields(cls)]


def _class_of(annotation: Any) -> Any:
    """A settings class that is no component, such as the optimizer's, inside an annotation."""
    for part in (annotation, *getattr(annotation, "__args__", ())):
        if dataclasses.is_dataclass(part) and not hasattr(part, "name"):
            return part
    return None


def _described(cls: Any, title: str, level: str) -> str:
    about = inspect.cleandoc(cls.__doc__ or "")
    notes = field_notes(cls)
    rows = []
    for field in dataclasses.fields(cls):
        rows.append((f"`{field.name}`", _kind(cls, field), _shown(field), notes.get(field.name, "")))
    table = _table(("setting", "type", "default", "meaning"), rows) if rows else "No settings.\n"
    return "\n\n".join(filter(None, (f"{level} {title}", about, table)))


def _kind(cls: Any, field: Any) -> str:
    """The type, or the words that a setting may be."""
    inside = getattr(field.type, "__origin__", None)
    kind = inside if get_origin(inside) is Literal else field.type
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    return f"`{_short(_annotation(cls, field))}`"


def _annotation(cls: Any, field: Any) -> str:
    for owner in cls.__mro__:
        source = _fields(owner).get(field.name)
        if source is not None:
            return ast.unparse(source.annotation)
    return getattr(field.type, "__name__", str(field.type))


def field_notes(cls: Any) -> dict[str, str]:
    """The text below each field of a class and its parents."""
    notes: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        body = _body(owner)
        for here, after in pairwise(body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name) and is_text:
                notes[here.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return notes


def _fields(cls: Any) -> dict[str, ast.AnnAssign]:
    lines = [line for line in _body(cls) if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    return {line.target.id: line for line in lines}  # type: ignore[union-attr]


def _body(cls: Any) -> list[ast.stmt]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return []
    return tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []


def _short(annotation: str) -> str:
    """`Annotated[int, Field(ge=1)]` as `int`, `AnyAttack` as `attack`."""
    annotation = re.sub(r"Annotated\[(.+?), [A-Z]\w*\(.*\)\]", r"\1", annotation)
    names = {"UnitInterval": "number in [0, 1]", "Count": "int", "NonNegative": "number >= 0", "Positive": "number > 0",
             "Smoothing": "number in [0, 1)", "Factor": "number > 0", "Quality": "int from 1 to 100",
             "Which": "standard or extra or all or names", "Severities": "list of int from 1 to 5",
             "ParameterSet": "imagenet or cifar", "Frost": "drawn or Path"}  # fmt: skip
    for name, text in {**names, "Number": "number"}.items():
        annotation = re.sub(rf"\b{name}\b", text, annotation)
    annotation = re.sub(r"\bAny([A-Z]\w*)\b", lambda match: match[1].lower(), annotation)
    return annotation.replace(" | ", " or ")  # a table can't hold the sign


def _shown(field: Any) -> str:
    default = field.default
    if default is dataclasses.MISSING:
        if field.default_factory is dataclasses.MISSING:
            return "required"
        default = field.default_factory()
    if default is None or (isinstance(default, bool | int | float | str | tuple) and not _is_long(default)):
        return f"`{_yaml(default)}`"
    name = getattr(default, "name", None)
    if _is_long(default):
        return "its defaults"
    if type(default).__str__ is not object.__str__ and not isinstance(name, str):
        return f"`{default}`"
    return (
        f"`{name}`"
        if isinstance(name, str)
        else "its defaults"
        if dataclasses.is_dataclass(default)
        else f"`{default}`"
    )


def _is_long(value: Any) -> bool:
    return isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value)


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", " or ") for cell in row) + " |" for row in cells) + "\n"


def zoo() -> str:
    """The page with the table of its models anew."""
    from robustvit.core.figures import percent
    from robustvit.core.numbers import short_count
    from robustvit.models.zoo import PREFIX, zoo_card, zoo_names, zoo_result

    rows = []
    for name in zoo_names():
        card, result = zoo_card(name), zoo_result(name)
        clean, robust = (result.measure(key) for key in ("clean_accuracy", "robust_accuracy"))
        low, high = (percent(bound) for bound in robust.interval)
        about, recipe = f"`{PREFIX}{name}`: {card.about}", f"`{card.recipe}`"
        cost = (short_count(card.parameters), short_count(card.multiply_adds), f"{card.cpu_seconds:,.0f}")
        accuracies = percent(clean.value), f"{percent(robust.value)} ({low} to {high})"
        rows.append((about, recipe, card.search, *cost, accuracies[0], str(result.threat), accuracies[1]))
    columns = (
        "model", "recipe", "search", "parameters", "multiply-adds", "core-seconds", "clean", "threat", "AutoAttack",
    )  # fmt: skip
    return _with_table("zoo.md", "models", _table(columns, rows))


def _with_table(page: str, name: str, table: str) -> str:
    """The page with this table between the comments that name it."""
    begin, end = f"<!-- {name}, made by docs/reference.py -->\n", f"<!-- end of {name} -->\n"
    text = (HERE / page).read_text("utf-8")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    return f"{before}{begin}\n{table}\n{end}{after}"


def readme() -> str:
    """The page with the verdicts anew: how many of each paper, and folded, every claim."""
    from robustvit.reproduce import load_paper, paper_names
    from robustvit.reproduce.entries import seen_by_us
    from robustvit.reproduce.verdict import Verdict

    verdicts = get_args(Verdict)
    found: dict[tuple[str, str, str, str], list[str]] = {}  # a row for what several tables and figures show
    seen = seen_by_us()
    entries = [entry for name in paper_names() for entry in load_paper(name).entries.values() if entry.name in seen]
    for entry in entries:
        several = seen[entry.name]
        for one in () if isinstance(several, str) else several:
            if one.verdict in verdicts:
                paper = OURS if one.ours else entry.name.partition("/")[0]
                found.setdefault((paper, one.claim, _shown_on(entry), one.verdict), []).append(f"`{entry.name}`")
    counts = Counter((paper, verdict) for paper, _, _, verdict in found)
    papers = [
        (load_paper(name).title, *(str(counts[name, one]) for one in verdicts), str(_not_run(name)))
        for name in paper_names()
    ]
    papers.append((OURS, *(str(counts[OURS, one]) for one in verdicts), ""))
    rows = [
        (f"[{', '.join(names)}](docs/claims.md)", f"{claim} ({OURS})" if paper == OURS else claim, where, verdict)
        for (paper, claim, where, verdict), names in found.items()
    ]
    table = _table(("table or figure", "claim", "on", "seen here?"), rows)
    folded = f"<details>\n<summary>Every claim and its verdict</summary>\n\n{table}\n</details>\n"
    return _with_table(
        "../README.md",
        "claims",
        f"{_table(('claims by paper', *verdicts, 'tables and figures not run yet'), papers)}\n{folded}",
    )


def _shown_on(entry: Entry) -> str:
    """The data of its small form."""
    from robustvit.training.recipe import recipe_from
    from robustvit.training.sweep_grid import sweep_from

    small = entry.small
    assert small is not None
    if small.given is not None:
        return small.given.data
    assert small.sweep is not None
    sweep = sweep_from(small.sweep, [])
    point = sweep.points()[0]
    return str(to_dict(recipe_from(sweep.recipe_of(point), point.overrides).data)["name"])


def _not_run(paper: str) -> int:
    from robustvit.reproduce import load_paper
    from robustvit.reproduce.entries import seen_by_us

    return sum(
        entry.small is not None and entry.name not in seen_by_us() for entry in load_paper(paper).entries.values()
    )


def claims() -> str:
    """What was seen of the papers' claims, and what was not run yet."""
    from robustvit.reproduce import load_paper, paper_names
    from robustvit.reproduce.entries import seen_by_us
    from robustvit.reproduce.verdict import RULE

    seen, papers = seen_by_us(), [load_paper(name) for name in paper_names()]
    parts = ["# What became of the papers' claims\n", MADE, _CLAIMS, textwrap.fill(RULE, 120) + "\n"]
    rows, noted = [], {}
    for entry in (entry for paper in papers for entry in paper.entries.values()):
        if entry.name not in seen:
            small = entry.no_small or "not run yet"
            rows.append((f"`{entry.name}`", entry.claim, small))
            continue
        parts.append(f"## {entry.name}: {entry.claim}\n")
        found, picture = seen[entry.name], f"images/claims-{entry.name.replace('/', '-')}.svg"
        if isinstance(found, str):
            parts.append(f"- Observed: {found}.\n- Verdict: none; no rule compares pictures or curves.\n")
            if (HERE / picture).exists():
                parts.append(f"![{entry.title} in small]({picture})\n")
            continue
        parts.append("".join(_seen_lines(one) for one in found))
        first = noted.setdefault(entry.small.notes, entry.name)
        parts += [f"{note}\n" for note in entry.small.notes] if first == entry.name else [f"Notes: as for {first}.\n"]
        parts.append(f"![Differences of accuracy]({picture})\n")
    parts += ["## The other tables and figures\n", _table(("entry", "claim", "small form"), rows)]
    return "\n".join(parts)


def _seen_lines(one: Seen) -> str:
    """A claim, and below it what was measured and the verdict."""
    from robustvit.reproduce.finding import points_text, seen_text
    from robustvit.reproduce.verdict import NO_CLAIM

    head, verdict = f"**{one.claim}**; the paper's difference: {points_text(one.paper)}.", f"**{one.verdict}**."
    if one.verdict == NO_CLAIM:
        head, verdict = f"**{one.claim}**.", "none; the paper claims neither side."
    if one.ours:
        verdict = f"{verdict[:-1]}; {OURS}."
    below = [f"Measured: {seen_text(one)}.", f"Verdict: {verdict}", *(f"Note: {note}." for note in one.notes)]
    return "\n".join([f"- {head}", *(f"    - {line}" for line in below)]) + "\n"


_CLAIMS = """`robustvit reproduce` runs a table or figure of the five papers as far as a laptop can, and compares:

```sh
robustvit reproduce --list
```

```bash
robustvit reproduce beats-wrn/table-5                  # trains, evaluates and writes runs/reproduce/*.html
robustvit reproduce understanding/table-3              # compares models of the zoo on CIFAR-10, without training
robustvit reproduce beats-wrn/table-5 --scale full     # the commands for a cluster, their cost, what is not here
```

Small forms are about small models and other data than the papers'. They can show that a claim holds there, or that it
does not; neither decides about the papers' own scale. A negative result is a result. All differences are in percentage
points, with 95 % intervals over images and seeds (`crossed_interval` of `core/numbers.py`). Models of the
[zoo](zoo.md) are one training each: there the intervals are over images alone, and another seed may differ by more.
"""


PAGES = {
    "cli.md": command_line,
    "settings.md": settings_of_recipes,
    "zoo.md": zoo,
    "claims.md": claims,
    "../README.md": readme,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), encoding="utf-8")
        print(HERE / name)
