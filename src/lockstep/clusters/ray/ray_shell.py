"""A shell on any node of a Ray cluster, relayed by the replica's launcher.

Its bytes travel in Ray's own calls, which Ray's token protects.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from typing import Any, Protocol, final

from typing_extensions import override

from lockstep.clusters.ray.driver_process import CALL_TIMEOUT_S, SEND_TIMEOUT_S
from lockstep.clusters.shell_relay import AbstractShell
from lockstep.errors import EngineError, UnavailableError


class AbstractDriverCall(Protocol):
    """A function that calls a method of the driver."""

    def __call__(self, name: str, *, within_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Returns the result of the driver's method."""
        ...


@final
class RayShell(AbstractShell):
    """A shell that a launcher holds open.

    Args:
        shell_id: the id of the shell.
        ask: calls the driver that opened the shell.
    """

    def __init__(self, shell_id: str, *, ask: AbstractDriverCall) -> None:
        self._id = shell_id
        self._ask = ask

    @override
    def send(self, data: bytes) -> None:
        text = b64encode(data).decode()
        if not self._ask("send_to_shell", within_s=SEND_TIMEOUT_S, shell_id=self._id, data=text):
            raise UnavailableError("the shell accepts no input: it has ended")

    @override
    def receive(self, *, timeout_s: float) -> bytes | None:
        within_s = timeout_s + CALL_TIMEOUT_S
        text = self._ask("receive_from_shell", within_s=within_s, shell_id=self._id, timeout_s=timeout_s)
        return None if text is None else b64decode(text)

    @override
    def close(self) -> None:
        with contextlib.suppress(EngineError):
            self._ask("close_shell", shell_id=self._id)
