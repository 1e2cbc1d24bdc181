"""A server of one transport, or a client that exchanges buffers with it: ``python -m transports.side ORDER``."""

from __future__ import annotations

import importlib
import time
from statistics import median
from typing import Any, Final

import numpy as np
from harness.protocol import read_order, say, serve_rounds
from harness.tables import percentile

from transports.traffic import HEADER, KINDS

PAGE_BYTES: Final = 4096
WARM_UP_S: Final = 0.3
MICROSECONDS: Final = 1e6


def touch(parts: list[Any]) -> int:
    """Looks at each page of what came: what was only mapped did not travel."""
    return sum(int(np.frombuffer(part, np.uint8)[::PAGE_BYTES].sum()) for part in parts)


def serve(order: dict[str, Any]) -> None:
    """Answers exchanges until it is killed."""
    kind = KINDS[order["kind"]]
    answer, expected = kind.answer(), [part.nbytes for part in kind.request()]

    def answered(header: bytes, parts: list[memoryview]) -> tuple[bytes, list[np.ndarray]]:
        if header == b"processor":
            return repr(time.process_time()).encode(), []
        assert header == HEADER
        assert [part.nbytes for part in parts] == expected
        touch(parts)
        return header, answer

    importlib.import_module(f"transports.{order['module']}").serve(order["address"], answered)


def drive(order: dict[str, Any]) -> None:
    """Exchanges buffers with the server, for some seconds in each round."""
    client = getattr(importlib.import_module(f"transports.{order['module']}"), order["client"])(order["address"])
    kind = KINDS[order["kind"]]
    request, sizes = kind.request(), [part.nbytes for part in kind.answer()]

    def exchange_for(seconds: float) -> list[float]:
        times, until = [], time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            header, parts = client.exchange(HEADER, request)
            assert header == HEADER
            assert [part.nbytes for part in parts] == sizes
            touch(parts)
            times.append(time.perf_counter() - start)
            del parts
        return times

    def round_of() -> dict[str, Any]:
        exchange_for(WARM_UP_S)
        server_before, own_before = float(client.exchange(b"processor", [])[0]), time.process_time()
        times = exchange_for(order["seconds"])
        own_s = time.process_time() - own_before
        return {
            "median_us": median(times) * MICROSECONDS,
            "p99_us": percentile(times, 0.99) * MICROSECONDS,
            "per_second": len(times) / sum(times),
            "client_us": own_s / len(times) * MICROSECONDS,
            "server_us": (float(client.exchange(b"processor", [])[0]) - server_before) * MICROSECONDS,
            "num": len(times),
        }

    say({})
    serve_rounds(round_of)
    client.close()


if __name__ == "__main__":
    asked = read_order()
    (serve if asked["serves"] else drive)(asked)
