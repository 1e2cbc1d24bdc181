"""Exchanges information about a checkpoint between a job's processes: its number, its visibility and its content.

These functions are collective: every process of the job must call them, in the same order.
"""

from __future__ import annotations

import json
import math
import secrets
from contextlib import suppress
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from lockstep.checkpoints.state import Position, TrainingState
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageWriteError
from lockstep.strategies.shares import gather_counts

_PART_BYTES: Final = 2**28


def broadcast_number(number: int | None) -> int | None:
    """Returns the chief's number in every process.

    Args:
        number: a number below 2**31, or None. Only the chief's is used.
    """
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils  # slow to import, and not needed by a single process

    found = int(multihost_utils.broadcast_one_to_all(np.array(-1 if number is None else number, np.int32)))
    return None if found < 0 else found


def exists_for_all(path: epath.Path) -> bool:
    """Returns whether a file or folder exists for every process."""
    return all(gather_counts(int(path.exists())))


def check_shared(path: epath.Path) -> None:
    """Checks that every process sees what the chief writes into a folder.

    Args:
        path: the folder; it exists.

    Raises:
        InvalidInputError: a process does not see the chief's file.
        StorageWriteError: the chief cannot write to the folder.
    """
    is_chief = jax.process_index() == 0
    number: int | None = secrets.randbits(31)
    try:
        if is_chief:
            (path / f"shared-{number}").write_text("")
    except OSError:
        number = None  # the other processes wait for the broadcast
    number = broadcast_number(number)
    if number is None:
        raise StorageWriteError(f"a checkpoint cannot be written to {path}")
    probe = path / f"shared-{number}"
    found = gather_counts(int(probe.exists()))
    if is_chief:
        with suppress(OSError):  # harmless: only an empty file is left
            probe.unlink()
    if not all(found):
        raise InvalidInputError(
            "each process writes its part of the model into one directory, which all of them must see",
            received=f"{path}, where process {found.index(0)} does not see what the chief writes",
            action="name a directory that the processes share, such as one in a bucket",
        )


def broadcast_state(found: TrainingState | LockstepError | None) -> TrainingState | None:
    """Sends the state that the chief has read to every process: a line of JSON as description, then the arrays' bytes.

    The arrays are sent as bytes, because JAX would convert 64-bit numbers to 32-bit ones.

    Args:
        found: the chief's state, read into memory and without tables; or the error that it met; or None. Only the
            chief's value is used.

    Raises:
        CorruptDataError: the chief could not read the state. Raised in every process.
    """
    from jax.experimental import multihost_utils  # slow to import, and not needed by a single process

    payload = np.frombuffer(_pack(found), np.uint8)
    # In parts, because a device has to hold a part, and because the sizes are sent as 32-bit numbers.
    sizes = np.array(divmod(payload.size, _PART_BYTES), np.uint32)
    num_whole, rest_bytes = map(int, multihost_utils.broadcast_one_to_all(sizes))
    received = bytearray()
    for part_bytes in filter(None, [*[_PART_BYTES] * num_whole, rest_bytes]):
        part = payload[len(received) : len(received) + part_bytes]
        part = part if jax.process_index() == 0 else np.zeros(part_bytes, np.uint8)
        received += np.asarray(multihost_utils.broadcast_one_to_all(part), np.uint8).tobytes()
    return _unpack(bytes(received))


def _pack(found: TrainingState | LockstepError | None) -> bytes:
    if found is None or isinstance(found, LockstepError):
        return json.dumps({"error": str(found)} if found else None).encode() + b"\n"
    flat = [(group, key, value) for group, arrays in found.arrays.items() for key, value in arrays.items()]
    outline = {
        "position": found.position.to_json(),
        "paths": found.paths,
        "generators": found.generators,
        "initial": sorted(found.initial),
        "run": found.run,
        "arrays": [[group, key, list(value.shape), value.dtype.name] for group, key, value in flat],
    }
    return b"".join(
        [json.dumps(outline).encode(), b"\n", *(np.ascontiguousarray(value).tobytes() for *_, value in flat)]
    )


def _unpack(payload: bytes) -> TrainingState | None:
    line, _, data = payload.partition(b"\n")
    outline = json.loads(line)
    if outline is None:
        return None
    if "error" in outline:
        raise CorruptDataError(f"the chief could not restore: {outline['error']}")
    arrays: dict[str, dict[str, np.ndarray]] = {}
    start = 0
    for group, key, shape, dtype in outline["arrays"]:
        count = math.prod(shape)
        value = np.frombuffer(data, jnp.dtype(dtype), count, start).reshape(shape)
        arrays.setdefault(group, {})[key] = value
        start += value.nbytes
    return TrainingState(
        position=Position.from_json(outline["position"]),
        arrays=arrays,
        paths=outline["paths"],
        generators=outline["generators"],
        initial=frozenset(outline["initial"]),
        run=outline["run"],
    )
