"""The layout of variables in one process of the cluster: whole on each of its devices, and recorded for the servers."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
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
"""Takes int64[rows] of distinct ascending ids by embedding path, and returns float32[rows, columns] for each path."""


@final
class ServedLayout(AbstractReplicatedLayout):
    """A copy of every variable on every device of this process.

    Args:
        devices: the devices of this process.
        name: the name of the strategy, for messages.

    Attributes:
        read_rows: the function that reads the current rows of embeddings; None if no table is available.
    """

    def __init__(self, devices: Sequence[Device], *, name: str) -> None:
        super().__init__(devices, name=name)
        self._variables: dict[int, weakref.ref[Any]] = {}
        self._embeddings: list[weakref.ref[Any]] = []
        self.read_rows: RowReader | None = None
        self.on_variable = self._note_variable

    @property
    def variables(self) -> list[Any]:
        """The living variables that were created within the strategy's scope, in order of creation."""
        return [variable for reference in self._variables.values() if (variable := reference()) is not None]

    @property
    def embeddings(self) -> list[Any]:
        """The living layers whose tables the servers keep, in order of creation."""
        return [layer for reference in self._embeddings if (layer := reference()) is not None]

    def note_table(self, layer: Any) -> None:
        """Records a layer whose table the servers keep.

        From then on, batches with integers that JAX would truncate are rejected.
        """
        self._embeddings.append(weakref.ref(layer))
        self.validate_array = check_bits

    def _note_variable(self, variable: Any) -> None:
        known = self._variables.get(id(variable))
        if known is None or known() is not variable:
            self._variables.pop(id(variable), None)  # this id may have belonged to a variable that no longer exists
            self._variables[id(variable)] = weakref.ref(variable)

    def to_compute_devices(self, values: Any) -> Any:
        """Copies the values to every device."""
        return jax.device_put(values, self.replicated)
