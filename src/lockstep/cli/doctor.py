"""``lockstep doctor``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, Format, answers
from lockstep.cli.console import OUTPUT, connect
from lockstep.errors import ExitCode, LockstepError, counted

HERE: Final = "here"
SERVICE: Final = "service"
_COLOURS: Final = {"error": "red", "warning": "yellow"}


COLUMNS: Final = (
    Column(name="result"),
    Column(name="where"),
    Column(name="check"),
    Column(name="text", value=lambda row: row.get("what") or row.get("text")),
    Column(name="received"),
    Column(name="needed"),
    Column(name="remedy"),
)
"""The columns of the CSV. ``result`` is the severity of a finding, "passed" or "skipped"."""


@answers("DiagnosisForm", is_list=True)
def doctor(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help="Run only this check of this machine; may be repeated."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also list the checks that do not apply here.")] = False,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Check this machine and what you can reach from it, and print the command that mends each fault.

    With a key of an operator of all projects, the service's machine is checked too. The exit code is 1 if there is an
    error, and 0 if there are only warnings.
    """
    # Imported here because the checks import much that other commands do not need.
    from lockstep.doctor import diagnose

    with OUTPUT.status("checking") if output_format is Format.TABLE else contextlib.nullcontext():
        found = _placed(diagnose(only=only or ()).to_json(), where=HERE)
        theirs = None if only else _of_service()
    for kind, rows in (theirs or {}).items():
        # A service on this machine has the same faults, and they are shown once.
        known = {_content(row) for row in found[kind]}
        found[kind] += [row for row in rows if _content(row) not in known]
    num_errors = sum(row["severity"] == "error" for row in found["findings"])
    return Answer(
        show=lambda: _print(found, num_errors=num_errors, verbose=verbose),
        document=found,
        rows=[
            *({**row, "result": row["severity"]} for row in found["findings"]),
            *({**row, "result": kind} for kind in ("passed", "skipped") for row in found[kind]),
        ],
        columns=COLUMNS,
        error=typer.Exit(ExitCode.NO) if num_errors else None,
    )


def _of_service() -> dict[str, list[dict[str, str]]] | None:
    """Returns the results of the service's machine; None if this key may not ask, or no service answers."""
    try:
        with connect() as client:
            return _placed(client.doctor(), where=SERVICE)
    except LockstepError:  # the check of credentials says so
        return None


def _placed(document: dict[str, Any], *, where: str) -> dict[str, list[dict[str, str]]]:
    return {kind: [{"where": where, **row} for row in document[kind]] for kind in ("findings", "passed", "skipped")}


def _content(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(value for name, value in row.items() if name not in ("where", "received", "text"))


def _print(found: dict[str, list[dict[str, str]]], *, num_errors: int, verbose: bool) -> None:
    from rich.text import Text  # here, because the JSON needs none

    for row in found["findings"]:
        place = " (on the service's machine)" if row["where"] == SERVICE else ""
        severity = Text(row["severity"], style=_COLOURS[row["severity"]])
        OUTPUT.print(Text.assemble(severity, f"  {row['check']}: {row['what']}{place}"))
        OUTPUT.print(f"    received: {row['received']}")
        OUTPUT.print(f"    needed:   {row['needed']}")
        OUTPUT.print(Text.assemble("    mend it:  ", (row["remedy"], "bold")))
    _print_remarks("passed", found["passed"])
    if verbose:
        _print_remarks("skipped", found["skipped"])
    num_warnings = len(found["findings"]) - num_errors
    OUTPUT.print(
        f"{counted(num_errors, 'error')}, {counted(num_warnings, 'warning')}, "
        f"{counted(len(found['passed']), 'check')} passed, {len(found['skipped'])} do not apply"
    )


def _print_remarks(title: str, rows: Iterable[dict[str, str]]) -> None:
    from rich.text import Text  # here, because the JSON needs none

    for row in rows:
        place = ", on the service's machine" if row["where"] == SERVICE else ""
        OUTPUT.print(
            Text.assemble((title, "green" if title == "passed" else "dim"), f"  {row['check']}: {row['text']}{place}")
        )
