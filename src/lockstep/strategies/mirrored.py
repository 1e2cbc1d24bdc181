"""A copy of the parameters on every device of this process."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
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
    """A copy on every device; gradients are summed over them in the step, and each copy gets the same update.

    Args:
        devices: devices or their names, such as ``["gpu:0", "gpu:1"]``; all of this process's devices of the fastest
            kind by default.
        communication_options: how large the buckets are in which gradients of a custom loop travel.

    Raises:
        BackendError: there is no such device.
        InvalidInputError: a name is not a device's, or given twice.
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
        """Says over which devices."""
        return f"MirroredStrategy over {describe_devices(self.devices)}"
