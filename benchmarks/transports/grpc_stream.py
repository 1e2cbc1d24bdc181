"""gRPC: one stream in both directions for each client, messages of bytes; no message classes, so nothing is parsed."""

from __future__ import annotations

import queue
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, final

import grpc
import numpy as np
from harness.protocol import say

from transports.traffic import Answer

METHOD: Final = "/transports.Exchange/Exchange"
OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.optimization_target", "throughput"),
]


def pack(header: bytes, buffers: list[Any]) -> bytes:
    sizes = [len(header), *(memoryview(buffer).nbytes for buffer in buffers)]
    return b"".join([struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes), header, *buffers])


def unpack(data: bytes) -> tuple[bytes, list[memoryview]]:
    (count,) = struct.unpack_from("<I", data)
    sizes = struct.unpack_from(f"<{count}Q", data, 4)
    view, start, parts = memoryview(data), 4 + 8 * count, []
    for size in sizes:
        parts.append(view[start : start + size])
        start += size
    return bytes(parts[0]), parts[1:]


def serve(address: str, answer: Answer) -> None:
    """Answers exchanges until it is killed; ``address`` is ``HOST:PORT`` or ``unix:PATH``."""

    def exchange(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for data in requests:
            yield pack(*answer(*unpack(data)))

    handler = grpc.stream_stream_rpc_method_handler(exchange)
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("transports.Exchange", {"Exchange": handler})]
    )
    server.add_insecure_port(address)
    server.start()
    say({})
    server.wait_for_termination()


@final
class GrpcClient:
    """One stream."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers = self._channel.stream_stream(METHOD)(iter(self._requests.get, None))

    def exchange(self, header: bytes, buffers: list[np.ndarray]) -> tuple[bytes, list[memoryview]]:
        self._requests.put(pack(header, buffers))
        return unpack(next(self._answers))

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()
