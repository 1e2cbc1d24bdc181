"""Defines the life of a job as one table of transitions; nothing here acts.

Whoever watches a job turns what happened into an event, and the table says which state follows. An event that does not
fit the state raises an error and changes nothing. The diagram in ``docs/job-states.md`` is generated from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, final

from lockstep.errors import WrongStateError


@final
class JobState(StrEnum):
    """The contract's states of a job."""

    STATE_UNSPECIFIED = "STATE_UNSPECIFIED"
    """The job does not exist yet."""
    QUEUED = "QUEUED"
    """The job waits in the queue."""
    PREPARING = "PREPARING"
    """The replicas are placed; their programs do not run yet."""
    RUNNING = "RUNNING"
    """The program runs; this time is billed."""
    SUCCEEDED = "SUCCEEDED"
    """The program ended successfully."""
    FAILED = "FAILED"
    """The program failed, or could not be started."""
    CANCELLING = "CANCELLING"
    """Somebody, or a time limit, requested the job's end, and its replicas are being stopped."""
    CANCELLED = "CANCELLED"
    """The job was ended on request."""


@final
class JobEvent(StrEnum):
    """The events in the life of a job."""

    ENQUEUED = "enqueued"
    """The job was created."""
    PREPARING = "preparing"
    """The replicas are being placed."""
    STARTED = "started"
    """The program runs."""
    RESTARTED = "restarted"
    """The gang failed, and will be started again."""
    REQUEUED = "requeued"
    """The job's machines are unavailable at the moment: it waits in the queue again."""
    SUCCEEDED = "succeeded"
    """The program ended successfully."""
    FAILED = "failed"
    """The program failed, or cannot be started."""
    CANCEL_REQUESTED = "cancel_requested"
    """Somebody, or a time limit, requested the job's end."""
    CANCELLED = "cancelled"
    """The job's end was requested, and none of its replicas runs any more."""


TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = MappingProxyType(
    {
        (JobState.STATE_UNSPECIFIED, JobEvent.ENQUEUED): JobState.QUEUED,
        (JobState.QUEUED, JobEvent.PREPARING): JobState.PREPARING,
        (JobState.QUEUED, JobEvent.FAILED): JobState.FAILED,
        (JobState.QUEUED, JobEvent.CANCEL_REQUESTED): JobState.CANCELLING,
        (JobState.PREPARING, JobEvent.STARTED): JobState.RUNNING,
        (JobState.PREPARING, JobEvent.RESTARTED): JobState.QUEUED,
        (JobState.PREPARING, JobEvent.REQUEUED): JobState.QUEUED,
        (JobState.PREPARING, JobEvent.FAILED): JobState.FAILED,
        (JobState.PREPARING, JobEvent.CANCEL_REQUESTED): JobState.CANCELLING,
        (JobState.RUNNING, JobEvent.SUCCEEDED): JobState.SUCCEEDED,
        (JobState.RUNNING, JobEvent.RESTARTED): JobState.QUEUED,
        (JobState.RUNNING, JobEvent.FAILED): JobState.FAILED,
        (JobState.RUNNING, JobEvent.CANCEL_REQUESTED): JobState.CANCELLING,
        # Asking twice is no error: the client may not have received the first response.
        (JobState.CANCELLING, JobEvent.CANCEL_REQUESTED): JobState.CANCELLING,
        (JobState.CANCELLING, JobEvent.CANCELLED): JobState.CANCELLED,
        # The program may end by itself before the request reaches it. What really happened is recorded.
        (JobState.CANCELLING, JobEvent.SUCCEEDED): JobState.SUCCEEDED,
        (JobState.CANCELLING, JobEvent.FAILED): JobState.FAILED,
    }
)
"""The state that follows, by state and event. Nothing else defines transitions."""

TERMINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""The final states."""


def allowed_events(state: JobState) -> tuple[JobEvent, ...]:
    """Returns the events that are allowed in a state, in the order of the table."""
    return tuple(event for before, event in TRANSITIONS if before is state)


def next_state(state: JobState, *, event: JobEvent) -> JobState:
    """Returns the state that follows an event.

    Args:
        state: the current state of the job.
        event: the event.

    Raises:
        WrongStateError: If the event is not allowed in the state.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        events = allowed_events(state)
        raise WrongStateError(
            f"this event is not allowed in state {state}",
            received=event.value,
            allowed=[e.value for e in events] if events else f"nothing, since {state} is an end",
        )
    return after


def diagram() -> str:
    """Returns the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (before, event), after in TRANSITIONS.items():
        start = "[*]" if before is JobState.STATE_UNSPECIFIED else before.value
        lines.append(f"    {start} --> {after.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in JobState if state in TERMINAL]
    return "\n".join(lines) + "\n"
