"""Notifies webhooks, the operator's and those of jobs: at least once for each event, and in order for each webhook.

Each webhook has queues in the database, which say how far it was notified. A queue with an event to deliver gets a
thread. A receiver that hangs blocks its thread for some seconds; then its queue waits, longer after each failure. Jobs
of one project can use only a part of the threads. If the service dies, the next one resumes.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from lockstep.errors import ConfigError, CorruptDataError, InvalidInputError, NotFoundError
from lockstep.jobs.notifications.job_webhooks import JobWebhook
from lockstep.jobs.notifications.signatures import parse_key
from lockstep.jobs.notifications.webhooks import (
    MAX_AGE_S,
    HookEvent,
    Webhook,
    build_headers,
    build_message,
    build_message_id,
    parse_webhooks,
    without_gaps,
)
from lockstep.jobs.parsing.yaml_documents import read_yaml
from lockstep.jobs.running.states import TERMINAL
from lockstep.service.notifications.feeds import FeedScan
from lockstep.service.notifications.posting import Post, PostResult, post
from lockstep.service.security.vault import Vault
from lockstep.service.store import (
    DATABASE_FAULTS,
    Delivery,
    Feed,
    LeaseLostError,
    NewWebhook,
    WebhookRecord,
    WebhookStore,
)

LOGGER: Final = logging.getLogger(__name__)

POLL_S: Final = 1.0
PAUSE_S: Final = 0.05
"""The pause between two looks at the queues, so that many deliveries share a look."""
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The pauses after consecutive failures. The last one repeats until the event is too old."""
NUM_EVENTS_MAX: Final = 20
"""The maximum number of events of one queue that are delivered before other queues get a thread."""
SAVE_S: Final = 0.5
"""The time between two records of a queue's progress. A service that was killed sends again what was not recorded."""
NUM_THREADS: Final = 12
"""The maximum number of threads for jobs' webhooks. The operator's webhooks have additional threads."""
NUM_THREADS_OF_PROJECT: Final = 4
PAGE_SIZE: Final = 100
"""The number of jobs' queues that are read at once: more than threads, so that busy queues do not hide others."""
FAULT_PAUSE_S: Final = 5.0
"""The pause of a queue whose progress could not be recorded. Its event is delivered again."""
STOP_S: Final = 2.0

_OWNER: Final = "webhook"

Operators = Mapping[str, tuple[Webhook, bytes | None]]
"""The operator's webhooks by name, with the keys that sign their messages."""


def seal_webhooks(webhooks: Sequence[JobWebhook], *, project: str, vault: Vault) -> list[NewWebhook]:
    """Returns the webhooks of a job for the database, with encrypted URLs."""
    return [
        NewWebhook(
            sealed=vault.seal(webhook.url, project=project, purpose=_OWNER),
            display_url=webhook.display_url,
            secret=webhook.secret,
            states=webhook.states,
        )
        for webhook in webhooks
    ]


def read_job_key(vault: Vault, project: str, secret: str, *, what: str = "") -> bytes:
    """Returns the key that signs the messages of a job's webhook.

    Args:
        vault: the vault.
        project: the project of the job.
        secret: the name of the secret.
        what: the field that names the secret, for error messages.

    Raises:
        NotFoundError: If the project does not have the secret.
        CorruptDataError: If the secret cannot be decrypted.
        InvalidInputError: If it is not a secret in the form of Standard Webhooks.
    """
    (value,) = vault.values(project=project, names={_OWNER: secret}).values()
    return parse_key(value, what=f"{what}: the secret {secret!r}" if what else f"the secret {secret!r}")


def read_webhooks(path: Path | None) -> Operators:
    """Reads the operator's file of webhooks.

    Args:
        path: the file; None if there is none.

    Raises:
        ConfigError: If the file, or the file of a secret, cannot be used.
    """
    if path is None:
        return {}
    webhooks = parse_webhooks(read_yaml(path, flag="--webhooks"), source=str(path))
    return {name: (webhook, _read_key(webhook)) for name, webhook in webhooks.items()}


def _read_key(webhook: Webhook) -> bytes | None:
    file = webhook.secret_file
    if file is None:
        return None
    what = f"webhook {webhook.name}: its secret's file {file}"
    try:
        secret, mode = file.read_text(errors="replace").strip(), file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"{what} can be read by everybody", action=f"chmod 600 {file}")
    try:
        return parse_key(secret, what=what)
    except InvalidInputError as error:
        raise ConfigError(str(error)) from None


def choose(due: Sequence[WebhookRecord], *, busy: Mapping[tuple[str, str], str | None]) -> list[WebhookRecord]:
    """Decides which queues get a thread now.

    Args:
        due: the queues with an event to deliver, in the order in which they wait.
        busy: the keys of the queues that have a thread, with their projects; None for the operator's.
    """
    counts = Counter(project for project in busy.values() if project is not None)
    chosen: list[WebhookRecord] = []
    for queue in due:
        if queue.key in busy:
            continue
        if queue.project is not None:
            if counts.total() >= NUM_THREADS or counts[queue.project] >= NUM_THREADS_OF_PROJECT:
                continue
            counts[queue.project] += 1
        chosen.append(queue)
    return chosen


@final
@dataclass(frozen=True, kw_only=True)
class WebhookState:
    """The state of a webhook of the operator.

    Attributes:
        name: the name of the webhook.
        display_url: the part of its URL that may be shown.
        problem: the reason why the last delivery failed; None if it did not fail.
        since_s: the time since when deliveries fail, in seconds since 1970 UTC; None if they do not fail.
    """

    name: str
    display_url: str
    problem: str | None
    since_s: float | None


@final
class Webhooks:
    """Notifies the webhooks of a service.

    Args:
        operators: the operator's webhooks.
        store: the queues.
        vault: the vault, which decrypts URLs and secrets of jobs' webhooks.
        restricted_post: sends messages to jobs' webhooks.
        post: sends messages to the operator's webhooks.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self,
        operators: Operators,
        *,
        store: WebhookStore,
        vault: Vault,
        restricted_post: Post,
        post: Post = post,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._operators = operators
        self._store = store
        self._vault = vault
        self._restricted_post = restricted_post
        self._post = post
        self._clock = clock
        webhooks = {name: webhook for name, (webhook, _) in operators.items()}
        self._feeds = [FeedScan(feed, webhooks=webhooks, store=store, clock=clock) for feed in (Feed.JOBS, Feed.ALERTS)]
        self._failing: Mapping[str, WebhookRecord] = {}
        self._busy: dict[tuple[str, str], str | None] = {}
        self._ended = threading.Condition()
        """Guards `_busy`; notified when a queue is removed from it."""
        self._changed = threading.Event()

    def start(self, stop: threading.Event, *, has_lease: Callable[[], bool]) -> None:
        """Starts the delivery, in daemon threads.

        Args:
            stop: the event that ends the threads.
            has_lease: returns whether this service has the lease. Of several services that share a database, only the
                holder delivers.
        """
        for name in self._operators:
            self._store.register(name, now_s=self._clock())
        threading.Thread(target=self._run, args=(stop, has_lease), name="webhooks", daemon=True).start()

    def join(self) -> None:
        """Waits for the threads, at most `STOP_S` seconds. The next service delivers the rest."""
        with self._ended:
            self._ended.wait_for(lambda: not self._busy, timeout=STOP_S)

    def refresh(self) -> None:
        """Reads from the database which webhooks of the operator fail.

        Raises:
            sqlalchemy.exc.DBAPIError: If the database does not answer.
        """
        if self._operators:
            self._failing = {queue.name: queue for queue in self._store.of_operator() if queue.problem is not None}

    def states(self) -> list[WebhookState]:
        """Returns the states of the operator's webhooks at the last `refresh`."""
        failing = self._failing
        return [
            WebhookState(
                name=name,
                display_url=webhook.display_url,
                problem=failing[name].problem if name in failing else None,
                since_s=failing[name].since_s if name in failing else None,
            )
            for name, (webhook, _) in self._operators.items()
        ]

    def of_job(self, uid: str) -> list[WebhookRecord]:
        """Returns the webhooks of a job, in the order of its training input."""
        return self._store.of_job(uid)

    def deliveries(self, name: str) -> list[Delivery]:
        """Returns the last deliveries of a webhook of the operator, the latest first.

        Raises:
            NotFoundError: If the operator has no such webhook.
        """
        if name not in self._operators:
            raise NotFoundError(f"there is no webhook {name!r}", allowed=", ".join(self._operators) or "none")
        return self._store.deliveries(name)

    def deliveries_of_job(self, uid: str, *, number: int) -> list[Delivery]:
        """Returns the last deliveries of a job's webhook, the latest first.

        Args:
            uid: the uid of the job.
            number: the webhook's place in the training input, from 0.

        Raises:
            NotFoundError: If the job has no such webhook.
        """
        webhooks = self._store.of_job(uid)
        if number >= len(webhooks):
            raise NotFoundError(f"the job has no webhook {number}", allowed=f"webhooks: {len(webhooks)}, from 0")
        return self._store.deliveries(webhooks[number].name)

    def deliver(self, queue: WebhookRecord) -> None:
        """Delivers the next events of a queue, up to the first that the receiver does not accept.

        What was delivered is recorded every `SAVE_S` seconds and at the end, so a receiver of many messages does not
        make many transactions.
        """
        saved, saved_s, unsaved = queue, time.monotonic(), list[Delivery]()
        events = self._store.events_for(queue, limit=NUM_EVENTS_MAX)
        if queue.job_uid is None:
            events = without_gaps(events, cursor=queue.seq, now_s=self._clock())
            queue = queue if events else replace(queue, next_time_s=self._clock() + POLL_S)
        try:
            for event in events:
                is_last = queue.job_uid is not None and event.state in TERMINAL
                after = replace(queue, seq=event.seq, next_time_s=None if is_last else self._clock())
                if not self._wants(queue, event):
                    queue = after
                elif self._clock() - event.time_s > MAX_AGE_S:
                    LOGGER.error("webhook %s was never notified of event %d, which is too old", queue.name, event.seq)
                    queue = replace(after, num_dropped=queue.num_dropped + 1)
                else:
                    delivery = self._send(queue, event)
                    unsaved.append(delivery)
                    if delivery.problem is not None:
                        queue = self._after_failure(queue, delivery.problem)
                        break
                    if queue.problem is not None:
                        LOGGER.warning("webhook %s accepts messages again", queue.name)
                    queue = replace(after, num_failures=0, problem=None, since_s=None)
                if unsaved and time.monotonic() - saved_s >= SAVE_S:
                    self._store.save(queue, deliveries=unsaved)
                    saved, saved_s, unsaved = queue, time.monotonic(), []
        finally:  # if a message cannot be made, the ones before are not sent again
            if queue is not saved:
                self._store.save(queue, deliveries=unsaved)

    def _wants(self, queue: WebhookRecord, event: HookEvent) -> bool:
        if queue.job_uid is None:
            return self._operators[queue.name][0].wants(event)
        return not queue.states or event.state in queue.states

    def _send(self, queue: WebhookRecord, event: HookEvent) -> Delivery:
        time_s, started_s = self._clock(), time.monotonic()
        result = self._post_event(queue, event, time_s=time_s)
        return Delivery(
            webhook=queue.name,
            message_id=build_message_id(event, name=queue.name),
            project=event.project,
            job=event.job,
            event=event.kind,
            state=event.state,
            time_s=time_s,
            attempt=queue.num_failures + 1,
            status=result.status,
            problem=result.problem,
            duration_s=time.monotonic() - started_s,
        )

    def _post_event(self, queue: WebhookRecord, event: HookEvent, *, time_s: float) -> PostResult:
        if queue.project is None or queue.sealed is None:
            webhook, key = self._operators[queue.name]
            url, send = webhook.url, self._post
        else:
            try:
                url = self._vault.unseal(queue.sealed, project=queue.project, purpose=_OWNER)
                key = None if queue.secret is None else read_job_key(self._vault, queue.project, queue.secret)
            except (NotFoundError, CorruptDataError, InvalidInputError) as error:  # never sent unsigned
                return PostResult(problem=str(error))
            send = self._restricted_post
        return send(url, build_message(event), build_headers(event, name=queue.name, key=key, time_s=time_s))

    def _after_failure(self, queue: WebhookRecord, problem: str) -> WebhookRecord:
        """Returns a queue after a failed delivery: it waits, longer after each."""
        now_s = self._clock()
        if queue.problem is None:
            shown_url = queue.display_url or self._operators[queue.name][0].display_url
            LOGGER.warning("webhook %s at %s: %s", queue.name, shown_url, problem)
        pause_s = RETRY_S[min(queue.num_failures, len(RETRY_S) - 1)]
        return replace(
            queue,
            problem=problem,
            num_failures=queue.num_failures + 1,
            since_s=now_s if queue.since_s is None else queue.since_s,
            next_time_s=now_s + pause_s,
        )

    def _run(self, stop: threading.Event, has_lease: Callable[[], bool]) -> None:
        while not stop.is_set():
            try:
                # Until no queue gets a thread: the next page excludes projects that have all their threads.
                while has_lease() and not stop.is_set() and self._start_due(stop, has_lease):
                    pass
            except Exception as error:  # nothing may end this loop
                _log("reading the queues", error)
            self._changed.wait(POLL_S)
            self._changed.clear()
            stop.wait(PAUSE_S)

    def _start_due(self, stop: threading.Event, has_lease: Callable[[], bool]) -> bool:
        with self._ended:
            busy = dict(self._busy)
        counts = Counter(project for project in busy.values() if project is not None)
        now_s = self._clock()
        queues = self._store.due(now_s, names=self._operators)
        due = [queue for feed in self._feeds for queue in feed.look(queues)]
        if counts.total() < NUM_THREADS:
            full = [project for project, number in counts.items() if number >= NUM_THREADS_OF_PROJECT]
            due += self._store.due_of_jobs(now_s, without=full, limit=PAGE_SIZE)
        chosen = choose(due, busy=busy)
        with self._ended:
            self._busy |= {queue.key: queue.project for queue in chosen}
        for queue in chosen:
            threading.Thread(
                target=self._deliver, args=(queue, stop, has_lease), name=f"webhook {queue.name}", daemon=True
            ).start()
        return bool(chosen)

    def _deliver(self, queue: WebhookRecord, stop: threading.Event, has_lease: Callable[[], bool]) -> None:
        try:
            if has_lease() and not stop.is_set():
                self.deliver(queue)
        except Exception as error:  # other queues are not affected
            _log(f"webhook {queue.name}", error)
            stop.wait(FAULT_PAUSE_S)
        finally:
            with self._ended:
                del self._busy[queue.key]
                self._ended.notify_all()
            self._changed.set()


def _log(what: str, error: Exception) -> None:
    """Logs a failure without its text, which may contain a URL."""
    if isinstance(error, (*DATABASE_FAULTS, LeaseLostError)):
        LOGGER.warning("%s: the database does not answer: %s", what, type(error).__name__)
    else:
        LOGGER.error("%s failed: %s", what, type(error).__name__)
