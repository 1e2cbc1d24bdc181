"""The life of a job: one table of transitions, and nothing that acts.

Whoever watches a job turns what happened into an event; the table says which state follows. An event that does not fit
the state raises and changes nothing. The picture in ``docs/job-states.md`` is generated from the table.
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
    """Not created yet."""
    QUEUED = "QUEUED"
    """Waits for its turn."""
    PREPARING = "PREPARING"
    """Its replicas are placed; their programs do not run yet."""
    RUNNING = "RUNNING"
    """Its program runs; this time is billed."""
    SUCCEEDED = "SUCCEEDED"
    """Its program ended well."""
    FAILED = "FAILED"
    """Its program ended badly, or could not be started."""
    CANCELLING = "CANCELLING"
    """Somebody, or a time limit, asked for its end; its replicas are being ended."""
    CANCELLED = "CANCELLED"
    """It was ended on request."""


@final
class JobEvent(StrEnum):
    """What can happen to a job."""

    ENQUEUED = "enqueued"
    """It was created."""
    PREPARING = "preparing"
    """Its replicas are being placed."""
    STARTED = "started"
    """Its program runs."""
    RESTARTED = "restarted"
    """Its gang failed, and is to be started again."""
    REQUEUED = "requeued"
    """Its machines cannot be had for now: it waits again."""
    SUCCEEDED = "succeeded"
    """Its program ended well."""
    FAILED = "failed"
    """Its program ended badly, or cannot be started."""
    CANCEL_REQUESTED = "cancel_requested"
    """Somebody, or a time limit, asked for its end."""
    CANCELLED = "cancelled"
    """Nothing of it runs any more, on request."""


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
        # Asking twice is no error: the client may not have heard the first answer.
        (JobState.CANCELLING, JobEvent.CANCEL_REQUESTED): JobState.CANCELLING,
        (JobState.CANCELLING, JobEvent.CANCELLED): JobState.CANCELLED,
        # The program may end by itself before the request reaches it; what happened is what is recorded.
        (JobState.CANCELLING, JobEvent.SUCCEEDED): JobState.SUCCEEDED,
        (JobState.CANCELLING, JobEvent.FAILED): JobState.FAILED,
    }
)
"""Which state follows: the one place that knows."""

TERMINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""States that nothing follows."""


def allowed_events(state: JobState) -> tuple[JobEvent, ...]:
    """Returns the events that fit a state, in the order of the table."""
    return tuple(event for before, event in TRANSITIONS if before is state)


def next_state(state: JobState, *, event: JobEvent) -> JobState:
    """Returns the state that follows.

    Args:
        state: the state that the job is in.
        event: what happened.

    Raises:
        WrongStateError: the event does not fit the state.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        events = allowed_events(state)
        raise WrongStateError(
            f"a job that is {state} cannot take this event",
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
