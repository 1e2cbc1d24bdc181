"""Finds devices: this process's, those of all processes of a job, by names such as ``gpu:0``, and virtual ones."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

from lockstep.errors import BackendError, InvalidInputError
from lockstep.strategies.peers.watchdog import current_watchdog
from lockstep.topology import virtual_devices_env
from lockstep.upstream.jax_processes import backend_started

Device: TypeAlias = Any
"""A JAX device. It is ``Any`` because jaxlib's stubs do not name the class."""

PLATFORM_NAMES: Final = ("cpu", "gpu", "tpu")


def simulate_devices(num_devices: int) -> None:
    """Gives this process virtual CPU devices that stand in for accelerators.

    Virtual devices run the same programs as accelerators, including collectives, on the machine's cores. They suit
    tests and trials, and are no faster than the cores. The job service does the same with environment variables, before
    a program starts.

    Args:
        num_devices: the number of virtual devices.

    Raises:
        InvalidInputError: the number is not positive.
        BackendError: JAX has started already, with another number of devices or another kind.
    """
    if num_devices < 1:
        raise InvalidInputError("the number of virtual devices", received=num_devices, allowed="1 or more")
    if backend_started():
        import jax  # costs nothing: JAX has started, so it is imported already

        if jax.default_backend() == "cpu" and jax.local_device_count() == num_devices:
            return
        raise BackendError(
            f"cannot make {num_devices} virtual devices: JAX has started",
            received=f"{jax.local_device_count()} {jax.default_backend()} devices",
            action="call simulate_devices before the first computation, or set JAX_NUM_CPU_DEVICES and NPROC "
            "before the program starts",
        )
    os.environ.update(virtual_devices_env(num_devices))
    if "jax" in sys.modules:
        import jax

        # JAX reads its variables when it is imported. XLA reads NPROC only when it starts.
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", num_devices)


def resolve_devices(names: Iterable[str | Device]) -> tuple[Device, ...]:
    """Resolves names to this process's devices.

    Args:
        names: devices, or names of the form ``gpu:0``, ``GPU:0``, ``/gpu:0`` or ``gpu`` (the first one). The number is
            the position among this process's devices of that kind.

    Raises:
        InvalidInputError: there is no name, or a name does not have that form, or a device is given twice.
        BackendError: there is no such device.
    """
    found = tuple(name if not isinstance(name, str) else _resolve(name) for name in names)
    if not found:
        raise InvalidInputError("no device is given", allowed="one or more")
    if len(set(found)) < len(found):
        raise InvalidInputError("a device is given twice", received=[name_of(device) for device in found])
    return found


def _resolve(name: str) -> Device:
    platform, _, index = name.lower().removeprefix("/").removeprefix("device:").partition(":")
    if platform not in PLATFORM_NAMES or not (index.isdigit() or index == ""):
        raise InvalidInputError("a device's name", received=name, allowed=[f"{kind}:N" for kind in PLATFORM_NAMES])
    try:
        devices = local_devices(platform)
    except RuntimeError:  # JAX raises it if there is no such platform
        devices = ()
    position = int(index or 0)
    if position >= len(devices):
        there = [f"{device.platform}:{place}" for place, device in enumerate(devices or local_devices())]
        raise BackendError("there is no such device", received=name, allowed=there)
    return devices[position]


def local_devices(platform: str | None = None) -> tuple[Device, ...]:
    """Returns this process's devices. This starts JAX.

    Args:
        platform: "cpu", "gpu" or "tpu". By default, the fastest kind that the process has.

    Raises:
        RuntimeError: there is no such platform.
    """
    import jax  # slow to import

    return tuple(cast("list[Any]", jax.local_devices(backend=platform)))


def devices_of_job() -> tuple[Device, ...]:
    """Returns the devices of all processes, in the order of the processes. The processes must have met.

    Raises:
        BackendError: the processes have different numbers of devices, which JAX's collectives do not support.
    """
    import jax  # only after the processes have met

    found = sorted(cast("list[Any]", jax.devices()), key=lambda device: (device.process_index, device.id))
    counts = Counter(device.process_index for device in found)
    if len(set(counts.values())) > 1:
        watchdog = current_watchdog()
        if watchdog is not None:
            watchdog.compare("devices_of_job", [])  # waits for all processes: whoever raised first would look lost
        raise BackendError(
            "the processes of a job have different numbers of devices",
            received=list(counts.values()),
            allowed="as many in each process",
            action="give each process as many, with CUDA_VISIBLE_DEVICES or JAX_NUM_CPU_DEVICES",
        )
    return tuple(found)


def name_of(device: Device) -> str:
    """Returns a device's name: its kind and its number in the whole job, such as ``gpu:0``."""
    return f"{device.platform}:{device.id}"


def describe_devices(devices: Sequence[Device]) -> str:
    """Describes devices in words: "2 x cpu", "8 x NVIDIA H100 80GB HBM3".

    Args:
        devices: one or more devices.
    """
    kinds: dict[str, int] = {}
    for device in devices:
        kind = device.platform if device.platform == "cpu" else device.device_kind
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
