"""Links that open the console signed in, once."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, final

LASTS_S: Final = 300.0
"""How long a link can be opened, in seconds."""
MAX_LINKS: Final = 1000
"""The maximum number of links that were not opened yet. The oldest ones are forgotten first."""


@final
class SignInLinks:
    """The codes of links that were not opened yet, in the memory of this service. Thread-safe.

    Args:
        timer: a monotonic clock, in seconds.
    """

    def __init__(self, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, str | None]] = {}

    def make(self, key_id: str | None) -> str:
        """Returns a new code.

        Args:
            key_id: the public name of the key that signs in; None for the home's own token.
        """
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._made[_digest(code)] = (self._timer() + LASTS_S, key_id)
            while len(self._made) > MAX_LINKS:
                del self._made[next(iter(self._made))]
        return code

    def use(self, code: str) -> tuple[bool, str | None]:
        """Returns whether a code is valid, and the public name of its key. It is not valid any more after that."""
        with self._lock:
            expire_s, key_id = self._made.pop(_digest(code), (0.0, None))
        return (True, key_id) if self._timer() < expire_s else (False, None)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
