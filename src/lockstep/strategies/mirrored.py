"""The strategy that keeps a copy of the parameters on every device of this process."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, describe_devices, local_devices, resolve_devices
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import ReplicatedLayout
from lockstep.topology import Topology


@final
class MirroredStrategy(AbstractStrategy):
    """Keeps a copy of the parameters on every device of this process.

    Each step sums the gradients over the devices, and every copy receives the same update.

    Args:
        devices: devices or their names, such as ``["gpu:0", "gpu:1"]``. By default, all of this process's devices of
            the fastest kind.
        communication_options: the size of the buckets in which gradients of a custom loop are sent.

    Raises:
        BackendError: there is no such device.
        InvalidInputError: a name is not the name of a device, or it is given twice.
    """

    def __init__(
        self,
        devices: Iterable[str | Device] | None = None,
        *,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        prepare_backend()
        chosen = resolve_devices(devices) if devices is not None else local_devices()
        super().__init__(
            ReplicatedLayout(chosen, name=type(self).__name__),
            topology=Topology.from_env(),
            communication_options=communication_options,
        )

    def describe(self) -> str:
        """Names the devices."""
        return f"MirroredStrategy over {describe_devices(self.devices)}"
