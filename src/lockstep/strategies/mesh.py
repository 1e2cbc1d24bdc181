"""The layouts of synchronous strategies: the placement of variables and batches, as `keras.distribution` layouts."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, cast, final

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.errors import BackendError, InvalidInputError
from lockstep.strategies.devices import Device
from lockstep.strategies.runs import AbstractRuns
from lockstep.upstream.keras_distribution import Distribution
from lockstep.upstream.keras_variables import layout_of

BATCH_AXIS: Final = "batch"
COPY_AXIS: Final = "copy"
MODEL_AXIS: Final = "model"

MAX_REPEATED_BYTES: Final = 256 * 2**20
"""The default of `AbstractLayout.max_repeated_bytes`."""


class AbstractLayout(Distribution, ABC):
    """Places each variable, and divides the rows of each batch over groups of devices.

    A batch of b rows on n replicas is divided over g = gcd(b, n) groups of devices, and repeated within a group. The
    computation is one program over exactly these b rows, on any number of devices. No row is padded, masked or left
    out, so statistics over the batch stay exact. `max_repeated_bytes` limits the memory for the repeated rows.

    All meshes of a layout hold the same devices in the same order, so one program may mix them.

    Args:
        devices: the devices that compute, in all processes. The devices of one process are next to each other.
        name: the strategy's name, for messages.
        num_model_shards: the number of neighboring devices that one replica's model is divided over.
        runs: the object that runs ``fit`` if it is not one program over the devices; None otherwise.

    Raises:
        BackendError: there is no device.
    """

    name: str
    """The strategy's name, for messages."""

    devices: tuple[Device, ...]
    """The devices that compute, in all processes."""

    num_replicas: int
    """The number of replicas that share a global batch."""

    max_repeated_bytes: int
    """The maximum number of bytes of a batch that a device may hold beyond its even share; may be set."""

    runs: AbstractRuns | None
    """The object that runs ``fit`` if it is not one program over the devices; None otherwise."""

    call_wrapper: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None
    """A function that calls compiled functions of `lockstep.function`, or None.

    Its arguments are the compiled function and the positional and keyword arguments of the call.
    """

    validate_array: Callable[[np.ndarray[Any, Any]], object] | None
    """A function that raises an error if an array of a batch, in host memory, is not allowed; or None."""

    on_variable: Callable[[Any], object] | None
    """A function that is called with each variable that is placed, or None.

    Only layouts with a copy of every variable on every device call it.
    """

    def __init__(
        self, devices: Sequence[Device], *, name: str, num_model_shards: int = 1, runs: AbstractRuns | None = None
    ) -> None:
        if not devices:
            raise BackendError("a strategy needs a device", received="none")
        self.name = name
        self.runs = runs
        self.call_wrapper = self.validate_array = self.on_variable = None
        self.devices = tuple(devices)
        self.num_replicas = len(self.devices) // num_model_shards
        self.max_repeated_bytes = MAX_REPEATED_BYTES
        self._num_model_shards = num_model_shards
        self._keras_meshes: dict[int, Any] = {}
        self._data_shardings: dict[tuple[int, int], NamedSharding] = {}
        super().__init__(self._keras_mesh(self.num_replicas), BATCH_AXIS, auto_shard_dataset=False)

    @abstractmethod
    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the placement of a variable: a `TensorLayout` of Keras, or a sharding of JAX.

        Does not block, is pure, and may be called from any thread.

        Args:
            variable: a Keras variable whose path, shape and dtype are known.
        """

    @abstractmethod
    def get_tensor_layout(self, path: str) -> Any:
        """Returns the placement of a layer's output, or None to let the compiler decide.

        Does not block, is pure, and may be called from any thread.

        Args:
            path: the layer's path, followed by "/output".
        """

    @property
    @abstractmethod
    def state_devices(self) -> tuple[Device, ...]:
        """The devices that hold the variables: each has a copy, or a part, of every variable."""

    @abstractmethod
    def state_sharding(self, shape: Sequence[int]) -> Any:
        """Returns the sharding of an array of a pure step's state, from its shape.

        Does not block, is pure, and may be called from any thread.

        Args:
            shape: the array's shape.
        """

    @property
    @abstractmethod
    def updates_on_host(self) -> bool:
        """Whether the state is kept and updated elsewhere than on the devices that compute."""

    @abstractmethod
    def to_compute_devices(self, values: Any) -> Any:
        """Returns values of variables, transferred to the devices that compute steps.

        Idempotent. Does not wait for transfers.

        Args:
            values: a structure of arrays from where the variables are kept.
        """

    @abstractmethod
    def to_state_devices(self, values: Any) -> Any:
        """Returns values that a step computed, transferred to the devices that hold variables.

        The reverse of `to_compute_devices`.

        Idempotent. Does not wait for transfers.

        Args:
            values: a structure of arrays on the devices that compute, the same on each.
        """

    @property
    @final
    def num_processes(self) -> int:
        """The number of processes that JAX knows, over all hosts."""
        return jax.process_count()

    @property
    @final
    def num_model_replicas(self) -> int:
        """Keras's name for `num_replicas`."""
        return self.num_replicas

    @property
    @final
    def replicated(self) -> NamedSharding:
        """The sharding that keeps a copy on every device."""
        return NamedSharding(self.data_mesh(1), PartitionSpec())

    @final
    def data_mesh(self, num_groups: int) -> Mesh:
        """Returns the mesh of a batch that is divided over this number of groups.

        Args:
            num_groups: a divisor of `num_replicas`.

        Returns:
            The mesh, with the axes "batch" (the groups), "copy" (the replicas of a group, which compute the same) and,
            if a replica's model is divided, "model".
        """
        return self._keras_mesh(num_groups).backend_mesh

    @final
    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Returns Keras's layout for a global batch of this shape."""
        rows = int(data_shape[0]) if data_shape else 1
        axes = [BATCH_AXIS, *[None] * (len(data_shape) - 1)] if data_shape else []
        return keras.distribution.TensorLayout(axes, self._keras_mesh(math.gcd(rows, self.num_replicas)))

    @final
    def place(self, batch: Any, *, num_rows: int | None = None) -> Any:
        """Places a batch on the devices.

        Args:
            batch: a structure of arrays whose first dim is the rows. None leaves stay None. Arrays that are on these
                devices already stay there.
            num_rows: the number of rows of the global batch, if this process may hold only its share of it; None if
                each process holds the whole batch.

        Returns:
            The same structure of global arrays.

        Raises:
            InvalidInputError: an array holds neither the whole batch nor this process's share of it, or the batch does
                not divide and is larger than `max_repeated_bytes` allows.
        """
        leaves = [self._read(leaf) for leaf in cast("list[Any]", keras.tree.flatten(batch))]
        self._check_repeated(leaves, num_rows=num_rows)
        return cast("Any", keras.tree.pack_sequence_as(batch, self._place(leaves, num_rows=num_rows)))

    @property
    @final
    def places_within_steps(self) -> bool:
        """Whether compiled steps take batches in host memory as they are, faster than they could be placed before."""
        return len(self.devices) == 1 and self.devices[0].platform == "cpu" and self.num_processes == 1

    @final
    def check(self, batch: Any) -> Any:
        """Returns a batch with its leaves as arrays, which are not placed. Checks them as `place` does.

        Args:
            batch: a structure of arrays. None leaves stay None.
        """
        return cast("Any", keras.tree.map_structure(self._checked, batch))

    @final
    def _checked(self, leaf: Any) -> Any:
        array = self._read(leaf)
        if self.validate_array is not None and isinstance(array, np.ndarray):
            self.validate_array(cast("np.ndarray[Any, Any]", array))
        return cast("Any", array)

    @final
    def _read(self, leaf: Any) -> Any:
        return leaf if leaf is None or self._holds(leaf) else np.asarray(leaf)

    @final
    def _check_repeated(self, leaves: Sequence[Any], *, num_rows: int | None) -> None:
        repeated_bytes, uneven_rows = 0.0, 0
        for leaf in leaves:
            if not isinstance(leaf, np.ndarray) or not leaf.size or not leaf.ndim:
                continue  # a scalar, empty, or on the devices already
            local_rows: int = cast("Any", leaf).shape[0]
            rows = local_rows if num_rows is None else num_rows
            num_groups = math.gcd(rows, self.num_replicas)
            if num_groups < self.num_replicas:
                size_bytes = leaf.nbytes / local_rows * rows
                repeated_bytes += size_bytes / num_groups - size_bytes / self.num_replicas
                uneven_rows = rows
        if repeated_bytes > self.max_repeated_bytes:
            num_groups = math.gcd(uneven_rows, self.num_replicas)
            raise InvalidInputError(
                f"a batch of {uneven_rows} rows divides over {num_groups} of {self.num_replicas} replicas, and would "
                f"be repeated {self.num_replicas // num_groups} times",
                received=f"{repeated_bytes / 2**20:,.0f} MiB more on each device than its share",
                allowed=f"{self.max_repeated_bytes / 2**20:,.0f} MiB (strategy.layout.max_repeated_bytes)",
                action=f"take a batch size that {self.num_replicas} divides and leave out the rest of the rows, or "
                "raise the limit",
            )

    @final
    def _place(self, leaves: Sequence[Any], *, num_rows: int | None) -> list[Any]:
        """Places the arrays of a batch that are in host memory. Those of one process take one transfer together."""
        placed = list(leaves)
        numbers = [n for n, leaf in enumerate(leaves) if leaf is not None and not self._holds(leaf)]
        shardings: list[NamedSharding] = []
        for number in numbers:
            array = cast("np.ndarray[Any, Any]", leaves[number])
            if self.validate_array is not None:
                self.validate_array(array)
            local_rows = array.shape[0] if array.ndim else 1
            rows = local_rows if num_rows is None or array.ndim == 0 else num_rows
            sharding = self._data_sharding(math.gcd(rows, self.num_replicas) if array.ndim else 1, array.ndim)
            shardings.append(sharding)
            if self.num_processes == 1:
                if local_rows != rows:
                    raise self._wrong_rows(local_rows, rows)
            else:
                placed[number] = self._place_share(array, rows=rows, sharding=sharding)
        if self.num_processes == 1 and numbers:
            arrays = jax.device_put([leaves[number] for number in numbers], shardings)
            for number, array in zip(numbers, arrays, strict=True):
                placed[number] = array
        return placed

    @final
    def _place_share(self, array: np.ndarray[Any, Any], *, rows: int, sharding: NamedSharding) -> Any:
        """Places an array of which this process has all rows, or its share of them."""
        local_rows = array.shape[0] if array.ndim else 1
        shape = (rows, *array.shape[1:]) if array.ndim else ()
        if local_rows == rows:
            return jax.make_array_from_callback(shape, sharding, lambda index: array[index])
        if local_rows * self.num_processes != rows or rows % self.num_replicas:
            raise self._wrong_rows(local_rows, rows)
        return jax.make_array_from_process_local_data(sharding, array, shape)

    @final
    def _data_sharding(self, num_groups: int, num_dims: int) -> NamedSharding:
        """Returns the sharding of an array of a batch whose rows are divided over a number of groups."""
        found = self._data_shardings.get((num_groups, num_dims))
        if found is None:
            spec = PartitionSpec(BATCH_AXIS, *[None] * (num_dims - 1)) if num_dims else PartitionSpec()
            found = self._data_shardings[num_groups, num_dims] = NamedSharding(self.data_mesh(num_groups), spec)
        return found

    @final
    def _wrong_rows(self, local_rows: int, rows: int) -> InvalidInputError:
        shares = self.num_processes > 1 and rows % self.num_replicas == 0
        return InvalidInputError(
            f"process {jax.process_index()} holds a wrong number of rows of a batch of {rows}",
            received=local_rows,
            allowed=f"{rows // self.num_processes} (its share) or {rows} (all)" if shares else str(rows),
        )

    @final
    def _holds(self, leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding.device_set == set(self.devices)

    @final
    def _keras_mesh(self, num_groups: int) -> Any:
        found = self._keras_meshes.get(num_groups)
        if found is None:
            shape = [num_groups, self.num_replicas // num_groups]
            axes = [BATCH_AXIS, COPY_AXIS]
            if self._num_model_shards > 1:
                shape.append(self._num_model_shards)
                axes.append(MODEL_AXIS)
            found = keras.distribution.DeviceMesh(tuple(shape), axes, list(self.devices))
            self._keras_meshes[num_groups] = found
        return found


class AbstractReplicatedLayout(AbstractLayout):
    """Keeps a copy of every variable on every device."""

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the variable's own layout if it was given one, else a copy on every device."""
        if self.on_variable is not None:
            self.on_variable(variable)
        own = layout_of(variable)
        return own if own is not None else self.replicated

    def get_tensor_layout(self, path: str) -> None:
        """Returns None: the compiler places the output of every layer."""
        del path

    @property
    def state_devices(self) -> tuple[Device, ...]:
        """The devices that compute."""
        return self.devices

    def state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of a copy on every device."""
        del shape
        return self.replicated

    @property
    def updates_on_host(self) -> bool:
        """Always False: each device updates its own copy."""
        return False

    def to_state_devices(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values


@final
class ReplicatedLayout(AbstractReplicatedLayout):
    """Keeps a copy of every variable on every device that computes.

    Args:
        devices: the devices of all processes. The devices of one process are next to each other.
        name: the strategy's name, for messages.
    """

    def __init__(self, devices: Sequence[Device], *, name: str) -> None:
        super().__init__(devices, name=name)

    def to_compute_devices(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values
