"""Why a job did not succeed, as an error with the last lines of its log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from lockstep.client.client import Client
from lockstep.client.wording import printable
from lockstep.errors import JobCancelledError, JobFailedError, LockstepError
from lockstep.jobs.running.states import JobState

NUM_LINES: Final = 20
LAST_S: Final = 60
"""The last lines of a log are looked for among the entries of the time before the job's end, in seconds."""
READING_S: Final = 5.0
"""How long the log is read for them, in seconds."""
_POLL_S: Final = 0.2


def ending_error(client: Client, job: Mapping[str, Any]) -> JobFailedError | None:
    """Returns the error for a job that is over and did not succeed; None for one that did.

    The error has the last lines of the job's log, and its traceback shows them. A log that cannot be read is left out.

    Args:
        client: a client of the service.
        job: the job, in the contract's JSON form.
    """
    name, state = job["jobId"], job["state"]
    if state == JobState.SUCCEEDED:
        return None
    reason = printable((job.get("errorMessage") or job["lockstep"]["endReason"] or "").partition("\n")[0])
    if state == JobState.CANCELLED:
        return JobCancelledError(f"job {name} was cancelled{f': {reason}' if reason else ''}")
    error = JobFailedError(f"job {name} failed{f': {reason}' if reason else ''}")
    error.log_lines = _last_lines(client, job)
    if error.log_lines:
        error.add_note("The last lines of its log:\n" + "\n".join(f"  {line}" for line in error.log_lines))
    return error


def _last_lines(client: Client, job: Mapping[str, Any]) -> tuple[str, ...]:
    if "endTime" not in job:
        return ()
    since = datetime.fromisoformat(job["endTime"]) - timedelta(seconds=LAST_S)
    filter_text = f'timestamp>="{since.isoformat()}"'
    lines: deque[str] = deque(maxlen=NUM_LINES)
    cursor, deadline = "", time.monotonic() + READING_S
    try:
        while time.monotonic() < deadline:
            page = client.log_page(job["jobId"], cursor=cursor, filter_text=filter_text)
            cursor = page["cursor"]
            lines.extend(printable(line) for entry in page["entries"] for line in entry["textPayload"].splitlines())
            if page["complete"]:
                break
            if not page["more"]:
                time.sleep(_POLL_S)
    except LockstepError:
        pass  # the job's own error is what counts
    return tuple(lines)
