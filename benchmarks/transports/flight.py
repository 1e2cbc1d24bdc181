"""Arrow Flight: one ``DoExchange`` for each client, record batches of bytes, each a buffer that is not copied."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from harness.protocol import say
from pyarrow import flight

from transports.traffic import Answer

SCHEMA: Final = pa.schema([("data", pa.uint8())])
DESCRIPTOR: Final = flight.FlightDescriptor.for_command(b"exchange")


def _write(writer: Any, header: bytes, buffers: list[Any]) -> None:
    """Each buffer as a batch of bytes without a copy; the header, and how many follow, beside the first one."""
    note = len(buffers).to_bytes(2, "little") + header
    if not buffers:
        writer.write_metadata(note)
    for number, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        column = pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(buffer)])
        batch = pa.record_batch([column], schema=SCHEMA)
        if number:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, note)


def _read(reader: Any) -> tuple[bytes, list[memoryview]]:
    chunk = reader.read_chunk()
    note = chunk.app_metadata.to_pybytes()
    parts = [chunk.data] if chunk.data is not None else []
    while len(parts) < int.from_bytes(note[:2], "little"):
        parts.append(reader.read_chunk().data)
    return note[2:], [memoryview(part.column(0).buffers()[1]) for part in parts]


@final
class _Server(flight.FlightServerBase):
    def __init__(self, address: str, answer: Answer) -> None:
        super().__init__(address)
        self._answer = answer

    def do_exchange(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        while True:
            try:
                request = _read(reader)
            except StopIteration:
                return
            _write(writer, *self._answer(*request))


def serve(address: str, answer: Answer) -> None:
    """Answers exchanges until it is killed; ``address`` is ``grpc://HOST:PORT`` or ``grpc+unix://PATH``."""
    server = _Server(address, answer)
    say({})
    server.serve()


@final
class FlightClient:
    """One exchange that goes on."""

    def __init__(self, address: str) -> None:
        self._client = flight.FlightClient(address)
        self._writer, self._reader = self._client.do_exchange(DESCRIPTOR)
        self._writer.begin(SCHEMA)

    def exchange(self, header: bytes, buffers: list[np.ndarray]) -> tuple[bytes, list[memoryview]]:
        _write(self._writer, header, buffers)
        return _read(self._reader)

    def close(self) -> None:
        self._writer.done_writing()
        self._client.close()
