"""Finds out which of the operator's webhooks want the new events, in one look at each event for all of them.

A webhook that wants nothing needs no thread, and its queue is recorded only now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lockstep.jobs.notifications.webhooks import Webhook, without_gaps
from lockstep.service.store import Feed, WebhookRecord, WebhookStore

NUM_EVENTS: Final = 500
"""The maximum number of events in one look."""
SKIP_S: Final = 10.0
"""The time between two records of what is skipped. A service that starts again looks at these events again."""


@final
@dataclass(kw_only=True)
class _Wanted:
    """The events that a webhook wants and may not have been notified of: the numbers of the first and the last one."""

    first: int
    last: int


@final
class FeedScan:
    """Looks at the new events of a feed. Used by one thread.

    Args:
        feed: the feed.
        webhooks: the operator's webhooks by name.
        store: the queues.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self, feed: Feed, *, webhooks: Mapping[str, Webhook], store: WebhookStore, clock: Callable[[], float]
    ) -> None:
        self._feed = feed
        self._webhooks = webhooks
        self._store = store
        self._clock = clock
        self._seq: int | None = None
        self._wanted: dict[str, _Wanted] = {}
        self._skipped_time_s = clock()

    def look(self, queues: Sequence[WebhookRecord]) -> list[WebhookRecord]:
        """Looks at the new events, and returns the queues with an event to deliver.

        Args:
            queues: the feed's queues that have events and do not wait after a failure. Those that are returned have
                skipped the events before the first that their webhook wants.
        """
        own = [queue for queue in queues if queue.feed is self._feed]
        if self._seq is None:
            # A removed webhook keeps its queue, which may be far behind.
            present = [queue for queue in self._store.of_operator() if queue.name in self._webhooks]
            self._seq = min((queue.seq for queue in present if queue.feed is self._feed), default=0)
        if own:
            self._scan()
        due = [found for queue in own if (found := self._next(queue)) is not None]
        now_s = self._clock()
        if now_s - self._skipped_time_s >= SKIP_S:
            self._skipped_time_s = now_s
            idle = [queue.name for queue in own if queue.name not in self._wanted and queue.seq < self._seq]
            if idle:
                self._store.skip(self._feed, idle, seq=self._seq)
        return due

    def _scan(self) -> None:
        assert self._seq is not None, "the caller has set it"
        while True:
            found = self._store.events_after(self._feed, self._seq, limit=NUM_EVENTS)
            events = without_gaps(found, cursor=self._seq, now_s=self._clock())
            for event in events:
                self._seq = event.seq
                for name, webhook in self._webhooks.items():
                    if webhook.wants(event):
                        self._wanted.setdefault(name, _Wanted(first=event.seq, last=0)).last = event.seq
            if len(events) < NUM_EVENTS:
                return

    def _next(self, queue: WebhookRecord) -> WebhookRecord | None:
        wanted = self._wanted.get(queue.name)
        if wanted is None:
            return None
        if wanted.last <= queue.seq:
            del self._wanted[queue.name]
            return None
        return replace(queue, seq=max(queue.seq, wanted.first - 1))
