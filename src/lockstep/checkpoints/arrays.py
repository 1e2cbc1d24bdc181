"""Arrays of checkpoints: copied to the host shard by shard; each process reads only the shards that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Sharding, SingleDeviceSharding

from lockstep.errors import CorruptDataError

_READ_BYTES: Final = 2**26
_READ_PART: Final = 16
"""A process restores its arrays in parts of `_READ_BYTES` bytes, or of 1/`_READ_PART` of all its bytes if that is more.
A restore needs memory for a few such parts in addition to the variables."""

_HOST: Final = "pinned_host"


@final
@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array that is still in its checkpoint. ``np.asarray`` reads the whole array.

    Attributes:
        folder: the folder of the checkpoint's arrays.
        group: the name of the array's group.
        key: the array's name in the group.
        shape: the array's shape.
        dtype: the array's dtype.
    """

    folder: epath.Path
    group: str
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001 - NumPy's protocol
        """Reads the array into memory.

        Raises:
            CorruptDataError: the array cannot be read.
        """
        if copy is False:
            raise ValueError("an array in a checkpoint is read into memory")
        return np.asarray(read_arrays([self])[0], dtype)


Array: TypeAlias = np.ndarray | jax.Array | StoredArray
"""An array of a state: a NumPy array if this process has all of it, a JAX array in host memory if it is divided over
devices, or a stored array."""


def copy_to_host(value: Any) -> np.ndarray | jax.Array:
    """Copies an array to host memory, where it does not change when training continues.

    Each process copies the shards of its own devices. The processes exchange nothing.

    Args:
        value: a JAX array, or anything that NumPy accepts as an array.

    Returns:
        A NumPy array if every process has all of it; otherwise a JAX array with the same shards.
    """
    if not isinstance(value, jax.Array) or not _is_divided(value.sharding):
        return np.array(value)
    if jax.process_count() > 1 and _is_whole_everywhere(value):
        return _joined(value)
    shards = [
        jax.device_put(shard.data, SingleDeviceSharding(shard.device, memory_kind=_HOST), may_alias=False)
        for shard in value.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding.with_memory_kind(_HOST), shards)


def is_scattered(value: Array) -> bool:
    """Returns whether an array is divided over several processes."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def is_finite(value: np.ndarray | jax.Array) -> bool:
    """Returns whether all values of an array on the host are finite. Integers and booleans always are.

    Of an array that is divided over several processes, only this process's shards are checked.
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return True
    parts = [shard.data for shard in value.addressable_shards] if isinstance(value, jax.Array) else [value]
    return all(np.isfinite(np.asarray(part)).all() for part in parts)


def assign_all(pairs: Iterable[tuple[Any, Array]]) -> None:
    """Assigns values to variables. Of a stored array, each process reads the shards that its devices hold.

    Args:
        pairs: Keras variables that have values already, each with an array of the same shape.

    Raises:
        CorruptDataError: a stored array cannot be read. Some variables may have been assigned already.
    """
    stored: list[tuple[Any, StoredArray]] = []
    for variable, value in pairs:
        if isinstance(value, StoredArray):
            stored.append((variable, value))
        elif is_scattered(value):
            variable.assign(jax.device_put(value, variable.value.sharding))
        else:
            variable.assign(np.asarray(value))
    for part in _parts(stored):
        values = read_arrays([array for _, array in part], [_sharding_of(variable) for variable, _ in part])
        for (variable, _), value in zip(part, values, strict=True):
            variable.assign(value)


def read_arrays(
    arrays: Sequence[StoredArray], shardings: Sequence[Sharding | None] | None = None
) -> list[np.ndarray | jax.Array]:
    """Reads arrays of one checkpoint, without waiting for other processes.

    Args:
        arrays: the arrays to read.
        shardings: the sharding of each result; this process reads only the shards of its devices. None, for one array
            or for all, reads the whole array.

    Returns:
        A JAX array for each sharding, and a NumPy array for each None.

    Raises:
        CorruptDataError: an array cannot be read.
    """
    if not arrays:
        return []
    folder = arrays[0].folder
    outline: dict[str, dict[str, Any]] = {}
    arguments: dict[str, dict[str, Any]] = {}
    for array, sharding in zip(arrays, shardings or [None] * len(arrays), strict=True):
        outline.setdefault(array.group, {})[array.key] = 0
        arguments.setdefault(array.group, {})[array.key] = (
            ocp.RestoreArgs(restore_type=np.ndarray)
            if sharding is None
            else ocp.ArrayRestoreArgs(sharding=sharding, global_shape=array.shape, dtype=array.dtype)
        )
    wanted = ocp.args.PyTreeRestore(item=outline, restore_args=arguments, partial_restore=True)
    alone = process_options({jax.process_index()})
    try:
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
            found: Any = reader.restore(folder, args=wanted)
    except Exception as error:  # Orbax raises plain Exceptions
        raise unreadable(folder.parent, error) from error
    return [found[array.group][array.key] for array in arrays]


def process_options(processes: set[int]) -> ocp.options.MultiprocessingOptions:
    """Returns Orbax's options with which these processes take part in its operations. The lowest one leads.

    The options list the processes even if all processes take part. Orbax then synchronizes them through JAX's
    coordination service, which any thread can use. Otherwise it would use collectives, which would interfere with those
    of training.
    """
    return ocp.options.MultiprocessingOptions(
        primary_host=min(processes), active_processes=processes, barrier_sync_key_prefix="lockstep"
    )


def unreadable(checkpoint: epath.Path, error: BaseException) -> CorruptDataError:
    """Returns the error for a checkpoint that cannot be read.

    Args:
        checkpoint: the folder of the checkpoint.
        error: the cause.
    """
    first_line = str(error.__cause__ or error).partition("\n")[0]
    return CorruptDataError(
        f"checkpoint {checkpoint} cannot be read: {first_line}",
        action="delete that folder to go on without it",
    )


def _is_divided(sharding: Sharding) -> bool:
    # In a job of several processes, Orbax refuses an array that is on the devices of one process only.
    return not sharding.is_fully_replicated and (jax.process_count() == 1 or not sharding.is_fully_addressable)


def _is_whole_everywhere(value: jax.Array) -> bool:
    """Returns whether the devices of each process hold all of an array together."""
    indices = value.sharding.devices_indices_map(value.shape)
    held: dict[int, set[str]] = {}
    for device, index in indices.items():
        held.setdefault(device.process_index, set()).add(repr(index))
    return len({frozenset(parts) for parts in held.values()}) == 1


def _joined(value: jax.Array) -> np.ndarray:
    whole = np.empty(value.shape, value.dtype)
    for shard in value.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


def _sharding_of(variable: Any) -> Sharding | None:
    """Returns the sharding of a variable that is divided over devices; None for others, which Keras places itself."""
    value = variable.value
    return value.sharding if isinstance(value, jax.Array) and _is_divided(value.sharding) else None


def _parts(stored: Sequence[tuple[Any, StoredArray]]) -> Iterator[list[tuple[Any, StoredArray]]]:
    """Yields the variables and arrays in parts, to be read one part at a time."""
    sizes = [_own_bytes(array, _sharding_of(variable)) for variable, array in stored]
    most_bytes = max(_READ_BYTES, sum(sizes) // _READ_PART)
    part: list[tuple[Any, StoredArray]] = []
    part_bytes = 0
    for pair, size_bytes in zip(stored, sizes, strict=True):
        if part and part_bytes + size_bytes > most_bytes:
            yield part
            part, part_bytes = [], 0
        part.append(pair)
        part_bytes += size_bytes
    if part:
        yield part


def _own_bytes(array: StoredArray, sharding: Sharding | None) -> int:
    shape, num_copies = array.shape, 1
    if sharding is not None:
        shape, num_copies = sharding.shard_shape(array.shape), len(sharding.addressable_devices)
    return math.prod(shape) * array.dtype.itemsize * num_copies
