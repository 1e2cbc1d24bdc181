"""The runner's standard input behind its order: "stop", and requests for profiles of the program."""

from __future__ import annotations

import os
from typing import Final, final

from lockstep.heartbeat import ProfileRequest

READ_BYTES: Final = 4096
STOP: Final = b"stop"


@final
class Control:
    """Reads what the launcher writes to a runner.

    Each line is "stop", or a `ProfileRequest` as JSON. The end of the input means that the engine is gone, and so does
    a line that this version does not know: the program must not outlive whoever wrote it.

    Args:
        descriptor: the file descriptor.

    Attributes:
        is_stopped: whether the program has to be stopped.
        has_ended: whether nothing more will arrive.
        profile: the latest request for a profile that nobody has taken yet.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._partial = b""
        self.is_stopped = False
        self.has_ended = False
        self.profile: ProfileRequest | None = None

    def fileno(self) -> int:
        """Returns the file descriptor to wait for."""
        return self._descriptor

    def read(self) -> None:
        """Reads what has arrived. Call it when the descriptor can be read."""
        data = os.read(self._descriptor, READ_BYTES)
        if not data:
            self.has_ended = self.is_stopped = True
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > READ_BYTES:
            self.is_stopped = True
        for line in lines:
            request = None if line == STOP else ProfileRequest.from_bytes(line)
            if request is None:
                self.is_stopped = True
            else:
                self.profile = request

    def take_profile(self) -> ProfileRequest | None:
        """Returns the latest request for a profile, once."""
        request, self.profile = self.profile, None
        return request
