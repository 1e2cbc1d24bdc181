"""One copy of the parameters in host memory, updated there, while other devices compute the steps."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
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
    """Every variable on one device of the host, and batches over the devices that compute.

    Args:
        devices: the devices that compute.
        name: the strategy's name, for messages.
        parameter_device: the device in whose memory variables are kept.
    """

    def __init__(self, devices: Sequence[Device], *, name: str, parameter_device: Device) -> None:
        super().__init__(devices, name=name)
        self._parameter_device = parameter_device
        self._home = NamedSharding(Mesh(np.array([parameter_device]), ("host",)), PartitionSpec())

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the layout of one copy in host memory, or the variable's own where it was given one."""
        own = getattr(variable, "_layout", None)
        return own if own is not None else self._home

    def get_tensor_layout(self, path: str) -> None:
        """Leaves every layer's output to the compiler."""
        del path

    @property
    def state_devices(self) -> tuple[Device, ...]:
        """The one device on which variables lie."""
        return (self._parameter_device,)

    def state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of one copy in host memory."""
        del shape
        return self._home

    @property
    def updates_on_host(self) -> bool:
        """Yes."""
        return True

    def lend(self, values: Any) -> Any:
        """Returns a copy of each value on every device that computes."""
        return jax.device_put(values, self.replicated)

    def store(self, values: Any) -> Any:
        """Returns one copy of each value in host memory."""
        return jax.tree.map(self._store, values)

    def _store(self, value: Any) -> Any:
        if isinstance(value, jax.Array) and value.is_fully_replicated:
            value = value.addressable_data(0)  # one device's copy travels, not each
        return jax.device_put(value, self._home)


@final
class CentralStorageStrategy(AbstractStrategy):
    """Parameters and the optimizer's state in host memory, one copy of each; updated once a step, by the host.

    For each step the parameters are lent to the devices that compute, which divide the batch; the sum of their
    gradients goes back to the host. Between steps no device but the parameters' own holds any of them. It suits models
    whose optimizer's state is too large for a device, and costs two transfers of the parameters' size a step.

    Only scalars of the optimizer's state are lent: a custom ``train_step`` that reads more of it finds NaN. It may
    apply several optimizers, each once.

    Args:
        compute_devices: devices or their names; this process's accelerators by default, or its CPU devices where it
            has none.
        parameter_device: a CPU device, or its name; the first of this process by default. Other than the
            computing ones, unless CPU devices compute.

    Raises:
        BackendError: there is no such device, or JAX was told to leave the CPU out.
        InvalidInputError: a name is not a device's.
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
        """Says which devices compute, and where parameters are kept."""
        kept = name_of(self._parameter_device)
        return f"CentralStorageStrategy over {describe_devices(self.devices)}, parameters on {kept}"


def _host_device(named: str | Device | None) -> Device:
    if named is None:
        try:
            return local_devices("cpu")[0]
        except RuntimeError as error:  # JAX's way to say that there is no such platform
            raise BackendError(
                "there is no CPU device to keep parameters on",
                action="name the CPU too in JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu",
            ) from error
    (device,) = resolve_devices([named])
    if device.platform != "cpu":
        raise BackendError("the parameter device", received=name_of(device), allowed=["cpu:N"])
    return device
