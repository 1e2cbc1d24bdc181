"""Where variables and batches lie: the mesh of a synchronous strategy, as a `keras.distribution` layout."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast, final

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.errors import InvalidInputError
from lockstep.strategies.devices import Device

BATCH_AXIS: Final = "batch"
COPY_AXIS: Final = "copy"


@final
class ReplicatedLayout(keras.distribution.DataParallel):
    """A copy of every variable on every device, and each batch divided over the devices by its rows.

    A batch of b rows on n devices is laid over g = gcd(b, n) groups of devices, and repeated within a group. What
    is computed is then one program over exactly those b rows, on any number of devices: no row is padded, masked or
    left out, so that statistics over the batch stay exact.

    Args:
        devices: the devices of all processes, those of one process next to each other.
        name: the strategy's name, for messages.
    """

    def __init__(self, devices: Sequence[Device], *, name: str) -> None:
        mesh = keras.distribution.DeviceMesh((len(devices),), [BATCH_AXIS], list(devices))
        super().__init__(device_mesh=mesh, auto_shard_dataset=False)
        self.name = name
        self.devices = tuple(devices)
        self._layouts: dict[int, Any] = {}

    @property
    def replicated(self) -> NamedSharding:
        """The sharding that keeps a copy on every device."""
        return NamedSharding(self._mesh(1), PartitionSpec())

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Returns Keras's layout for a global batch of this shape."""
        rows = int(data_shape[0]) if data_shape else 1
        axes = [BATCH_AXIS, *[None] * (len(data_shape) - 1)] if data_shape else []
        return keras.distribution.TensorLayout(axes, self._keras_mesh(math.gcd(rows, len(self.devices))))

    def place(self, batch: Any, *, num_rows: int | None = None) -> Any:
        """Puts a batch onto the devices.

        Args:
            batch: a structure of arrays, rows first; None leaves stay None. Arrays that JAX holds on these devices
                already stay where they are.
            num_rows: rows of the global batch of which this process may hold its share; None where each process holds
                the whole one.

        Returns:
            The same structure of global arrays.

        Raises:
            InvalidInputError: an array holds neither the whole batch nor this process's share of it.
        """
        return cast("Any", keras.tree.map_structure(partial(self._place, num_rows=num_rows), batch))

    def _place(self, leaf: Any, *, num_rows: int | None) -> Any:
        if leaf is None or self._holds(leaf):
            return leaf
        array = np.asarray(leaf)
        local_rows = array.shape[0] if array.ndim else 1
        rows = local_rows if num_rows is None or array.ndim == 0 else num_rows
        shape = (rows, *array.shape[1:]) if array.ndim else ()
        sharding: NamedSharding = self.get_data_layout(shape).backend_layout
        if self.num_processes == 1:
            if local_rows != rows:
                raise self._wrong_rows(local_rows, rows)
            return jax.device_put(array, sharding)
        if local_rows == rows:
            return jax.make_array_from_callback(shape, sharding, lambda index: array[index])
        if local_rows * self.num_processes != rows or rows % len(self.devices):
            raise self._wrong_rows(local_rows, rows)
        return jax.make_array_from_process_local_data(sharding, array, shape)

    def _wrong_rows(self, local_rows: int, rows: int) -> InvalidInputError:
        shares = self.num_processes > 1 and rows % len(self.devices) == 0
        return InvalidInputError(
            f"process {self.data_shard_id} holds a wrong number of rows of a batch of {rows}",
            received=local_rows,
            allowed=f"{rows // self.num_processes} (its share) or {rows} (all)" if shares else str(rows),
        )

    def _holds(self, leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding.device_set == set(self.devices)

    def _mesh(self, num_groups: int) -> Mesh:
        return self._keras_mesh(num_groups).backend_mesh

    def _keras_mesh(self, num_groups: int) -> Any:
        """The mesh of groups: always the same devices in the same order, which one program may mix."""
        found = self._layouts.get(num_groups)
        if found is None:
            shape = (num_groups, len(self.devices) // num_groups)
            found = keras.distribution.DeviceMesh(shape, [BATCH_AXIS, COPY_AXIS], list(self.devices))
            self._layouts[num_groups] = found
        return found
