"""Following a job's log: a reader of the service, whose end changes nothing for the job."""

from __future__ import annotations

import time
from typing import Any, Final

import typer

from lockstep.cli.console import ERRORS, local_time, simulated_suffix
from lockstep.client import Client
from lockstep.errors import StorageError, UnavailableError
from lockstep.jobs import TERMINAL

POLL_S: Final = 0.3
AWAY_S: Final = 60.0


def follow(client: Client, job: str) -> dict[str, Any]:
    """Prints a job's log until the job is over; returns the job as it ended.

    The service may go away and come back meanwhile, at another port and with another token; and its bucket may fail for
    a while: the cursor is the reader's own.

    Raises:
        UnavailableError: the service was away for longer than `AWAY_S`.
        StorageError: the bucket could not be read for as long.
    """
    cursor = ""
    state = ""
    away_since: float | None = None
    several = False
    while True:
        try:
            client.find_again()
            page = client.log_page(job, cursor=cursor)
            found = client.job(job)
        except (UnavailableError, StorageError):
            away_since = time.monotonic() if away_since is None else away_since
            if time.monotonic() - away_since > AWAY_S:
                raise
            time.sleep(POLL_S)
            continue
        away_since = None
        if found["state"] != state and found["state"] not in TERMINAL:
            state = found["state"]
            _print_state(found)
        several = several or len(found["lockstep"]["replicas"]) > 1
        for entry in page["entries"]:
            print_entry(entry, with_replica=several)
        cursor = page["cursor"]
        if page["complete"]:
            _print_state(found)
            if page["numMissing"]:
                ERRORS.print(f"{page['numMissing']} lines never reached the bucket", style="yellow")
            return found
        if not page["entries"]:
            time.sleep(POLL_S)


def _print_state(job: dict[str, Any]) -> None:
    waits = job["lockstep"]["waitingFor"]
    ERRORS.print(f"-- {job['state']}{simulated_suffix(job)}{f': {waits}' if waits else ''}", style="dim")


def print_entry(entry: dict[str, Any], *, with_replica: bool) -> None:
    """Prints one line of a log."""
    replica = f" {entry['replica']}" if with_replica else ""
    typer.echo(f"{local_time(entry['timestamp'])[11:]}{replica}  {entry['textPayload']}")
