"""A shell on any node of a Ray cluster, relayed by the replica's launcher: Ray's own calls carry it, with its token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, final

import ray
from ray.exceptions import RayActorError
from typing_extensions import override

from lockstep.clusters.shells import AbstractShell
from lockstep.errors import EngineError, UnavailableError

CALL_TIMEOUT_S: Final = 15.0
SEND_TIMEOUT_S: Final = 45.0

Result = TypeVar("Result")


class AbstractCall(Protocol):
    """Calls the engine, whose errors become Lockstep's."""

    def __call__(self, action: Callable[[], Result]) -> Result:
        """Returns what the action returns."""
        ...


@final
class RayShell(AbstractShell):
    """A shell that a launcher keeps.

    Args:
        launcher: the replica's launcher.
        shell_id: names the shell there.
        call: calls the engine.
    """

    def __init__(self, launcher: Any, *, shell_id: str, call: AbstractCall) -> None:
        self._launcher = launcher
        self._id = shell_id
        self._call = call

    @override
    def send(self, data: bytes) -> None:
        def ask() -> bool:
            try:
                return ray.get(self._launcher.send_to_shell.remote(self._id, data), timeout=SEND_TIMEOUT_S)
            except RayActorError:
                return False

        if not self._call(ask):
            raise UnavailableError("the shell takes no input: it is over")

    @override
    def receive(self, *, timeout_s: float) -> bytes | None:
        def ask() -> bytes | None:
            try:
                asked = self._launcher.receive_from_shell.remote(self._id, timeout_s)
                return ray.get(asked, timeout=timeout_s + CALL_TIMEOUT_S)
            except RayActorError:  # the replica is over, and its launcher with it
                return None

        return self._call(ask)

    @override
    def close(self) -> None:
        with contextlib.suppress(EngineError):
            self._call(lambda: self._launcher.close_shell.remote(self._id))
