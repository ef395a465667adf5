"""`robustvit reproduce`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustvit.core.errors import UserError, first_line, some_failed
from robustvit.core.progress import say

if TYPE_CHECKING:
    from robustvit.reproduce import Entry


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A paper such as beats-wrn, or a table or figure of it such as beats-wrn/table-5; --list shows all.",
            metavar="PAPER[/TABLE]",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="small: run here what a laptop can see of it; full: print the commands and their cost.")
    ] = "small",
    list_only: Annotated[
        bool, typer.Option("--list", help="Show every table and figure, its commands, and what was seen of it.")
    ] = False,
    runs: Annotated[
        Path, typer.Option("--runs", help="The folder around runs and pages; what recipes start from stays in runs.")
    ] = Path("runs"),
    hardware: Annotated[str, typer.Option(help="Whose cost is planned with --scale full.")] = "a100-80gb:8",
) -> None:
    """Run a table or figure of the papers and compare; stopped or killed, the same command resumes.

    Example: robustvit reproduce beats-wrn/table-5 --scale small
    """
    from robustvit.reproduce import find_entries, paper_names

    if scale not in ("small", "full"):
        raise UserError(f"--scale {scale}: small or full")
    if what is None and not list_only:
        known = ", ".join(paper_names())
        raise UserError(f"say which paper, or a table or figure of it, such as beats-wrn/table-5: {known}; or --list")
    entries = [entry for name in ([what] if what is not None else paper_names()) for entry in find_entries(name)]
    if list_only:
        _echo_list(entries)
    elif scale == "full":
        _echo_full(entries, runs, hardware)
    else:
        assert what is not None
        _run_small(what, entries, runs)


def _echo_list(entries: list["Entry"]) -> None:
    from robustvit.reproduce.listing import lines_of

    for entry in entries:
        for line in lines_of(entry):
            typer.echo(line)


def _echo_full(entries: list["Entry"], runs: Path, hardware: str) -> None:
    from robustvit.planning import hardware_from
    from robustvit.reproduce.full import absent, costs, full_commands
    from robustvit.reproduce.page import write_claims
    from robustvit.reproduce.run import stored_findings

    device = hardware_from(hardware, "float32")
    for entry in entries:
        typer.echo(f"# {entry.name}: {entry.claim}")
        if entry.full is None:
            typer.echo(f"# {entry.no_full}")
            continue
        for text in absent(entry):
            typer.echo(f"# needs, not in {Path.cwd()}: {text}")
        for text in entry.needs:
            typer.echo(f"# needs: {text}")
        for text in costs(entry, device):
            typer.echo(f"# plan: {text}")
        for text in full_commands(entry, runs):
            typer.echo(text)
        try:
            findings = stored_findings(entry, runs)
        except UserError as error:
            typer.echo(f"# not drawn from stored results: {first_line(error)}")
            continue
        if findings:
            page = _page(runs, f"{entry.name}-full")
            typer.echo(f"# from stored results: {write_claims(page, _title(entry), '', findings)}")


def _run_small(what: str, entries: list["Entry"], runs: Path) -> None:
    """Of a whole paper, everything that has a small form; of one entry without, the reason is an error."""
    from robustvit.cli.launch import one_process
    from robustvit.core.files import check_writable
    from robustvit.reproduce import load_paper
    from robustvit.reproduce.entries import commands_below
    from robustvit.reproduce.page import write_claims
    from robustvit.reproduce.run import run_small

    one_process("reproduce")
    if len(entries) == 1 and entries[0].small is None:
        advice = "" if entries[0].full is None else "; --scale full prints what the paper did"
        raise UserError(f"{entries[0].name} has no small form: {entries[0].no_small}{advice}")
    check_writable(runs)
    single = len(entries) == 1
    findings, missing, failed = [], [], []
    for entry in entries:
        if entry.small is None:
            missing.append((entry.title, entry.no_small))
            continue
        say(f"{entry.name}: {entry.claim}")
        try:
            if entry.small.prepare:
                _run_commands([shlex.split(command) for command in entry.small.prepare])
            if entry.small.commands:
                commands = commands_below(entry.small.commands, runs)
                _run_commands(commands)
                missing.append((entry.title, f"pages of its own, by {'; '.join(map(shlex.join, commands))}"))
            else:
                findings.append(run_small(entry, runs))
        except UserError as error:
            if single:
                raise
            failed.append(str(error))
            missing.append((entry.title, first_line(error)))
            say(f"failed: {error}")
    paper = load_paper(what.lower().partition("/")[0])
    page = _page(runs, entries[0].name if single else paper.name)
    if findings:
        for finding in findings:
            for one in finding.facts["verdicts"]:
                typer.echo(f"{one['verdict']:<10} {one['claim']}")
        title = _title(entries[0]) if single else paper.title
        typer.echo(str(write_claims(page, title, _lede(entries), findings, missing)))
    if failed:
        raise some_failed(f"{len(failed)} of {len(entries)}", failed)


def _lede(entries: list["Entry"]) -> str:
    """Of one entry, its claim is the heading below."""
    return "" if len(entries) == 1 else f"What is seen of its {len(entries)} tables and figures at small scale."


def _title(entry: "Entry") -> str:
    from robustvit.reproduce import load_paper

    return f"{load_paper(entry.name.partition('/')[0]).title}, {entry.title}"


def _page(runs: Path, name: str) -> Path:
    return runs / "reproduce" / f"{name.replace('/', '-')}.html"


def _run_commands(commands: list[list[str]]) -> None:
    import subprocess
    import sys

    for words in commands:
        say(shlex.join(words))
        done = subprocess.run([sys.executable, "-m", *words], check=False)
        if done.returncode:
            raise UserError(f"'{shlex.join(words)}' ended with code {done.returncode}, see above")
