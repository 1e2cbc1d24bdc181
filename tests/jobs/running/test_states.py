"""The life of a job: one table, and the picture made of it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from lockstep.errors import WrongStateError
from lockstep.jobs.running.states import TERMINAL, TRANSITIONS, JobEvent, JobState, allowed_events, diagram, next_state

PAGE = Path(__file__).parents[3] / "docs" / "job-states.md"


@pytest.mark.parametrize(
    ("events", "end"),
    [
        (["enqueued", "preparing", "started", "succeeded"], JobState.SUCCEEDED),
        (["enqueued", "preparing", "started", "failed"], JobState.FAILED),
        (["enqueued", "preparing", "failed"], JobState.FAILED),
        (["enqueued", "failed"], JobState.FAILED),
        (["enqueued", "cancel_requested", "cancelled"], JobState.CANCELLED),
        (["enqueued", "preparing", "cancel_requested", "cancelled"], JobState.CANCELLED),
        (["enqueued", "preparing", "started", "cancel_requested", "cancel_requested", "cancelled"], JobState.CANCELLED),
        (["enqueued", "preparing", "started", "cancel_requested", "succeeded"], JobState.SUCCEEDED),
    ],
)
def test_lives_end_where_they_should(events: list[str], end: JobState) -> None:
    state = JobState.STATE_UNSPECIFIED
    for event in events:
        state = next_state(state, event=JobEvent(event))
    assert state is end
    assert state in TERMINAL


@pytest.mark.parametrize(("state", "event"), [pair for pair in product(JobState, JobEvent) if pair not in TRANSITIONS])
def test_an_event_that_does_not_fit_raises_in_one_line(state: JobState, event: JobEvent) -> None:
    with pytest.raises(WrongStateError) as caught:
        next_state(state, event=event)
    assert state.value in str(caught.value)
    assert event.value in str(caught.value)


def test_only_ends_have_no_way_out() -> None:
    assert {state for state in JobState if not allowed_events(state)} == TERMINAL


def test_every_state_can_reach_an_end() -> None:
    reached = set(TERMINAL)
    while more := {before for (before, _), after in TRANSITIONS.items() if after in reached} - reached:
        reached |= more
    assert reached == set(JobState)


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text("utf-8")
    assert page.split("```mermaid\n")[1].split("```")[0] == diagram()
