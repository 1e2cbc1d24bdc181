"""Shared memory between processes of one host: a segment that both map, and ZeroMQ to say what is where in it."""

from __future__ import annotations

import struct
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final, final

import numpy as np
import zmq
from harness.protocol import say

from transports.traffic import Answer

SEGMENT_BYTES: Final = 64 << 20
ALIGNMENT: Final = 64


def _put(segment: SharedMemory, buffers: list[Any], start: int) -> list[int]:
    """Copies buffers into a segment; returns their places: start and size of each in turn."""
    places: list[int] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        segment.buf[start : start + view.nbytes] = view
        places += [start, view.nbytes]
        start += -(-view.nbytes // ALIGNMENT) * ALIGNMENT
    return places


def _note(header: bytes, places: list[int]) -> bytes:
    return struct.pack(f"<I{len(places)}Q", len(places), *places) + header


def _read(segment: SharedMemory, note: bytes) -> tuple[bytes, list[memoryview]]:
    (count,) = struct.unpack_from("<I", note)
    places = struct.unpack_from(f"<{count}Q", note, 4)
    parts = [segment.buf[start : start + size] for start, size in zip(places[::2], places[1::2], strict=True)]
    return note[4 + 8 * count :], parts


def serve(address: str, answer: Answer) -> None:
    """Answers exchanges until it is killed; ``address`` is ``ipc://...``."""
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    segments: dict[bytes, SharedMemory] = {}
    say({})
    while True:
        peer, note = socket.recv_multipart()
        if peer not in segments:
            segments[peer] = SharedMemory(note.decode(), track=False) if _TRACKS else SharedMemory(note.decode())
            socket.send_multipart([peer, b""])
            continue
        segment = segments[peer]
        header, buffers = answer(*_read(segment, note))
        socket.send_multipart([peer, _note(header, _put(segment, buffers, SEGMENT_BYTES // 2))])


_TRACKS: Final = "track" in (SharedMemory.__init__.__kwdefaults__ or {})


@final
class SharedMemoryClient:
    """One segment, and a DEALER."""

    def __init__(self, address: str) -> None:
        self._segment = SharedMemory(create=True, size=SEGMENT_BYTES)
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(address)
        self._socket.send(self._segment.name.encode())
        self._socket.recv()

    def exchange(self, header: bytes, buffers: list[np.ndarray]) -> tuple[bytes, list[memoryview]]:
        self._socket.send(_note(header, _put(self._segment, buffers, 0)))
        return _read(self._segment, self._socket.recv())

    def close(self) -> None:
        self._socket.close(linger=0)
        self._segment.unlink()
