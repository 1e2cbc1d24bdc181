"""JAX's startup and shutdown: devices, the coordination of processes, collectives on CPUs.

Importing this module imports neither JAX nor Keras.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


def backend_started() -> bool:
    """Whether JAX has looked for its devices already. From then on, their number and XLA's options are fixed."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def num_tpu_chips() -> int:
    """Returns the number of TPU chips on this machine's PCI bus, without starting JAX."""
    from jax._src import hardware_utils

    return int(hardware_utils.num_available_tpu_chips_and_device_id()[0])


def knows_xla_option(name: str, value: str) -> bool:
    """Whether jaxlib knows an option of ``XLA_FLAGS`` and a value of it.

    Both names are searched in the binary of jaxlib's library, which takes 15 ms if it has them. XLA itself cannot be
    used for the check, because an unknown option ends the process.

    Args:
        name: the option, such as "--xla_cpu_experimental_ynn_fusion_type".
        value: a value of the option, such as "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION".
    """
    found = importlib.util.find_spec("jaxlib")
    folders = [] if found is None else found.submodule_search_locations or []
    whole_name = name.removeprefix("--").encode() + b"\0"  # not only the beginning of a longer name
    for path in itertools.chain.from_iterable(Path(folder).glob("libjax_common.*") for folder in folders):
        with path.open("rb") as library, mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(whole_name) >= 0 and content.find(value.encode()) >= 0:
                return True
    return False


_collectives_host = ""


def bind_cpu_collectives(host: str) -> None:
    """Makes XLA's collectives on CPUs listen at this address. It must be called before JAX starts.

    By default, gloo uses the address that the machine's name resolves to.
    """
    global _collectives_host
    _collectives_host = host
    replace(Stage.MEETING)


def wrap_make_collectives(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that makes gloo's collectives so that it passes the address of `bind_cpu_collectives`."""
    return functools.partial(make, hostname=_collectives_host)


def abandon_coordination() -> None:
    """Ends this process's part in JAX's coordination without its shutdown.

    The shutdown waits for all processes, and ends them if one of them has failed. The destructors of its parts do this
    too, so the parts are never deleted.
    """
    from jax._src import distributed

    state = distributed.global_state
    for part in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # so that it is never deleted
    state.client = state.service = state.preemption_sync_manager = None
