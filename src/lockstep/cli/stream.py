"""Follows a job's log. The job does not depend on the follower, which may end at any time."""

from __future__ import annotations

import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, final

from lockstep.cli.console import ERRORS, local_time, print_json, print_line, progress_text, simulated_suffix
from lockstep.client.following import followed
from lockstep.jobs.running.states import TERMINAL

if TYPE_CHECKING:
    from lockstep.client import Client

PROGRESS_S: Final = 30.0
"""The interval at which the program's progress is printed while its log has no new entries, in seconds."""

_COLOURS: Final = {
    "DEBUG": "bright_black",
    "NOTICE": "cyan",
    "WARNING": "yellow",
    "ERROR": "red",
    "CRITICAL": "bright_red",
    "ALERT": "bright_red",
    "EMERGENCY": "bright_red",
}


@final
class Printing(Enum):
    """How the entries of a log are printed."""

    TEXT = auto()
    """A line for each."""
    JSON = auto()
    """A JSON document on a line for each."""
    NOTHING = auto()
    """Not at all: only the states of the job are."""


def follow(
    client: Client, job: str, *, filter_text: str = "", limit: int | None = None, prints: Printing = Printing.TEXT
) -> dict[str, Any]:
    """Prints a job's log until the job has ended, and returns the latest known job.

    Args:
        client: the client of the service.
        job: the job's name.
        filter_text: the filter for entries, in Cloud Logging's query language.
        limit: the number of entries after which to stop; None for no limit.
        prints: how to print the entries.

    Raises:
        UnavailableError: the service did not respond for longer than `lockstep.client.following.AWAY_S`.
        StorageError: the bucket could not be read for longer than `lockstep.client.following.AWAY_S`.
    """
    state = ""
    found: dict[str, Any] = {}
    printer = EntryPrinter(prints)
    quiet_since = time.monotonic()
    for page, found in followed(client, job, filter_text=filter_text):
        if found["state"] != state and found["state"] not in TERMINAL:
            state = found["state"]
            _print_state(found)
        if page["entries"]:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > PROGRESS_S and found["lockstep"]["progress"]:
            quiet_since = time.monotonic()
            ERRORS.print(f"-- {progress_text(found['lockstep']['progress'])}", style="dim")
        for entry in page["entries"]:
            printer.print(entry)
            if printer.num_printed == limit:
                return found
        if page["complete"]:
            _print_state(found)
            if page["numMissing"]:
                ERRORS.print(f"{page['numMissing']} entries were lost before they reached the bucket", style="yellow")
    return found


def _print_state(job: dict[str, Any]) -> None:
    waits = job["lockstep"]["waitingFor"]
    ERRORS.print(f"-- {job['state']}{simulated_suffix(job)}{f': {waits}' if waits else ''}", style="dim")


@final
class EntryPrinter:
    """Prints entries of one job's log: time, replica, severity and text, with colours on a terminal; or JSON.

    Args:
        prints: how to print the entries.

    Attributes:
        num_printed: the number of entries printed so far.
    """

    def __init__(self, prints: Printing = Printing.TEXT) -> None:
        self.num_printed = 0
        self._prints = prints
        self._attempt = "0"

    def print(self, entry: dict[str, Any]) -> None:
        """Prints one entry, after a line about the attempt if a new one begins."""
        self.num_printed += 1
        if self._prints is not Printing.TEXT:
            if self._prints is Printing.JSON:
                print_json(entry)
            return
        attempt = entry["labels"]["attempt"]
        if attempt != self._attempt:
            self._attempt = attempt
            ERRORS.print(f"-- attempt {attempt}", style="dim")
        severity = entry["severity"]
        time_of_day = local_time(entry["timestamp"])[11:]
        line = f"{time_of_day} {entry['resource']['labels']['task_name']} {severity:<8} {entry['textPayload']}"
        print_line(line, colour=_COLOURS.get(severity))
