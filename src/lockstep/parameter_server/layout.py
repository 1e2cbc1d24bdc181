"""Where variables lie in one of the cluster's processes: whole on its devices, and noted as the servers' to keep."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import jax
import numpy as np
from jax.sharding import NamedSharding

from lockstep.strategies.devices import Device
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.runs import AbstractRuns

RowReader: TypeAlias = Callable[[Mapping[str, np.ndarray[Any, Any]]], dict[str, np.ndarray[Any, Any]]]
"""Given int64[rows] of different ids, rising, by the paths of embeddings, returns float32[rows, columns] for each."""


@final
class ServedLayout(AbstractLayout):
    """A copy of every variable on every device of this process.

    Args:
        devices: this process's.
        name: the strategy's name, for messages.
        runs: how ``fit`` is run.

    Attributes:
        read_rows: how rows of embeddings are read as they are now; None where no table is at hand.
    """

    def __init__(self, devices: Sequence[Device], *, name: str, runs: AbstractRuns) -> None:
        super().__init__(devices, name=name, runs=runs)
        self._variables: dict[int, weakref.ref[Any]] = {}
        self._embeddings: list[weakref.ref[Any]] = []
        self.read_rows: RowReader | None = None

    @property
    def variables(self) -> list[Any]:
        """The variables that were made within the strategy's scope and are still there, in their order."""
        return [variable for reference in self._variables.values() if (variable := reference()) is not None]

    @property
    def embeddings(self) -> list[Any]:
        """The layers whose tables the servers keep, in their order."""
        return [layer for reference in self._embeddings if (layer := reference()) is not None]

    def note_table(self, layer: Any) -> None:
        """Notes a layer whose table the servers keep."""
        self._embeddings.append(weakref.ref(layer))

    def get_variable_layout(self, variable: Any) -> Any:
        """Notes a variable, and returns the layout of a copy on every device, or its own where it was given one."""
        known = self._variables.get(id(variable))
        if known is None or known() is not variable:
            self._variables.pop(id(variable), None)  # of one that is gone: it had its place
            self._variables[id(variable)] = weakref.ref(variable)
        own = getattr(variable, "_layout", None)
        return own if own is not None else self.replicated

    def get_tensor_layout(self, path: str) -> None:
        """Leaves every layer's output to the compiler."""
        del path

    @property
    def state_devices(self) -> tuple[Device, ...]:
        """The devices that compute."""
        return self.devices

    def state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of a copy on every device."""
        del shape
        return self.replicated

    @property
    def updates_on_host(self) -> bool:
        """No: what is updated here is this process's own copy."""
        return False

    def lend(self, values: Any) -> Any:
        """Returns the values on every device."""
        return jax.device_put(values, self.replicated)

    def store(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values
