"""``lockstep logs``."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockstep.cli.answers import Format, answers
from lockstep.cli.completing import complete_job, complete_version
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, ProjectOption, connect
from lockstep.cli.operations import newest_version, split_version
from lockstep.cli.stream import EntryPrinter, Printing, follow
from lockstep.cli.times import read_moment
from lockstep.cli.trials import explain_search, is_search
from lockstep.client.following import POLL_S
from lockstep.errors import InvalidInputError

if TYPE_CHECKING:
    from lockstep.client import Client
    from lockstep.jobs.logs import Severity

_LAST_STATES: Final = ("FAILED", "DELETING")
"""The states of a version that gets no further prediction servers."""


@answers("LogEntryForm", is_lines=True)
def logs(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=complete_job)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL[/VERSION]",
            help="Print the log of a version's newest prediction server instead. Default: the newest version.",
            autocompletion=complete_version,
        ),
    ] = None,
    filter_text: Annotated[
        str,
        typer.Option(
            "--filter",
            help="Print only entries that match, in Cloud Logging's query language, such as textPayload:loss.",
        ),
    ] = "",
    follow_log: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job ends, or until you interrupt it.")
    ] = False,
    severity: Annotated[str | None, typer.Option(help="Only entries of this severity or above, such as ERROR.")] = None,
    replica: Annotated[str | None, typer.Option(help="Only entries of this replica, such as worker-replica-1.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Only entries of this start of the job, from 0.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Start at a time (2026-01-31T12:00:00Z), or this long ago (10m, 2h).")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many entries.")] = None,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> None:
    """Print the log of a job or of a model's prediction server. Each entry is printed exactly once."""
    if (job is None) == (model is None):
        raise InvalidInputError("name either a job or --model", received=f"{job or 'no job'}, {model or 'no model'}")
    if model is not None and (replica is not None or attempt is not None):
        raise InvalidInputError("--replica and --attempt are only for jobs", action="leave them out")
    parts: list[str] = []
    if filter_text.strip():
        from lockstep.jobs.logs.filters import parse_log_filter  # here, because most logs are read without a filter

        parse_log_filter(filter_text)  # an error here counts columns in the text as the user wrote it
        parts.append(filter_text)
    if severity is not None:
        parts.append(f"severity>={_severity(severity).name}")
    if replica is not None:
        parts.append(f"resource.labels.task_name={_quoted(replica)}")
    if attempt is not None:
        parts.append(f"labels.attempt={attempt}")
    if since is not None:
        parts.append(f"timestamp>={_quoted(read_moment(since, flag='--since'))}")
    # Adjacent parts are joined by AND, which binds loosest, so none needs parentheses. Each part has a line of its own,
    # because the user's filter may end with a comment.
    wanted = "\n".join(parts)
    prints = Printing.JSON if output_format is Format.JSON else Printing.TEXT
    with connect(project) as client:
        if job is None:
            assert model is not None
            _print_server_log(client, model, filter_text=wanted, follows=follow_log, limit=limit, prints=prints)
            return
        if replica is not None:
            _check_replica(client, job, replica)
        if follow_log:
            follow(client, job, filter_text=wanted, limit=limit, prints=prints)
            return
        printer = EntryPrinter(prints)
        is_empty = True
        for entry in islice(client.log_entries(job, filter_text=wanted), limit):
            printer.print(entry)
            is_empty = False
        if is_empty:
            _explain_empty(client, job, attempt)


def _print_server_log(
    client: Client, model: str, *, filter_text: str, follows: bool, limit: int | None, prints: Printing
) -> None:
    """Prints the log of a version's newest server. While it follows, it goes on with the next server."""
    name, version = split_version(model)
    version = version or newest_version(client, name)
    printer, server, cursor = EntryPrinter(prints), "", ""
    while True:
        page = client.version_log_page(name, version=version, server=server, cursor=cursor, filter_text=filter_text)
        server, cursor = page["server"], page["cursor"]
        for entry in page["entries"]:
            printer.print(entry)
            if printer.num_printed == limit:
                return
        if not page["more"] and not follows:
            return
        if page["complete"]:
            following = _next_server(client, name, version, after=server)
            if following is None:
                return
            server, cursor = following, ""
        if not page["more"]:
            time.sleep(POLL_S)


def _next_server(client: Client, model: str, version: str, *, after: str) -> str | None:
    """Waits for the server that follows one that has ended; returns its name. If there will be none, prints why."""
    while True:
        found = client.version(model, name=version)
        newest = client.version_log_page(model, version=version)["server"]
        if newest != after:
            return newest
        if found["state"] in _LAST_STATES:
            reason = f": {error}" if (error := found.get("errorMessage")) else ""
            ERRORS.print(f"-- {model}/{version} is {found['state']}{reason}", style="dim")
            return None
        time.sleep(POLL_S)


def _explain_empty(client: Client, job: str, attempt: int | None) -> None:
    """Prints why a log has no entries: its attempt does not exist or never ran, or the job is a search."""
    described = client.job(job)
    if is_search(described):
        ERRORS.print(explain_search(described, "lockstep logs", what="log"))
    if attempt is None:
        return
    known = {each["attempt"]: each for each in described["lockstep"]["attempts"] or ()}
    found = known.get(attempt)
    if found is None and known and attempt > max(known):
        ERRORS.print(f"job {job} has no attempt {attempt}: its last one so far is {max(known)}")
    elif found is not None and found["startTime"] is None:
        ERRORS.print(f"attempt {attempt} of job {job} never ran: {found['endReason']}")


def _check_replica(client: Client, job: str, replica: str) -> None:
    names = tuple(known["name"] for known in client.job(job)["lockstep"]["replicas"])
    if names and replica not in names:  # a job has no replicas until its machines are known
        raise InvalidInputError("--replica", received=replica, allowed=names)


def _quoted(text: str) -> str:
    from lockstep.jobs.logs.filters import quoted  # as above

    return quoted(text)


def _severity(text: str) -> Severity:
    from lockstep.jobs.logs import Severity, severity_named  # as above

    severity = severity_named(text)
    if severity is None:
        raise InvalidInputError("--severity", received=text, allowed=tuple(Severity.__members__))
    return severity
