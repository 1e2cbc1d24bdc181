"""Tells webhooks what happens to jobs and budgets: at least once, in order, each by a thread of its own."""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import httpx

from lockstep.errors import ConfigError
from lockstep.jobs.notifications.webhooks import (
    MAX_AGE_S,
    HookEvent,
    Webhook,
    headers_of,
    message_of,
    parse_webhooks,
    settled,
)
from lockstep.jobs.parsing.yaml_documents import read_yaml
from lockstep.service.api.forms import WebhookForm
from lockstep.service.store import DATABASE_FAULTS, Feed, WebhookStore
from lockstep.service.store.control.lease import LeaseLostError

LOGGER: Final = logging.getLogger(__name__)

POLL_S: Final = 1.0
TIMEOUT_S: Final = 10.0
RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Pauses after failures in a row; the last one goes on until what there is to tell is too old."""
BATCH_SIZE: Final = 100
STOP_S: Final = 2.0

Post = Callable[[str, bytes, Mapping[str, str]], str | None]
"""Sends a body with headers to a URL; returns why it was not taken, None if it was."""


def post(url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
    """Sends a message. What is answered but for its status is not read, and redirections are not followed."""
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S) as client,
            client.stream("POST", url, content=body, headers=headers) as got,
        ):
            return None if got.is_success else f"it answered {got.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last two: certificates, odd hosts
        return type(error).__name__  # its text may hold the URL


@final
@dataclass(frozen=True, kw_only=True)
class HookState:
    """How one webhook is.

    Attributes:
        name: its name.
        place: where it is, as far as that may be shown.
        problem: why it was not told last, None where it was.
        since_s: since when it is not told.
    """

    name: str
    place: str
    problem: str | None = None
    since_s: float | None = None


@final
class HookSender:
    """Tells one webhook.

    Args:
        hook: whom.
        secret: what its messages are signed with.
        store: how far it was told, and what there is to tell.
        send: sends a message.
        clock: seconds since 1970 UTC.
    """

    def __init__(
        self,
        hook: Webhook,
        *,
        secret: bytes | None,
        store: WebhookStore,
        send: Post = post,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hook = hook
        self._secret = secret
        self._store = store
        self._send = send
        self._clock = clock
        self._num_failures = 0
        self.state = HookState(name=hook.name, place=hook.place)

    def begin(self) -> None:
        """Notes from which event on a new hook is told: from here on."""
        self._store.cursor(self._hook.name)

    def run(self, stop: threading.Event, *, is_mine: Callable[[], bool]) -> None:
        """Goes on until told to stop.

        Args:
            stop: ends it.
            is_mine: whether it is this service that tells hooks; of several over one database one does.
        """
        pause_s = 0.0
        while not stop.wait(pause_s):
            pause_s = POLL_S
            if is_mine():
                try:
                    pause_s = self.step()
                except (*DATABASE_FAULTS, LeaseLostError) as error:
                    LOGGER.warning(
                        "webhook %s: the database does not answer: %s", self._hook.name, type(error).__name__
                    )
                except Exception as error:  # nothing may end what tells the hook; the error's text may hold its URL
                    LOGGER.error("webhook %s: a pass failed: %s", self._hook.name, type(error).__name__)

    def step(self) -> float:
        """Tells what there is to tell; returns how long to wait then, in seconds."""
        pauses: list[float] = []
        for feed in Feed:
            problem, pause_s = self._tell(feed)
            if problem is not None:
                return self._note_failure(problem)
            pauses.append(pause_s)
        return min(pauses)

    def _tell(self, feed: Feed) -> tuple[str | None, float]:
        """Tells what there is to tell of a feed; returns why not all of it was taken, and how long to wait then."""
        cursor = saved = self._store.cursor(self._hook.name, feed=feed)
        problem = None
        found = self._store.events_after(cursor, limit=BATCH_SIZE, feed=feed)
        events = settled(found, cursor=cursor, now_s=self._clock())
        for event in events:
            if self._is_to_be_told(event):
                problem = self._send(
                    self._hook.url, message_of(event), headers_of(event, hook=self._hook, secret=self._secret)
                )
                if problem is not None:
                    break
                self._note_success()
                self._store.advance(self._hook.name, seq=event.seq, feed=feed)
                saved = event.seq
            cursor = event.seq
        if cursor != saved:  # those behind it were not to be told
            self._store.advance(self._hook.name, seq=cursor, feed=feed)
        return problem, 0.0 if len(events) == BATCH_SIZE else POLL_S

    def _is_to_be_told(self, event: HookEvent) -> bool:
        if not self._hook.wants(event):
            return False
        if self._clock() - event.time_s <= MAX_AGE_S:
            return True
        LOGGER.error("webhook %s was never told of event %d, which is too old now", self._hook.name, event.seq)
        return False

    def _note_failure(self, problem: str) -> float:
        if self._num_failures == 0:
            LOGGER.warning("webhook %s at %s: %s", self._hook.name, self._hook.place, problem)
            self.state = HookState(name=self._hook.name, place=self._hook.place, problem=problem, since_s=self._clock())
        pause_s = RETRY_S[min(self._num_failures, len(RETRY_S) - 1)]
        self._num_failures += 1
        return pause_s

    def _note_success(self) -> None:
        if self._num_failures:
            LOGGER.warning("webhook %s is told again", self._hook.name)
            self.state = HookState(name=self._hook.name, place=self._hook.place)
        self._num_failures = 0


@final
class Webhooks:
    """All webhooks of a service.

    Args:
        senders: one for each.
    """

    def __init__(self, senders: Sequence[HookSender] = ()) -> None:
        self._senders = tuple(senders)
        self._threads: list[threading.Thread] = []

    def start(self, stop: threading.Event, *, is_mine: Callable[[], bool]) -> None:
        """Starts a thread for each: one that hangs in its hook keeps no other, and ends with the process."""
        for sender in self._senders:
            sender.begin()
            thread = threading.Thread(
                target=sender.run, args=(stop,), kwargs={"is_mine": is_mine}, name="webhook", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Waits a moment for the threads: what is not told to its end is told again by the next service."""
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def describe(self) -> list[WebhookForm]:
        """Returns how each is, as JSON."""
        return [
            {"name": state.name, "place": state.place, "problem": state.problem, "since": state.since_s}
            for state in (sender.state for sender in self._senders)
        ]


def open_webhooks(path: Path | None, *, store: WebhookStore) -> Webhooks:
    """Returns the webhooks of a file.

    Args:
        path: the file; None where there is none.
        store: how far they were told.

    Raises:
        ConfigError: the file, or one of a secret, cannot be used.
    """
    if path is None:
        return Webhooks()
    hooks = parse_webhooks(read_yaml(path, flag="--webhooks"), source=str(path))
    return Webhooks([HookSender(hook, secret=read_secret(hook), store=store) for hook in hooks.values()])


def read_secret(hook: Webhook) -> bytes | None:
    """Returns what a hook's messages are signed with.

    Raises:
        ConfigError: its file cannot be read, or is empty, or everybody can read it.
    """
    if hook.secret_file is None:
        return None
    try:
        secret, mode = hook.secret_file.read_bytes().strip(), hook.secret_file.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"webhook {hook.name}: its secret's file {hook.secret_file} cannot be read: {error.strerror}"
        ) from None
    if not secret:
        raise ConfigError(f"webhook {hook.name}: its secret's file {hook.secret_file} is empty")
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(
            f"webhook {hook.name}: everybody can read its secret's file {hook.secret_file}",
            action=f"chmod 600 {hook.secret_file}",
        )
    return secret
