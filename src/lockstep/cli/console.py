"""Printing for all commands, and the options that several of them share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from lockstep.cli.completing import complete_job, complete_model, complete_version
from lockstep.cli.lean_client import client_class
from lockstep.cli.sanitizing import SanitizingConsole, sanitized
from lockstep.client.wording import duration as duration
from lockstep.client.wording import size as size
from lockstep.submission.urls import absolute_url as absolute_url

if TYPE_CHECKING:
    from lockstep.client import Client

NUM_COLUMNS_OF_FILES: Final = 200
"""The width of tables that are not printed to a terminal, in columns: wide enough that nothing is cut off."""


def _console(stream: TextIO, *, stderr: bool) -> SanitizingConsole:
    width = None if stream.isatty() else NUM_COLUMNS_OF_FILES
    # Names and paths may contain brackets and colons, so no printed text is parsed as markup.
    return SanitizingConsole(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)


OUTPUT: Final = _console(sys.stdout, stderr=False)
ERRORS: Final = _console(sys.stderr, stderr=True)
# All commands print with these two consoles and the functions below, which sanitize the text; Ruff bans Typer's own.


def print_line(text: str, *, colour: str | None = None) -> None:
    """Prints a line without wrapping it or replacing its tabs. A terminal shows the line's own colours.

    Args:
        text: one or more lines.
        colour: the colour of the whole text on a terminal.
    """
    has_colours = OUTPUT.is_terminal and not OUTPUT.no_color
    line = sanitized(text, keeps_colours=has_colours)
    typer.echo(typer.style(line, fg=colour) if colour is not None and has_colours else line)  # noqa: TID251


def print_document(text: str) -> None:
    """Prints a text that may be redirected to a file: unchanged to a file, sanitized on a terminal.

    Args:
        text: the text, or a part of it; no newline is added.
    """
    shown = sanitized(text.replace("\r\n", "\n")) if OUTPUT.is_terminal else text
    typer.echo(shown, nl=False)  # noqa: TID251


def print_json(document: object, *, indent: int | None = None) -> None:
    """Prints JSON in ASCII: the same document for its reader, without characters that control a terminal.

    Args:
        document: a value that `json.dumps` accepts.
        indent: the number of spaces for each level; None for one line.
    """
    # The only control character that `json.dumps` does not escape.
    typer.echo(json.dumps(document, indent=indent).replace("\x7f", "\\u007f"))  # noqa: TID251


def confirm(question: str) -> bool:
    """Asks the user a yes-or-no question on standard error; the default is no.

    Raises:
        Abort: Typer's error if the user presses Ctrl-C or Ctrl-D.
    """
    return typer.confirm(sanitized(question), err=True)  # noqa: TID251


ProjectOption = Annotated[str, typer.Option("--project", envvar="LOCKSTEP_PROJECT", help="The project.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=complete_job)]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.", autocompletion=complete_model)]
ReadyVersionArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL/VERSION", help="The version; it must be READY.", autocompletion=complete_version),
]
VariablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="An environment variable of the program, on every replica; may be repeated. Do not use it for secrets: "
        "see docs/secrets.md.",
    ),
]
DEFAULT_PROJECT: Final = "local"


def connect(project: str = DEFAULT_PROJECT) -> Client:
    """Returns a client of the service that the environment names, by default of the home's service."""
    return client_class().from_env(project=project)


def warn_if_programs_run_as_root(service: Mapping[str, Any]) -> None:
    """Prints a warning if programs run as root although this was not requested.

    Args:
        service: the status of the service.
    """
    if warning := service.get("programsWarning"):  # missing in the status of a service of another version
        ERRORS.print(f"warning: {warning}", style="yellow")


def simulated_suffix(job: Mapping[str, Any]) -> str:
    """Returns " (simulated)" for a job with simulated accelerators, otherwise an empty text."""
    return " (simulated)" if job["lockstep"]["simulated"] else ""


def progress_text(progress: Mapping[str, Any]) -> str:
    """Returns a program's progress, and the age of the report: "step 1200, loss 0.31, 3.0 s ago"."""
    return f"{progress['text']}, {duration(max(0.0, time.time() - progress['time']))} ago"


def budget_text(budget: Mapping[str, Any]) -> str:
    """Returns the state of a budget: "vision: $36.10 of $40.00 in 2026-11-22 (UTC); alerts raised at 50%, 90%"."""
    shares = ", ".join(f"{float(share) * 100:g}%" for share in budget["alertShares"])
    alerts = f"; alerts raised at {shares}" if shares else ""
    stop = ", no new jobs start at the limit" if budget["stopAtLimit"] else ""
    unpriced = f"; unpriced, not counted: {', '.join(budget['unpriced'])}" if budget["unpriced"] else ""
    return f"{budget['project']}: {budget['text']}{stop}{alerts}{unpriced}"


def local_time(timestamp: str | float | None) -> str:
    """Returns a time from the service in this machine's time zone; "-" for None."""
    if timestamp is None:
        return "-"
    moment = (
        datetime.fromisoformat(timestamp)
        if isinstance(timestamp, str)
        else datetime.fromtimestamp(timestamp).astimezone()
    )
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
