"""The coordinator's side of closures: assigns them, records how they end, and reassigns those of lost workers.

A thread of its own talks to the workers. An idle worker sends a request, which is answered when there is a closure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

from lockstep.errors import InvalidInputError, LockstepError, UnavailableError, WrongStateError, counted
from lockstep.parameter_server.coordination.closures import ClosureBook, EndedSteps, Mark
from lockstep.parameter_server.coordination.messages import (
    AWAITING_SERVERS,
    CHECK_OVER,
    CLOSURE,
    GIVE_BACK,
    NEXT,
    NO_WORK,
    READY,
    REJECTED_MODEL,
    STAGE,
    STOP,
    WATCH,
    ReplacedError,
    arrays_of,
)
from lockstep.parameter_server.coordination.pacing import Pace
from lockstep.parameter_server.coordination.remote_values import (
    Closure,
    ClosureAbortedError,
    ClosureError,
    ClosureTakenBackError,
    RemoteValue,
)
from lockstep.parameter_server.coordination.values import decode
from lockstep.parameter_server.coordination.wait_logging import WaitLogger
from lockstep.parameter_server.links import Listener, Message, Peer, Request

LOGGER: Final = logging.getLogger(__name__)

WAIT_FOR_WORKERS_S: Final = 600.0
STEP_S: Final = 0.25
SHUTDOWN_TIMEOUT_S: Final = 10.0


@final
class Dispatcher:
    """Assigns closures to workers.

    `schedule`, `join` and `done` may be called from any thread.

    Args:
        listener: the listener for workers. From now on only this object uses it, and closes it.
        first_closure: the number of the first closure.
        max_losses: the number of workers that a closure may lose. With one more, it has failed.
        max_lead: the number of steps that a worker may be ahead of the slowest when it begins one; None for no limit.
        wait_for_workers_s: how long closures may wait while no worker is connected, in seconds.
        on_change: called from the dispatcher's thread with the names of the workers when they change.
        clock: a function that returns the seconds of a monotonic clock.
        stage: the stage of the coordinator's script: 0 for ``fit``, or closures alone; 1 for closures after ``fit``.
        stage_results: the message for workers whose script is in the previous stage.

    Attributes:
        dismissed: the names of the workers that were sent the last message, once this object is closed.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        first_closure: int = 0,
        max_losses: int = 5,
        max_lead: int | None = None,
        wait_for_workers_s: float = WAIT_FOR_WORKERS_S,
        on_change: Callable[[list[str]], object] = lambda _names: None,
        clock: Callable[[], float] = time.monotonic,
        stage: int = 0,
        stage_results: Message | None = None,
    ) -> None:
        self._stage, self._stage_results, self._last_message = stage, stage_results, Message(kind=STOP)
        self._listener = listener
        self._on_change = on_change
        self._clock = clock
        self._book = ClosureBook(first=first_closure, max_losses=max_losses)
        self._pace = Pace(max_lead=max_lead)
        self._closures: dict[int, tuple[Closure, RemoteValue]] = {}
        self._chosen: dict[int, Mapping[str, Any]] = {}
        self._workers: dict[str, Peer] = {}
        self._numbers: dict[str, int] = {}
        self._idle: dict[str, Request] = {}
        self._onlookers: dict[bytes, Request] = {}
        self._wait_logger = WaitLogger(
            address=listener.address, wait_for_workers_s=wait_for_workers_s, describe=self._describe, clock=clock
        )
        self._fatal: LockstepError | None = None
        self._stopping = False
        self.dismissed: set[str] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="closures", daemon=True)
        self._thread.start()

    @property
    def workers(self) -> list[str]:
        """The names of the connected workers."""
        with self._changed:
            return sorted(self._workers)

    @property
    def num_onlookers(self) -> int:
        """The number of connected processes that receive no closures and wait for the end."""
        with self._changed:
            return len(self._onlookers)

    def schedule(self, closure: Closure) -> RemoteValue:
        """Schedules a closure to be run by a worker. Does not block.

        Raises:
            ClosureError: an earlier closure failed; raised once.
            UnavailableError: no worker was connected for too long.
        """
        with self._changed:
            self._raise_error()
            value = RemoteValue(on_end=closure.on_end)
            self._closures[self._book.schedule(num_steps=closure.num_steps)] = (closure, value)
        self._listener.wake()
        return value

    @contextmanager
    def together(self) -> Generator[None]:
        """Within, no closure is assigned, so none that is scheduled here ends before all of them are scheduled."""
        with self._changed:
            yield

    def join(self) -> None:
        """Waits until every closure has ended.

        Raises:
            ClosureError: a closure failed; raised once, when those that ran beside it have ended too.
            UnavailableError: no worker was connected for too long.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._book.is_settled or self._fatal is not None)
            self._raise_error(settled=True)

    def done(self) -> bool:
        """Whether every closure has ended.

        Raises:
            ClosureError: a closure failed; raised once, when those that ran beside it have ended too.
            UnavailableError: no worker was connected for too long.
        """
        with self._changed:
            self._raise_error()
            return self._book.is_done and self._fatal is None

    def cancel_waiting(self, *, keeps_begun: bool = False) -> int:
        """Cancels closures that no worker has; returns their number of steps.

        Args:
            keeps_begun: whether to keep closures whose worker was lost or gave them back. Servers may have their
                pushes, and `choose` was called for them, so these same closures must run again.
        """
        with self._changed:
            found = self._book.cancel_waiting(keeps_begun=keeps_begun)
            cancelled = [number for number in found if number in self._closures]  # else `fail` has ended it
            num_steps = sum(map(self._num_steps, cancelled))
            for number in cancelled:
                self._forget(number).end(error=ClosureTakenBackError(f"closure {number} was taken back"))
            self._changed.notify_all()
        return num_steps

    @property
    def is_settled(self) -> bool:
        """Whether no closure is waiting or running. Some may have failed."""
        with self._changed:
            return self._book.is_settled

    @property
    def watermark(self) -> int:
        """The lowest closure that may still run."""
        with self._changed:
            return self._book.watermark

    def mark(self) -> Mark:
        """Returns a mark at the next closure to be scheduled."""
        with self._changed:
            return self._book.mark()

    def has_ended_since(self, number: int) -> bool:
        """Whether any closure from this one on has run to its end; see `ClosureBook.has_ended_since`."""
        with self._changed:
            return self._book.has_ended_since(number)

    def ended(self) -> EndedSteps:
        """Returns the number of steps that have ended by now."""
        with self._changed:
            return self._book.ended()

    def wait_until_none_runs(self, *, timeout_s: float) -> int:
        """Waits until no worker runs a closure: each has ended its closure, or has given it back.

        Args:
            timeout_s: the maximum time to wait, in seconds.

        Returns:
            The number of closures that are still running.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._book.num_running == 0 or self._fatal is not None, timeout_s)
            return self._book.num_running

    def raise_failure(self) -> None:
        """If a closure has failed, waits for those that run beside it, and raises its error.

        Raises:
            ClosureError: the closure failed, and this was not raised before.
            UnavailableError: no worker was connected for too long.
        """
        with self._changed:
            if self._book.error is not None:
                self._changed.wait_for(lambda: self._book.is_settled or self._fatal is not None)
            self._raise_error()

    def raise_end(self) -> None:
        """Raises the error that the cluster ended with, if any.

        Raises:
            LockstepError: the cluster cannot go on.
        """
        with self._changed:
            if self._fatal is not None:
                raise self._fatal

    @property
    def next_closure(self) -> int:
        """The number of the next closure to be scheduled."""
        with self._changed:
            return self._book.next

    def set_next_number(self, number: int) -> None:
        """Sets the number of the next closure, as after a restart. No closure may be waiting or running.

        Raises:
            WrongStateError: a closure is waiting or running, or the number was used before.
        """
        with self._changed:
            self._book.set_next_number(number)

    def close(self, last_message: Message | None = None) -> None:
        """Tells the workers that the training is over, and closes the listener. Aborts unfinished closures. Idempotent.

        Waits for workers that are running a closure, but not for long.

        Args:
            last_message: the message for workers in place of `STOP`. Onlookers are sent `STOP` in any case.
        """
        with self._changed:
            self._last_message = last_message or self._last_message
            self._stopping = True
        self._listener.wake()
        self._thread.join()

    def _raise_error(self, *, settled: bool = False) -> None:
        if self._fatal is not None:
            raise self._fatal
        if settled or self._book.is_settled:
            error = self._book.take_error()
            if error is not None:
                raise error

    def _run(self) -> None:
        try:
            while not self._stopping:
                gone = self._listener.step(self._handle, timeout_s=STEP_S)
                with self._changed:
                    for peer in gone:
                        self._onlookers.pop(peer.route, None)
                        self._lose(peer)
                    self._hand_out()
                    self._report_waits()
            self._dismiss_all()
        except Exception as error:  # callers that wait must get the error
            LOGGER.exception("the coordinator's thread failed")
            self.fail(UnavailableError(f"the coordinator failed: {error!r}"))
        finally:
            self.fail(UnavailableError("the coordinator was closed"))
            self._listener.close()

    def _report_waits(self) -> None:
        if error := self._wait_logger.check_workers(is_alone=not self._workers and not self._book.is_settled):
            self.fail(error)
        if not self._book.is_settled:
            self._wait_logger.log_who_is_late(num_workers=len(self._workers))

    def _dismiss_all(self) -> None:
        """Tells all processes that the training is over. Waits a bounded time for workers that run a closure."""
        with self._changed:
            for name, request in self._idle.items():
                self._listener.reply(request, self._dismiss(name))
            for request in self._onlookers.values():
                self._listener.reply(request, Message(kind=STOP))
            self._idle.clear()
            self._onlookers.clear()
        deadline_s = self._clock() + SHUTDOWN_TIMEOUT_S
        while self._workers and self._clock() < deadline_s:
            gone = self._listener.step(self._handle, timeout_s=STEP_S)
            with self._changed:
                for peer in gone:
                    self._workers.pop(peer.name, None)

    def _dismiss(self, name: str) -> Message:
        """Records that a worker is sent the last message; returns the message."""
        del self._workers[name]
        self.dismissed.add(name)
        return self._last_message

    def fail(self, error: LockstepError) -> None:
        """Makes all waiting and future calls raise an error, because the cluster cannot go on."""
        with self._changed:
            self._fatal = self._fatal or error
            for _, value in self._closures.values():
                value.end(error=self._fatal)
            self._closures.clear()
            self._chosen.clear()
            self._book.clear()
            self._changed.notify_all()

    def _handle(self, request: Request) -> Message | None:
        with self._changed:
            name, kind = request.peer.name, request.message.kind
            if kind == READY:
                self._welcome(request.peer)
                return Message(kind="ok", fields={"watermark": self._book.watermark})
            if kind == STAGE:
                return self._compare(request)
            if kind == WATCH:
                self._onlookers[request.peer.route] = request  # two may have the same name: both are told
                return None
            if kind == REJECTED_MODEL:
                self._wait_logger.rejection = f"; {request.message.fields.get('text')}"
                LOGGER.error("%s cannot take part: %s", name, request.message.fields.get("text"))
                return Message(kind="ok")
            if self._workers.get(name) is not request.peer:
                raise ReplacedError(name)
            if kind == GIVE_BACK:
                self._note_ends(request)  # first: a server's successor may lack their pushes, which are counted
                self._take_back(request)
                self._wait_logger.end(name)
                return Message(kind="ok")
            if kind == AWAITING_SERVERS:
                self._wait_logger.note_awaits_servers(name, int(request.message.fields["closure"]))
                return Message(kind="ok")
            if kind == CHECK_OVER:
                return self._dismiss(name) if self._stopping else Message(kind="ok")
            if kind != NEXT:
                raise InvalidInputError(
                    "a coordinator has no such request",
                    received=kind,
                    allowed=[STAGE, READY, NEXT, GIVE_BACK, CHECK_OVER, AWAITING_SERVERS, WATCH],
                )
            self._note_ends(request)
            if self._stopping:
                return self._dismiss(name)
            self._idle[name] = request
            self._hand_out()
            if name in self._idle and not request.message.fields.get("may_wait", True):
                del self._idle[name]
                self._wait_logger.go_on(name)  # it ends what it has begun
                return Message(kind=NO_WORK)
            if name in self._idle:
                self._wait_logger.end(name)
            return None

    def _compare(self, request: Request) -> Message:
        stage = int(request.message.fields["stage"])
        if stage > self._stage:
            raise WrongStateError(
                f"{request.peer.name} is at the closures of its script, and the coordinator is at fit again",
                action="restart all processes: a coordinator that is lost after fit has no successor",
            )
        return self._stage_results if stage < self._stage and self._stage_results is not None else Message(kind="ok")

    def _welcome(self, peer: Peer) -> None:
        former = self._workers.get(peer.name)
        if former is not None and former is not peer:
            waiting = self._idle.get(peer.name)
            self._lose(former)
            if waiting is not None:  # it may be alive: its request is rejected
                self._listener.refuse(waiting, ReplacedError(peer.name))
        self._workers[peer.name] = peer
        self._pace.add(peer.name)
        self._numbers.setdefault(peer.name, len(self._numbers))
        self._on_change(sorted(self._workers))

    def _lose(self, peer: Peer) -> None:
        if self._workers.get(peer.name) is not peer:
            return
        del self._workers[peer.name]
        self._idle.pop(peer.name, None)
        self._pace.remove(peer.name)
        self._wait_logger.end(peer.name)
        lost = self._book.lose(self._numbers[peer.name], give_up=self._give_closure_up)
        LOGGER.warning("%s is lost: %s will run again on other workers", peer.name, counted(len(lost.again), "closure"))
        if lost.given_up is not None:
            self._forget(lost.given_up).end(error=self._book.error)
        self._abort(lost.cancelled)
        self._on_change(sorted(self._workers))
        self._changed.notify_all()

    def _give_closure_up(self, number: int, num_losses: int) -> ClosureError:
        workers = f"{counted(num_losses, 'worker')} {'was' if num_losses == 1 else 'were'}"
        return ClosureError(
            f"{self._describe(number)} was given up: {workers} lost with it",
            action="look into their logs for what ends them",
        )

    def _abort(self, numbers: Sequence[int]) -> None:
        """Ends closures that will not run, because another one has failed."""
        for number in numbers:
            aborted = ClosureAbortedError(f"closure {number} was cancelled: {self._book.error}")
            self._forget(number).end(error=aborted)

    def _take_back(self, request: Request) -> None:
        name = request.peer.name
        reason = str(request.message.fields.get("reason"))
        for number in sorted(map(int, request.message.fields.get("closures", ())), reverse=True):
            if self._book.give_back(number, worker=self._numbers[name]):
                self._wait_logger.note_given_back(number, worker=name, reason=reason)
            self._pace.end(name, self._num_steps(number))
        self._changed.notify_all()

    def _note_ends(self, request: Request) -> None:
        name = request.peer.name
        for index, fields in enumerate(request.message.fields.get("ended", ())):
            number = int(fields["closure"])
            num_steps = self._num_steps(number)
            if "error" in fields:
                self._note_error(number, worker=name, fields=fields)
            else:
                arrays = arrays_of(request.message.arrays, index)
                returned = decode(fields.get("value"), arrays)  # before it counts as run
                if self._book.finish(number, worker=self._numbers[name]):
                    unpack = self._closures[number][0].unpack
                    returned = returned if unpack is None else unpack(returned)
                    self._forget(number).end(returned)
            self._pace.end(name, num_steps)
        self._changed.notify_all()

    def _num_steps(self, number: int) -> int:
        return self._closures[number][0].num_steps if number in self._closures else 1

    def _describe(self, number: int) -> str:
        found = self._closures.get(number)
        return f"closure {number}" if found is None else f"closure {number} ({found[0].function})"

    def _forget(self, number: int) -> RemoteValue:
        self._chosen.pop(number, None)
        self._wait_logger.forget(number)
        return self._closures.pop(number)[1]

    def _note_error(self, number: int, *, worker: str, fields: Mapping[str, Any]) -> None:
        if number not in self._closures:
            return
        error = ClosureError(f"{self._describe(number)} failed in {worker}: {fields['error']}")
        error.add_note(str(fields.get("stack", "")))
        ended = self._book.fail(number, worker=self._numbers[worker], error=error)
        if not ended:  # it was taken from this worker
            return
        self._forget(number).end(error=error)
        self._abort(ended[1:])

    def _hand_out(self) -> None:
        for name, request in list(self._idle.items()):
            number = self._book.first_waiting
            if number is None:
                return
            closure, _ = self._closures[number]
            if not self._pace.may_begin(name, closure.num_steps):
                continue
            self._book.assign(self._numbers[name])
            del self._idle[name]
            self._pace.begin(name, closure.num_steps)
            self._wait_logger.begin(name, number)
            if number not in self._chosen and closure.choose is not None:
                self._chosen[number] = closure.choose(name)
            fields = {
                "number": number,
                "function": closure.function,
                "arguments": closure.arguments,
                "watermark": self._book.watermark,
                "chosen": dict(self._chosen.get(number, {})),
            }
            if not self._listener.reply(request, Message(kind=CLOSURE, fields=fields, arrays=closure.arrays)):
                self._lose(request.peer)
