"""What the verbs print with, and the options that many of them share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TextIO

import typer

from lockstep.cli.sanitizing import SanitizingConsole, sanitized
from lockstep.client import Client
from lockstep.storage import check_shared_url

NUM_COLUMNS_OF_FILES: Final = 200
"""Width of tables that do not go to a terminal: wide enough that nothing is cut."""


def _console(stream: TextIO, *, stderr: bool) -> SanitizingConsole:
    width = None if stream.isatty() else NUM_COLUMNS_OF_FILES
    # Names and paths may hold brackets and colons: nothing that is printed is read as markup.
    return SanitizingConsole(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)


OUTPUT: Final = _console(sys.stdout, stderr=False)
ERRORS: Final = _console(sys.stderr, stderr=True)
# All that the verbs print goes through these two and the functions below, which sanitize it; Ruff bans Typer's own.


def print_line(text: str, *, colour: str | None = None) -> None:
    """Prints a line as it is, at any length, with its tabs; its own colours stay on a terminal.

    Args:
        text: the line, or several.
        colour: the colour of all of it on a terminal.
    """
    has_colours = OUTPUT.is_terminal and not OUTPUT.no_color
    line = sanitized(text, keeps_colours=has_colours)
    typer.echo(typer.style(line, fg=colour) if colour is not None and has_colours else line)  # noqa: TID251


def print_document(text: str) -> None:
    """Prints a text that may be meant for a file: as it is where it goes to one, sanitized on a terminal.

    Args:
        text: the text, or a part of it; no new line is added.
    """
    shown = sanitized(text.replace("\r\n", "\n")) if OUTPUT.is_terminal else text
    typer.echo(shown, nl=False)  # noqa: TID251


def print_json(document: object, *, indent: int | None = None) -> None:
    """Prints JSON in ASCII, which is the same document to whoever reads it, and moves no terminal.

    Args:
        document: what `json.dumps` takes.
        indent: how far each level is set in; None for one line.
    """
    # The one control character that JSON does not escape by itself.
    typer.echo(json.dumps(document, indent=indent).replace("\x7f", "\\u007f"))  # noqa: TID251


def ask(question: str) -> bool:
    """Asks whoever sits there, on standard error; no answer is a no.

    Raises:
        Abort: of Typer: they ended the question.
    """
    return typer.confirm(sanitized(question), err=True)  # noqa: TID251


ProjectOption = Annotated[str, typer.Option("--project", envvar="LOCKSTEP_PROJECT", help="The project.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
VariablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="An environment variable of the program, on every replica; may be repeated. No place for secrets.",
    ),
]
DEFAULT_PROJECT: Final = "local"


def connect(project: str = DEFAULT_PROJECT) -> Client:
    """Returns a client of the service that the environment names, or of this home's."""
    return Client.from_env(project=project)


def warn_of_users(service: Mapping[str, Any]) -> None:
    """Warns, in a line, where programs run as root though nobody asked for that.

    Args:
        service: how the service is.
    """
    if warning := service.get("programsWarning"):  # which a service of another version does not say
        ERRORS.print(f"warning: {warning}", style="yellow")


def simulated_suffix(job: Mapping[str, Any]) -> str:
    """Returns " (simulated)" for a job whose accelerators are."""
    return " (simulated)" if job["lockstep"]["simulated"] else ""


def progress_text(progress: Mapping[str, Any]) -> str:
    """Returns how far a program is, and when it said so: "step 1200, loss 0.31, 3.0 s ago"."""
    return f"{progress['text']}, {duration(max(0.0, time.time() - progress['time']))} ago"


def budget_text(budget: Mapping[str, Any]) -> str:
    """Returns how a budget is: "vision: $36.10 of $40.00 in 2026-11-22 (UTC), stops there; told at 50%, 90%"."""
    shares = ", ".join(f"{float(share) * 100:g}%" for share in budget["alertShares"])
    told = f"; told at {shares}" if shares else ""
    stop = ", stops there" if budget["stopAtLimit"] else ""
    unpriced = f"; unpriced, counted as nothing: {', '.join(budget['unpriced'])}" if budget["unpriced"] else ""
    return f"{budget['project']}: {budget['text']}{stop}{told}{unpriced}"


def local_time(timestamp: str | float | None) -> str:
    """Returns a time of the service as this machine's clock shows it; "-" for none."""
    if timestamp is None:
        return "-"
    moment = (
        datetime.fromisoformat(timestamp)
        if isinstance(timestamp, str)
        else datetime.fromtimestamp(timestamp).astimezone()
    )
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """Returns a duration in words: "1 h 02 min", "3 min 20 s", "4.2 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float) -> str:
    """Returns a number of bytes in words: "17 B", "3.4 KiB", "120 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def absolute_url(url: str, *, what: str) -> str:
    """Returns a bucket's or object's URL as the service can find it, which works in another folder than this process.

    Args:
        url: the URL, or a path of this machine.
        what: the flag that names it.

    Raises:
        InvalidInputError: it is not usable, or in the memory of one process.
    """
    absolute = os.path.abspath(url) if url and "://" not in url else url
    check_shared_url(absolute, what=what)
    return absolute
