"""What a side's process says to the benchmark, and what it is told. The standard library alone: each side imports it.

The benchmark starts a side with its order as JSON in the first argument. The side says one line of JSON when it is
ready. It then reads lines: each is the order to do a round, and is answered by one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

MARK: Final = "benchmark: "
"""Begins the lines that are meant: libraries may print others."""

INTERFACE: Final = "BENCHMARK_INTERFACE"
"""The variable that names the network interface whose bytes a side counts."""


def read_order() -> dict[str, Any]:
    """Parses the program's argument."""
    return json.loads(sys.argv[1])


def say(said: dict[str, Any]) -> None:
    """Prints a line for the benchmark."""
    print(MARK + json.dumps(said), flush=True)


def own_peak_bytes() -> int:
    """Returns the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sent_bytes() -> int | None:
    """Returns the bytes that the interface named by `INTERFACE` has sent; None if none is named."""
    name = os.environ.get(INTERFACE)
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text()) if name else None


def serve_rounds(round_of: Callable[[], dict[str, Any]]) -> None:
    """Does a round for each line of standard input, and says what came of it.

    Args:
        round_of: does a round. Returns figures; ``wall_s`` and ``processor_s``, its seconds, are added,
            and ``sent_bytes`` where `INTERFACE` names an interface.
    """
    for _ in sys.stdin:
        sent = sent_bytes()
        started, processor = time.perf_counter(), time.process_time()
        said = round_of()
        wall_s, processor_s = time.perf_counter() - started, time.process_time() - processor
        if sent is not None:
            said["sent_bytes"] = (sent_bytes() or sent) - sent
        say({"wall_s": wall_s, "processor_s": processor_s, **said})
