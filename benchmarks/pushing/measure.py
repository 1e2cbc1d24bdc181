"""How a coordinator tells when the clock runs: whoever started it looks at all processes then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

STARTED: Final = "the clock starts"
STOPPED: Final = "the clock stops"


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Says when the time begins that counts, and when it ends; waits each time until that has been noted."""
    for line in (STARTED, STOPPED):
        print(line, flush=True)
        input()
        if line == STARTED:
            yield
