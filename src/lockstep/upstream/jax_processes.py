"""How JAX has started, and how it ends: devices, the coordination of processes, collectives on CPUs.

Importing this module imports neither JAX nor Keras.
"""

# JAX is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


def backend_started() -> bool:
    """Whether JAX has looked for its devices already, after which their number and XLA's options are fixed."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def num_tpu_chips() -> int:
    """Returns how many TPU chips this machine's PCI bus shows; it starts nothing."""
    from jax._src import hardware_utils

    return int(hardware_utils.num_available_tpu_chips_and_device_id()[0])


_collectives_host = ""


def bind_cpu_collectives(host: str) -> None:
    """Has XLA's collectives on CPUs listen at this address, when JAX starts and makes them.

    Left to itself, gloo takes the address that the machine's name resolves to.
    """
    global _collectives_host
    _collectives_host = host
    replace(Stage.MEETING)


def listening_at_host(make: Callable[..., Any]) -> Callable[..., Any]:
    """Has what makes gloo's collectives give them the address of `bind_cpu_collectives`."""
    return functools.partial(make, hostname=_collectives_host)


def abandon_coordination() -> None:
    """Ends this process's part in JAX's coordination without its shutdown.

    The shutdown waits for all processes, and brings them down where one has failed; so do the destructors of its parts.
    """
    from jax._src import distributed

    state = distributed.global_state
    for part in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # never deleted
    state.client = state.service = state.preemption_sync_manager = None
