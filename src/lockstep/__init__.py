"""Lockstep: Keras 3 training with ``tf.distribute``'s strategies, on one device or a cluster, as managed jobs.

Importing this package selects Keras's JAX backend, but imports neither JAX nor Keras. The rooms below are imported on
first use, so the command line and the service start without JAX and Keras.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from lockstep.kept_memory import keep_memory_with_keras

if TYPE_CHECKING:
    from lockstep import checkpoints, client, data, errors, parameter_server, storage, strategies, topology, training
    from lockstep.client import Client, Job, Predictor
    from lockstep.heartbeat import report_progress
    from lockstep.strategies import (
        ReduceOp,
        compute_average_loss,
        function,
        get_replica_context,
        get_strategy,
        has_strategy,
        in_cross_replica_context,
        scale_regularization_loss,
        value_and_grad,
    )
    from lockstep.submission import report, submit, tune

    __version__: str

__all__ = [
    "Client",
    "Job",
    "Predictor",
    "ReduceOp",
    "__version__",
    "checkpoints",
    "client",
    "compute_average_loss",
    "data",
    "errors",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "parameter_server",
    "report",
    "report_progress",
    "scale_regularization_loss",
    "storage",
    "strategies",
    "submit",
    "topology",
    "training",
    "tune",
    "value_and_grad",
]

_ROOMS: Final = frozenset(
    {"checkpoints", "client", "data", "errors", "parameter_server", "storage", "strategies", "topology", "training"}
)
_OTHERS: Final = {
    "Client": "lockstep.client",
    "Job": "lockstep.client",
    "Predictor": "lockstep.client",
    "report_progress": "lockstep.heartbeat",
    "report": "lockstep.submission",
    "submit": "lockstep.submission",
    "tune": "lockstep.submission",
}
"""The modules of the names that are not of `lockstep.strategies`."""


def _select_backend() -> None:
    """Selects JAX as Keras's backend, unless ``KERAS_BACKEND`` is set already.

    A variable that names another backend stays as it is here, because the command line and the service import this
    package too and do not need Keras. The rooms that need Keras check again: `lockstep.strategies` rejects it.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")  # the variable takes precedence over ~/.keras/keras.json
    if "keras" in sys.modules:
        from lockstep.strategies.backend import require_jax_backend  # fast: Keras is imported already

        require_jax_backend()
    keep_memory_with_keras()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # imported on use, since it reads the installed package's files

        return version("lockstep-train")
    if name in _ROOMS:
        return importlib.import_module(f"lockstep.{name}")
    if name in _OTHERS:
        return getattr(importlib.import_module(_OTHERS[name]), name)
    if name in __all__:  # the names that custom training loops use most
        return getattr(importlib.import_module("lockstep.strategies"), name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


_select_backend()
