"""How a coordinator tells when the clock runs: whoever started it looks at all processes then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from harness.protocol import say


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Says when the time begins that counts, and when it ends; waits each time until that has been noted."""
    for is_over in (False, True):
        say({})
        sys.stdin.readline()
        if not is_over:
            yield
