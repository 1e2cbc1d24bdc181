"""A worker's side of closures: it asks for one, runs it, says how it ended, and asks again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import numpy as np

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.parameter_server.coordination.dispatching import CLOSURE, NEXT, READY, STOP
from lockstep.parameter_server.coordination.values import decode, encode
from lockstep.parameter_server.links import Link, Message

MAX_STACK_CHARACTERS: Final = 8000


@final
class Worker:
    """Runs closures, until the coordinator says that it is over.

    Args:
        link: to the coordinator.
        functions: what closures may call, by name.
        resolve: finds what an argument stands for, such as this worker's own data set.
        on_closure: called with each closure's number and the coordinator's watermark before it is run.
    """

    def __init__(
        self,
        link: Link,
        *,
        functions: Mapping[str, Callable[..., Any]],
        resolve: Callable[[list[Any]], Any],
        on_closure: Callable[[int, int], object] = lambda _number, _watermark: None,
    ) -> None:
        self._link = link
        self._functions = functions
        self._resolve = resolve
        self._on_closure = on_closure

    def run(self) -> int:
        """Runs closures; returns how many. Blocks.

        Raises:
            UnavailableError: the coordinator is gone.
        """
        self._link.request(Message(kind=READY))
        num_closures = 0
        ended = Message(kind=NEXT)
        while (order := self._link.request(ended)).kind != STOP:
            if order.kind != CLOSURE:
                raise CorruptDataError("the coordinator's answer", received=order.kind, allowed=[CLOSURE, STOP])
            ended = self._run_one(order)
            num_closures += 1
        return num_closures

    def _run_one(self, order: Message) -> Message:
        number = int(order.fields["number"])
        try:
            name = str(order.fields["function"])
            function = self._functions.get(name)
            if function is None:
                raise InvalidInputError(
                    "a function that this worker's script has not defined",
                    received=name,
                    allowed=sorted(self._functions) or "none is known",
                    action="define it before the first closure is scheduled, at the top of a module that all import",
                )
            args, kwargs = decode(order.fields["arguments"], order.arrays, resolve=self._resolve)
            self._on_closure(number, int(order.fields["watermark"]))
            value, arrays = encode(function(*args, **kwargs), what=f"what {name} returns")
        except Exception as error:  # the user's own: the coordinator raises it
            stack = traceback.format_exc()[-MAX_STACK_CHARACTERS:]
            return Message(kind=NEXT, fields={"closure": number, "error": _words(error), "stack": stack})
        return Message(kind=NEXT, fields={"closure": number, "value": value}, arrays=arrays)


def pack_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], **options: Any
) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Returns a closure's arguments as they travel; see `lockstep.parameter_server.coordination.values.encode`."""
    return encode((args, dict(kwargs)), what="an argument of a closure", **options)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
