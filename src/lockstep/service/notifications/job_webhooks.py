"""Tells the webhooks that jobs name themselves: at least once, each in order, by threads that none of them can keep.

Receivers are anybody's. One that hangs holds a thread for some seconds, then waits for longer and longer, and a project
has a share of the threads alone. How far each was told is in the database: who dies is followed by one that goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from lockstep.errors import CorruptDataError, NotFoundError
from lockstep.jobs.notifications.job_webhooks import JobWebhook
from lockstep.jobs.notifications.webhooks import MAX_AGE_S, HookEvent, Webhook, headers_of, message_of
from lockstep.jobs.running.states import TERMINAL
from lockstep.service.api.forms import JobWebhookForm
from lockstep.service.notifications.webhooks import POLL_S, RETRY_S, STOP_S, Post
from lockstep.service.security.vault import Vault
from lockstep.service.store import DATABASE_FAULTS, JobHookRecord, JobHookStore, LeaseLostError, NewJobHook

LOGGER: Final = logging.getLogger(__name__)

NUM_THREADS: Final = 12
NUM_THREADS_OF_PROJECT: Final = 4
PAGE_SIZE: Final = 100
"""How many webhooks are looked at together; more than threads, so that those that are being told hide no others."""
NUM_EVENTS_MAX: Final = 20
"""Of how many events one is told before others have their turn."""
FAULT_PAUSE_S: Final = 5.0
"""Pause of a thread that could not note what it did: what it told is told again."""

_OWNER: Final = "webhook"


def seal_hooks(hooks: Sequence[JobWebhook], *, project: str, vault: Vault) -> list[NewJobHook]:
    """Returns the webhooks of a job for the database, their URLs encrypted."""
    return [
        NewJobHook(
            sealed=vault.seal(hook.url, project=project, purpose=_OWNER),
            place=hook.place,
            secret=hook.secret,
            states=hook.states,
        )
        for hook in hooks
    ]


def hook_documents(hooks: Iterable[JobHookRecord]) -> list[JobWebhookForm]:
    """Returns how the webhooks of a job are, as JSON."""
    return [
        {"place": hook.place, "problem": hook.problem, "since": hook.since_s, "numDropped": hook.num_dropped}
        for hook in hooks
    ]


def choose(due: Sequence[JobHookRecord], *, busy: Mapping[tuple[str, int], str]) -> list[JobHookRecord]:
    """Decides which webhooks are told next.

    Args:
        due: those that have something to be told, in the order in which they wait.
        busy: those that are being told, with their projects.
    """
    counts, room = Counter(busy.values()), NUM_THREADS - len(busy)
    chosen: list[JobHookRecord] = []
    for hook in due:
        if len(chosen) < room and hook.key not in busy and counts[hook.project] < NUM_THREADS_OF_PROJECT:
            counts[hook.project] += 1
            chosen.append(hook)
    return chosen


@final
class JobHookSender:
    """Tells a webhook what there is to tell, and notes how far it came. Thread-safe for different webhooks.

    Args:
        store: the webhooks.
        vault: has their URLs and secrets.
        post: sends a message.
        clock: seconds since 1970 UTC.
    """

    def __init__(
        self, *, store: JobHookStore, vault: Vault, post: Post, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._vault = vault
        self._post = post
        self._clock = clock

    def tell(self, hook: JobHookRecord) -> None:
        """Tells a webhook of the next events, up to the first that it does not take."""
        for event in self._store.events_for(hook, limit=NUM_EVENTS_MAX):
            next_time_s = None if event.state in TERMINAL else self._clock()
            if hook.states and event.state not in hook.states:
                self._store.note_passed(hook, seq=event.seq, next_time_s=next_time_s)
            elif self._clock() - event.time_s > MAX_AGE_S:
                hook = replace(hook, num_dropped=hook.num_dropped + 1)
                LOGGER.error("a webhook of job %s was never told that it was %s", event.uid, event.state)
                self._store.note_passed(hook, seq=event.seq, next_time_s=next_time_s)
            elif (problem := self._send(hook, event)) is None:
                self._store.note_told(hook, seq=event.seq, next_time_s=next_time_s)
                hook = replace(hook, num_failures=0, problem=None, since_s=None)
            else:
                self._note_failure(hook, problem)
                return

    def _send(self, hook: JobHookRecord, event: HookEvent) -> str | None:
        try:
            url = self._vault.unseal(hook.sealed, project=hook.project, purpose=_OWNER)
            names = {} if hook.secret is None else {_OWNER: hook.secret}
            secret = self._vault.values(project=hook.project, names=names).get(_OWNER)
        except (NotFoundError, CorruptDataError) as error:  # never unsigned in its place
            return str(error)
        target = Webhook(name=f"{hook.job_uid}-{hook.number}", url=url)
        signed_with = None if secret is None else secret.encode()
        return self._post(url, message_of(event), headers_of(event, hook=target, secret=signed_with))

    def _note_failure(self, hook: JobHookRecord, problem: str) -> None:
        now_s = self._clock()
        if hook.problem is None:
            LOGGER.warning("a webhook of job %s at %s: %s", hook.job_uid, hook.place, problem)
        self._store.note_failure(
            hook,
            problem=problem,
            num_failures=hook.num_failures + 1,
            since_s=now_s if hook.since_s is None else hook.since_s,
            next_time_s=now_s + RETRY_S[min(hook.num_failures, len(RETRY_S) - 1)],
        )


@final
class JobWebhooks:
    """Tells all webhooks of jobs.

    Args:
        sender: tells one of them.
        store: says which have something to be told.
        clock: seconds since 1970 UTC.
    """

    def __init__(self, sender: JobHookSender, *, store: JobHookStore, clock: Callable[[], float] = time.time) -> None:
        self._sender = sender
        self._store = store
        self._clock = clock
        self._queue: queue.SimpleQueue[JobHookRecord | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy: dict[tuple[str, int], str] = {}
        self._changed = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, stop: threading.Event, *, is_mine: Callable[[], bool]) -> None:
        """Starts the threads; they end with the process.

        Args:
            stop: ends them.
            is_mine: whether it is this service that tells hooks; of several over one database one does.
        """
        loops = [self._hand_out_all] + [self._tell_all] * NUM_THREADS
        for loop in loops:
            thread = threading.Thread(target=loop, args=(stop, is_mine), name="job-webhooks", daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Waits a moment for the threads: what is not told to its end is told again by the next service."""
        self._changed.set()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _hand_out_all(self, stop: threading.Event, is_mine: Callable[[], bool]) -> None:
        while not stop.is_set():
            try:
                # Until nothing more fits: who has no share left is left out of the next page, and hides no others.
                while is_mine() and not stop.is_set() and self._hand_out():
                    pass
            except DATABASE_FAULTS as error:
                LOGGER.warning("jobs' webhooks: the database does not answer: %s", type(error).__name__)
            except Exception as error:  # nothing may end what tells them; the error's text may hold a URL
                LOGGER.error("jobs' webhooks: a pass failed: %s", type(error).__name__)
            self._changed.wait(POLL_S)
            self._changed.clear()
        for _ in range(NUM_THREADS):
            self._queue.put(None)

    def _hand_out(self) -> bool:
        with self._lock:
            busy = dict(self._busy)
        if len(busy) == NUM_THREADS:
            return False
        without = [name for name, number in Counter(busy.values()).items() if number == NUM_THREADS_OF_PROJECT]
        chosen = choose(self._store.due(self._clock(), without=without, limit=PAGE_SIZE), busy=busy)
        with self._lock:
            self._busy |= {hook.key: hook.project for hook in chosen}
        for hook in chosen:
            self._queue.put(hook)
        return bool(chosen)

    def _tell_all(self, stop: threading.Event, is_mine: Callable[[], bool]) -> None:
        while (hook := self._queue.get()) is not None:
            try:
                if is_mine() and not stop.is_set():
                    self._sender.tell(hook)
            except (*DATABASE_FAULTS, LeaseLostError) as error:
                LOGGER.warning("jobs' webhooks: the database does not answer: %s", type(error).__name__)
                stop.wait(FAULT_PAUSE_S)
            except Exception as error:  # the next one is to be told all the same; the text may hold a URL
                LOGGER.error("jobs' webhooks: one of job %s failed: %s", hook.job_uid, type(error).__name__)
                stop.wait(FAULT_PAUSE_S)
            finally:
                with self._lock:
                    del self._busy[hook.key]
                self._changed.set()
