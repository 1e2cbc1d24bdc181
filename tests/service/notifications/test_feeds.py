"""One look at new events for all of the operator's webhooks: those that want nothing make no transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from lockstep.jobs.notifications.webhooks import GAP_S, Webhook
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.notifications.feeds import NUM_EVENTS, SKIP_S, FeedScan
from lockstep.service.notifications.posting import PostResult
from lockstep.service.notifications.webhooks import Webhooks
from lockstep.service.store import Feed, JobStore, WebhookRecord, WebhookStore, open_database
from lockstep.testing.bench import Bench


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.time_s = time.time()

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def database(bench: Bench) -> Iterator[Engine]:
    database = open_database(f"sqlite:///{bench.home.database}")
    yield database
    database.dispose()


@pytest.fixture
def jobs(database: Engine) -> JobStore:
    return JobStore(database)


@pytest.fixture
def hooks(database: Engine) -> WebhookStore:
    return WebhookStore(database)


def create(jobs: JobStore, job_id: str, *, project: str = "p") -> str:
    return jobs.create(project=project, job_id=job_id, training_input={}, labels={}, simulated=False, outputs={}).uid


class Scan:
    """The look at the events of jobs for some webhooks, which are registered."""

    def __init__(self, hooks: WebhookStore, **options: dict[str, Any]) -> None:
        self.clock, self.hooks = Clock(), hooks
        self.webhooks = {name: Webhook(name=name, url="http://h", **each) for name, each in options.items()}
        for name in self.webhooks:
            hooks.register(name, now_s=self.clock())
        self.scan = self.restarted()

    def restarted(self) -> FeedScan:
        return FeedScan(Feed.JOBS, webhooks=self.webhooks, store=self.hooks, clock=self.clock)

    def look(self) -> list[WebhookRecord]:
        return self.scan.look(self.hooks.due(self.clock(), names=self.webhooks))

    def names(self) -> list[str]:
        return sorted(queue.name for queue in self.look())

    def seqs(self) -> dict[str, int]:
        return {queue.name: queue.seq for queue in self.hooks.of_operator() if queue.feed is Feed.JOBS}


def test_only_those_who_want_an_event_are_due(jobs: JobStore, hooks: WebhookStore) -> None:
    states = {"states": (JobState.RUNNING,)}
    scan = Scan(hooks, everything={}, others={"projects": ("q",)}, starts=states)
    uid = create(jobs, "j")
    assert scan.names() == ["everything"]
    jobs.advance(uid, JobEvent.PREPARING, detail="")
    jobs.advance(uid, JobEvent.STARTED, detail="")
    assert scan.names() == ["everything", "starts"]
    create(jobs, "k", project="q")
    assert scan.names() == ["everything", "others", "starts"]


def test_a_webhook_that_wants_little_begins_with_the_first_event_that_it_wants(
    jobs: JobStore, hooks: WebhookStore
) -> None:
    scan = Scan(hooks, others={"projects": ("q",)})
    for number in range(NUM_EVENTS + 50):  # more than one query reads
        create(jobs, f"j{number}")
    uid = create(jobs, "wanted", project="q")
    (queue,) = scan.look()
    assert [event.uid for event in hooks.events_for(queue, limit=2)] == [uid]
    hooks.save(replace(queue, seq=queue.seq + 1))
    assert scan.look() == []
    create(jobs, "more", project="q")
    assert scan.names() == ["others"]


def test_what_is_skipped_is_recorded_now_and_then(jobs: JobStore, hooks: WebhookStore, database: Engine) -> None:
    scan = Scan(hooks, others={"projects": ("q",)}, waits={"projects": ("p",)})
    for number in range(3):
        create(jobs, f"j{number}")
    before, statements = scan.seqs(), list[str]()

    @event.listens_for(database, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    for _ in range(3):
        assert scan.names() == ["waits"]
    assert "BEGIN IMMEDIATE" not in statements
    assert scan.seqs() == before
    scan.clock.time_s += SKIP_S
    assert scan.names() == ["waits"]
    assert scan.seqs() == {"others": before["others"] + 3, "waits": before["waits"]}, (
        "nothing that is wanted is skipped"
    )
    scan.scan = scan.restarted()
    assert scan.names() == ["waits"]


def test_a_service_that_starts_again_delivers_what_was_not_delivered(jobs: JobStore, hooks: WebhookStore) -> None:
    scan = Scan(hooks, starts={"states": (JobState.RUNNING,)})
    uid = create(jobs, "j")
    jobs.advance(uid, JobEvent.PREPARING, detail="")
    jobs.advance(uid, JobEvent.STARTED, detail="")
    (first,) = scan.look()
    scan.scan = scan.restarted()
    assert scan.look() == [first]


def test_a_webhook_that_was_removed_is_not_read_for(
    jobs: JobStore, hooks: WebhookStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scan(hooks, removed={})
    for number in range(5):
        create(jobs, f"j{number}")
    scan, read = Scan(hooks, new={}), list[int]()
    events_after = hooks.events_after

    def note(feed: Feed, seq: int, **options: Any) -> Any:
        read.append(seq)
        return events_after(feed, seq, **options)

    monkeypatch.setattr(hooks, "events_after", note)
    create(jobs, "last")
    assert scan.names() == ["new"]
    assert read[0] == scan.seqs()["new"] > scan.seqs()["removed"]


def test_an_event_behind_a_gap_waits_for_what_may_appear_in_it(
    jobs: JobStore, hooks: WebhookStore, database: Engine
) -> None:
    scan = Scan(hooks, everything={})
    create(jobs, "first")
    assert scan.names() == ["everything"]
    (queue,) = scan.look()
    hooks.save(replace(queue, seq=queue.seq + 1))
    uid = create(jobs, "behind")
    with database.begin() as connection:  # as if a transaction with a lower number were open
        connection.execute(text("UPDATE job_events SET seq = seq + 1 WHERE job_uid = :uid"), {"uid": uid})
    assert scan.look() == []
    scan.clock.time_s += GAP_S + 1
    assert scan.names() == ["everything"]


def test_a_message_that_cannot_be_made_does_not_repeat_those_before_it(
    bench: Bench, jobs: JobStore, hooks: WebhookStore
) -> None:
    sent: list[str] = []

    def post(_url: str, content: bytes, _headers: dict[str, str]) -> PostResult:
        if b"bad" in content:
            raise ValueError("bad")
        sent.append(content.decode())
        return PostResult(status=200)

    scan = Scan(hooks, ops={})
    service = Webhooks(
        {"ops": (scan.webhooks["ops"], None)},
        store=hooks,
        vault=bench.vault,
        restricted_post=post,
        post=post,
        clock=scan.clock,
    )
    for job_id in ("good", "fine", "bad"):
        create(jobs, job_id)
    for _ in range(2):
        (queue,) = scan.look()
        with pytest.raises(ValueError, match="bad"):
            service.deliver(queue)
    assert len(sent) == 2
    assert len(hooks.deliveries("ops")) == 2
