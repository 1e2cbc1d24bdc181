"""A worker's side of closures: it requests one, runs it, reports how it ended, and requests the next one.

The next closure may already run before the previous one has ended: its pushes are still being sent then.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, counted
from lockstep.parameter_server.coordination.messages import (
    AWAITING_SERVERS,
    CHECK_OVER,
    CLOSURE,
    GIVE_BACK,
    GO_ON,
    NEXT,
    NO_WORK,
    READY,
    STOP,
    numbered,
)
from lockstep.parameter_server.coordination.values import decode, encode
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.frames import MAX_TEXT_CHARACTERS, sendable_text

LOGGER: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 15.0


@final
class GiveBackError(LockstepError):
    """A closure cannot be run here now, but perhaps elsewhere or later, because a parameter server is unavailable."""


@final
class _TrainingOverError(LockstepError):
    """The coordinator has ended."""


@final
@dataclass(frozen=True, kw_only=True)
class Call:
    """A closure to run.

    Attributes:
        number: the number of the closure.
        watermark: the lowest closure that may still run. All closures below it have ended.
        args: the positional arguments.
        kwargs: the arguments by name.
        chosen: what the coordinator chose for this closure when it was first assigned.
    """

    number: int
    watermark: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    chosen: Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Ended:
    """A closure that has run.

    Attributes:
        number: the number of the closure.
        value: its result.
    """

    number: int
    value: Any


class AbstractFunction(abc.ABC):
    """A function that closures call.

    Used from one thread, which runs one closure after the other.
    """

    @property
    @abc.abstractmethod
    def awaits_servers(self) -> bool:
        """Whether the function has pushed, and waits for the servers' answers. May be read from any thread."""

    @abc.abstractmethod
    def begin(self, call: Call) -> Sequence[Ended]:
        """Begins a closure, and may end it or an earlier one; returns those that have ended.

        Raises:
            GiveBackError: neither this closure nor those that were begun can be run.
            Exception: the user's own error in this closure.
        """

    @abc.abstractmethod
    def finish(self) -> Sequence[Ended]:
        """Ends the closures that were begun. Blocks.

        Raises:
            GiveBackError: they cannot be ended.
        """

    @abc.abstractmethod
    def under_way(self) -> Sequence[int]:
        """Returns the numbers of closures that were begun and have not ended."""

    @abc.abstractmethod
    def forget(self) -> Sequence[Ended]:
        """Forgets the begun closures; returns those that had ended before an error and were not reported yet."""

    @abc.abstractmethod
    def recover(self, meanwhile: Callable[[], None]) -> None:
        """Waits until closures can be run again, after `forget`.

        Args:
            meanwhile: a function that is called repeatedly during the wait. An exception that it raises ends the wait.

        Raises:
            UnavailableError: the wait takes too long.
        """


@final
class Worker:
    """Runs closures until the coordinator says that the training is over.

    Args:
        link: the link to the coordinator.
        functions: the functions that closures may call, by name.
        resolve: returns the object for a reference in arguments, such as this worker's own data set.
        poll_interval_s: the interval, in seconds, of checks whether a closure waits for the servers. If it does at two
            checks in a row, the coordinator is told, so that this worker is not taken for the one that the others wait
            for.

    Attributes:
        last_message: the last message of the coordinator: `STOP`, or `GO_ON`.
    """

    def __init__(
        self,
        link: Link,
        *,
        functions: Mapping[str, AbstractFunction],
        resolve: Callable[[list[Any]], Any],
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self.last_message = Message(kind=STOP)
        self._link = link
        self._poll_interval_s = poll_interval_s
        self._number = -1
        self._functions = functions
        self._resolve = resolve
        self._current: AbstractFunction | None = None
        self._name = ""
        self._num_closures = 0
        self._reports: list[tuple[dict[str, Any], Mapping[str, np.ndarray[Any, Any]]]] = []

    def run(self) -> int:
        """Runs closures; returns their number. Blocks.

        Raises:
            UnavailableError: the coordinator is lost.
        """
        self._link.request(Message(kind=READY))
        self._num_closures = 0
        is_over = threading.Event()
        teller = threading.Thread(target=self._report_waits, args=[is_over], name="telling of waits", daemon=True)
        teller.start()
        try:
            with contextlib.suppress(_TrainingOverError):
                self._run()
        finally:
            is_over.set()
            teller.join()
        return self._num_closures

    def _report_waits(self, is_over: threading.Event) -> None:
        waiting = told = -1
        while not is_over.wait(self._poll_interval_s):
            function, number = self._current, self._number
            now_waiting = number if function is not None and function.awaits_servers else -1
            if now_waiting == waiting and now_waiting not in {-1, told}:
                try:
                    self._link.request(Message(kind=AWAITING_SERVERS, fields={"closure": number}))
                except LockstepError:  # the thread that requests closures raises it too
                    return
                told = number
            waiting = now_waiting

    def _run(self) -> None:
        while not self._is_last(order := self._ask()):
            if order.kind not in {CLOSURE, NO_WORK}:
                raise CorruptDataError("the coordinator's answer", received=order.kind, allowed=[CLOSURE, STOP])
            try:
                if order.kind == CLOSURE:
                    self._num_closures += 1
                    self._run_one(order)
                else:
                    self._finish()
            except GiveBackError as error:
                self._give_back(order, error)

    def _is_last(self, order: Message) -> bool:
        if order.kind in {STOP, GO_ON}:
            self.last_message = order
        return order.kind in {STOP, GO_ON}

    def _check_is_over(self) -> None:
        """Checks whether the coordinator has ended, while this worker waits for a server."""
        if self._is_last(self._link.request(Message(kind=CHECK_OVER))):
            raise _TrainingOverError("the training is over")

    def _ask(self) -> Message:
        may_wait = self._current is None or not self._current.under_way()
        return self._send(NEXT, may_wait=may_wait)

    def _send(self, kind: str, **fields: Any) -> Message:
        """Sends the coordinator a message, together with the reports of ended closures."""
        ended = [fields for fields, _ in self._reports]
        arrays = {
            name: array for index, (_, own) in enumerate(self._reports) for name, array in numbered(own, index).items()
        }
        answer = self._link.request(Message(kind=kind, fields={"ended": ended, **fields}, arrays=arrays))
        self._reports.clear()
        return answer

    def _run_one(self, order: Message) -> None:
        number, name = int(order.fields["number"]), str(order.fields["function"])
        self._number = number
        try:
            function = self._functions.get(name)
            if function is None:
                raise InvalidInputError(
                    "a function that this worker's script has not defined",
                    received=name,
                    allowed=sorted(self._functions) or "none is known",
                    action="define it before the first closure is scheduled, at the top of a module that all import",
                )
            if function is not self._current:
                self._finish()
                self._current, self._name = function, name
            args, kwargs = decode(order.fields["arguments"], order.arrays, resolve=self._resolve)
            call = Call(
                number=number,
                watermark=int(order.fields["watermark"]),
                args=args,
                kwargs=kwargs,
                chosen=order.fields.get("chosen") or {},
            )
            self._report(function.begin(call))
        except GiveBackError:
            raise
        except Exception as error:  # the user's own: the coordinator raises it
            self._report_error(number, error)
            self._finish()

    def _finish(self) -> None:
        """Ends the closures that were begun: each with its result, or with its error or that of an earlier one."""
        if self._current is None:
            return
        error: Exception | None = None
        try:
            self._report(self._current.finish())
        except GiveBackError:
            raise
        except Exception as caught:  # of the servers, for example, about a push
            error = caught
        left = [number for number in self._current.under_way() if number not in self._reported]
        for number in left:
            self._report_error(
                number, error or InvalidInputError(f"closure {number} was aborted by the failure of a later one")
            )
        if left:
            self._report(self._current.forget())
            self._current.recover(self._check_is_over)

    @property
    def _reported(self) -> set[int]:
        return {fields["closure"] for fields, _ in self._reports}

    def _report(self, ended: Sequence[Ended]) -> None:
        for one in ended:
            try:
                value, arrays = encode(one.value, what=f"what {self._name} returns")
            except LockstepError as error:
                self._report_error(one.number, error)
            else:
                self._reports.append(({"closure": one.number, "value": value}, arrays))

    def _report_error(self, number: int, error: Exception) -> None:
        stack = sendable_text("".join(traceback.format_exception(error))[-MAX_TEXT_CHARACTERS:])
        self._reports.append(({"closure": number, "error": sendable_text(_describe(error)), "stack": stack}, {}))

    def _give_back(self, order: Message, error: GiveBackError) -> None:
        """Gives back closures that cannot be run now, and waits until they can."""
        assert self._current is not None, "it could not go on"
        numbers = set(self._current.under_way())
        if order.kind == CLOSURE:
            numbers.add(int(order.fields["number"]))
        self._report(self._current.forget())
        left = sorted(numbers - self._reported)
        LOGGER.info("%s given back, and waited until they can be run: %s", counted(len(left), "closure"), error)
        self._send(GIVE_BACK, closures=left, reason=sendable_text(str(error)))
        self._current.recover(self._check_is_over)


def pack_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], **options: Any
) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Encodes the arguments of a closure; see `lockstep.parameter_server.coordination.values.encode`."""
    return encode((args, dict(kwargs)), what="an argument of a closure", **options)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
