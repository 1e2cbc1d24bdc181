"""How JAX has started, and how it ends: devices, the coordination of processes, collectives on CPUs.

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
    """Whether JAX has looked for its devices already, after which their number and XLA's options are fixed."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def num_tpu_chips() -> int:
    """Returns how many TPU chips this machine's PCI bus shows; it starts nothing."""
    from jax._src import hardware_utils

    return int(hardware_utils.num_available_tpu_chips_and_device_id()[0])


def knows_xla_option(name: str, value: str) -> bool:
    """Whether jaxlib has an option of ``XLA_FLAGS`` and a value of it. XLA is not asked: it would end the process.

    Both names are looked for in jaxlib's library: 15 ms where it has them.

    Args:
        name: the option, as in "--xla_cpu_experimental_ynn_fusion_type".
        value: a word that the option takes, as in "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT".
    """
    found = importlib.util.find_spec("jaxlib")
    folders = [] if found is None else found.submodule_search_locations or []
    whole_name = name.removeprefix("--").encode() + b"\0"  # not the beginning of a longer one
    for path in itertools.chain.from_iterable(Path(folder).glob("libjax_common.*") for folder in folders):
        with path.open("rb") as library, mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(whole_name) >= 0 and content.find(value.encode()) >= 0:
                return True
    return False


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
