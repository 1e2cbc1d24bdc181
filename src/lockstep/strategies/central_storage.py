"""The strategy that keeps and updates one copy of the parameters in host memory, while devices compute the steps."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.errors import BackendError, ConfigError
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, describe_devices, local_devices, name_of, resolve_devices
from lockstep.strategies.mesh import AbstractLayout
from lockstep.topology import Topology


@final
class CentralLayout(AbstractLayout):
    """Places every variable on one device of the host, and divides batches over the devices that compute.

    Args:
        devices: the devices that compute.
        name: the strategy's name, for messages.
        parameter_device: the device whose memory holds the variables.
    """

    def __init__(self, devices: Sequence[Device], *, name: str, parameter_device: Device) -> None:
        super().__init__(devices, name=name)
        self._parameter_device = parameter_device
        self._home = NamedSharding(Mesh(np.array([parameter_device]), ("host",)), PartitionSpec())

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the variable's own layout if it was given one, else one copy in host memory."""
        own = getattr(variable, "_layout", None)
        return own if own is not None else self._home

    def get_tensor_layout(self, path: str) -> None:
        """Returns None: the compiler places the output of every layer."""
        del path

    @property
    def state_devices(self) -> tuple[Device, ...]:
        """The one device that holds the variables."""
        return (self._parameter_device,)

    def state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of one copy in host memory."""
        del shape
        return self._home

    @property
    def updates_on_host(self) -> bool:
        """Always True."""
        return True

    def to_compute_devices(self, values: Any) -> Any:
        """Returns a copy of each value on every device that computes."""
        return jax.device_put(values, self.replicated)

    def to_state_devices(self, values: Any) -> Any:
        """Returns one copy of each value in host memory."""
        return jax.tree.map(self._store, values)

    def _store(self, value: Any) -> Any:
        if isinstance(value, jax.Array) and value.is_fully_replicated:
            value = value.addressable_data(0)  # transfer the copy of one device, not all copies
        return jax.device_put(value, self._home)


@final
class CentralStorageStrategy(AbstractStrategy):
    """Keeps one copy of the parameters and of the optimizer's state in host memory; the host updates it every step.

    For each step, the parameters are copied to the devices that compute. These devices divide the batch, and the sum of
    their gradients is sent back to the host. Between steps, only the parameter device holds parameters. This suits
    models whose optimizer state is too large for a device. It costs two transfers of the size of the parameters per
    step.

    Only the scalars of the optimizer's state are copied to the devices. A custom ``train_step`` that reads other parts
    of the state finds NaN there. It may apply several optimizers, each of them once.

    Args:
        compute_devices: the devices that compute, or their names. By default, this process's accelerators, or its CPU
            devices if it has no accelerators.
        parameter_device: the CPU device that holds the parameters, or its name. By default, this process's first CPU
            device. It is not one of the devices that compute, unless CPU devices compute.

    Raises:
        BackendError: there is no such device, or ``JAX_PLATFORMS`` excludes the CPU.
        InvalidInputError: a name is not the name of a device.
        ConfigError: the job has several processes.
    """

    def __init__(
        self,
        compute_devices: Iterable[str | Device] | None = None,
        parameter_device: str | Device | None = None,
    ) -> None:
        topology = Topology.from_env()
        if topology.num_processes > 1:
            raise ConfigError(
                "CentralStorageStrategy keeps parameters in one process's memory",
                received=f"a job of {topology.num_processes} processes",
                allowed="one process",
                action="use MultiWorkerMirroredStrategy, or ShardedStrategy where memory is short",
            )
        prepare_backend()
        chosen = resolve_devices(compute_devices) if compute_devices is not None else local_devices()
        self._parameter_device = _host_device(parameter_device)
        layout = CentralLayout(chosen, name=type(self).__name__, parameter_device=self._parameter_device)
        super().__init__(layout, topology=topology)

    def describe(self) -> str:
        """Names the devices that compute, and the device that holds the parameters."""
        kept = name_of(self._parameter_device)
        return f"CentralStorageStrategy over {describe_devices(self.devices)}, parameters on {kept}"


def _host_device(named: str | Device | None) -> Device:
    if named is None:
        try:
            return local_devices("cpu")[0]
        except RuntimeError as error:  # JAX raises it if there is no such platform
            raise BackendError(
                "there is no CPU device to keep parameters on",
                action="name the CPU too in JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu",
            ) from error
    (device,) = resolve_devices([named])
    if device.platform != "cpu":
        raise BackendError("the parameter device", received=name_of(device), allowed=["cpu:N"])
    return device
