"""Where variables lie in one of the cluster's processes: whole on its devices, and noted as the servers' to keep."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import jax
import numpy as np

from lockstep.parameter_server.embedding.bits import check_bits
from lockstep.strategies.devices import Device
from lockstep.strategies.mesh import AbstractReplicatedLayout

RowReader: TypeAlias = Callable[[Mapping[str, np.ndarray[Any, Any]]], dict[str, np.ndarray[Any, Any]]]
"""Given int64[rows] of different ids, rising, by the paths of embeddings, returns float32[rows, columns] for each."""


@final
class ServedLayout(AbstractReplicatedLayout):
    """A copy of every variable on every device of this process.

    Args:
        devices: this process's.
        name: the strategy's name, for messages.

    Attributes:
        read_rows: how rows of embeddings are read as they are now; None where no table is at hand.
    """

    def __init__(self, devices: Sequence[Device], *, name: str) -> None:
        super().__init__(devices, name=name)
        self._variables: dict[int, weakref.ref[Any]] = {}
        self._embeddings: list[weakref.ref[Any]] = []
        self.read_rows: RowReader | None = None
        self.note_variable = self._note_variable

    @property
    def variables(self) -> list[Any]:
        """The variables that were made within the strategy's scope and are still there, in their order."""
        return [variable for reference in self._variables.values() if (variable := reference()) is not None]

    @property
    def embeddings(self) -> list[Any]:
        """The layers whose tables the servers keep, in their order."""
        return [layer for reference in self._embeddings if (layer := reference()) is not None]

    def note_table(self, layer: Any) -> None:
        """Notes a layer whose table the servers keep; batches with numbers that JAX would cut are refused then."""
        self._embeddings.append(weakref.ref(layer))
        self.check_array = check_bits

    def _note_variable(self, variable: Any) -> None:
        known = self._variables.get(id(variable))
        if known is None or known() is not variable:
            self._variables.pop(id(variable), None)  # a variable that is gone had this id
            self._variables[id(variable)] = weakref.ref(variable)

    def lend(self, values: Any) -> Any:
        """Returns the values on every device."""
        return jax.device_put(values, self.replicated)
