"""The strategy of one device. Other strategies are compared with it."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import final

from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, local_devices, name_of, resolve_devices
from lockstep.strategies.mesh import ReplicatedLayout
from lockstep.topology import Topology


@final
class OneDeviceStrategy(AbstractStrategy):
    """Places everything on one device of this process.

    Args:
        device: a device, or its name, such as ``gpu:0``. By default, the first device of the fastest kind.

    Raises:
        BackendError: there is no such device.
        InvalidInputError: the name is not the name of a device.
    """

    def __init__(self, device: str | Device | None = None) -> None:
        prepare_backend()
        devices = resolve_devices([device]) if device is not None else local_devices()[:1]
        super().__init__(ReplicatedLayout(devices, name=type(self).__name__), topology=Topology.from_env())

    def describe(self) -> str:
        """Names the device."""
        return f"OneDeviceStrategy on {name_of(self.devices[0])}"
