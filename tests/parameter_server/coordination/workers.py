"""Workers in threads, and a dispatcher that they come to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lockstep.errors import UnavailableError
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.remote_values import Closure, RemoteValue
from lockstep.parameter_server.coordination.working import (
    AbstractFunction,
    Call,
    Ended,
    Worker,
    pack_call,
)
from lockstep.parameter_server.links import Link, Listener

TOKEN = b"t" * 32


TIMEOUT_S = 30.0


class Plain(AbstractFunction):
    """Calls a function, and notes which closures it did that for."""

    awaits_servers = False  # type: ignore[assignment]
    forget = lambda self: []  # type: ignore[assignment]  # noqa: E731

    def __init__(self, function: Callable[..., Any], *, note: Callable[[int], object]) -> None:
        self.function = function
        self.note = note

    def begin(self, call: Call) -> list[Ended]:
        self.note(call.number)
        return [Ended(number=call.number, value=self.function(*call.args, **call.kwargs))]

    def finish(self) -> list[Ended]:
        return []

    def under_way(self) -> list[int]:
        return []

    def recover(self, meanwhile: Callable[[], None]) -> None:
        pass


class Cluster:
    """A dispatcher, and workers in threads."""

    def __init__(self, **options: Any) -> None:
        listener = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=4.0)
        self.address = listener.address
        self.dispatcher = Dispatcher(listener, **options)
        self.threads: list[threading.Thread] = []
        self.links: list[Link] = []
        self.errors: list[Exception] = []
        self.ran: list[tuple[str, int]] = []

    def work(
        self, name: str, *, poll_interval_s: float = TIMEOUT_S, **functions: Callable[..., Any] | AbstractFunction
    ) -> Link:
        link = Link(self.address, peer_name="chief 0", token=TOKEN, name=name, silence_s=4.0, connect_s=TIMEOUT_S)
        self.links.append(link)

        def run() -> None:
            plain = {
                key: function
                if isinstance(function, AbstractFunction)
                else Plain(function, note=lambda number: self.ran.append((name, number)))
                for key, function in functions.items()
            }
            worker = Worker(link, functions=plain, resolve=tuple, poll_interval_s=poll_interval_s)
            try:
                worker.run()
            except UnavailableError as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        return link

    def schedule(self, function: str, *args: Any, **kwargs: Any) -> RemoteValue:
        arguments, arrays = pack_call(args, kwargs)
        return self.dispatcher.schedule(Closure(function=function, arguments=arguments, arrays=arrays))

    def close(self) -> None:
        self.dispatcher.close()
        for thread in self.threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        for link in self.links:
            link.close()
