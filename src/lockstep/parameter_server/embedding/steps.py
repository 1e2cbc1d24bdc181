"""Steps of ``evaluate`` and ``predict`` in a process without the tables: the rows of each batch are read first."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from lockstep.errors import LockstepError
from lockstep.parameter_server.embedding.lookups import Lookups, check_ids, pad_to_power_of_two
from lockstep.parameter_server.layout import RowReader
from lockstep.upstream.keras_trainer import restore_variables


@final
class RowStep:
    """Runs the ``test_step`` or ``predict_step`` of a model.

    Args:
        model: the model, built.
        layers: its embeddings whose tables are kept elsewhere.
        kind: "test" or "predict".
        read_rows: a function that takes ascending ids by embedding path, and returns their rows.
    """

    def __init__(
        self,
        model: Any,
        layers: Sequence[Any],
        *,
        kind: str,
        read_rows: RowReader,
    ) -> None:
        self._step: Callable[..., Any] = model.test_step if kind == "test" else model.predict_step
        self._model = model
        self._layers = {layer.path: layer for layer in layers}
        self._read_rows = read_rows
        kinds = (model.trainable_variables, model.non_trainable_variables)  # the second has the tables of frozen layers
        indices = {id(variable): (kind, index) for kind, own in enumerate(kinds) for index, variable in enumerate(own)}
        self._indices = {path: indices[id(layer.embeddings)] for path, layer in self._layers.items()}
        self._lookups = Lookups({path: layer.embeddings for path, layer in self._layers.items()}, self._find_ids)
        self._compute: Any = jax.jit(self._trace) if model.jit_compile and not model.run_eagerly else self._trace

    def run(self, state: Any, data: Any) -> Any:
        """Runs a step with the interface of Keras's trainer: returns the outputs and the new state.

        Raises:
            InvalidInputError: an id is not in its table, or is not known before the step.
            UnavailableError: a server that has rows of the batch is lost.
        """
        try:
            return self._run(state, data)
        except LockstepError:  # a caller that catches it may continue to use the model
            restore_variables(self._model, state)
            raise

    def _run(self, state: Any, data: Any) -> Any:
        before = [list(own) for own in state]
        wanted = self._lookups.wanted(before, data)
        for path, ids in wanted.ids.items():
            check_ids(path, ids, num_rows=self._layers[path].input_dim)
        rows = {path: pad_to_power_of_two(own) for path, own in self._read_rows(wanted.ids).items()}
        outputs, new = self._compute(before, data, rows, wanted.indices)
        return outputs, (state[0], *new)

    def _find_ids(self, value: Any, state: list[list[Any]], data: Any) -> None:
        del value  # only rows are unknown
        rows = {path: jnp.zeros(layer.embeddings.shape, jnp.float32) for path, layer in self._layers.items()}
        self._call(state, data, rows)

    def _trace(self, state: list[list[Any]], data: Any, rows: dict[str, Any], indices: list[Any]) -> Any:
        with self._lookups.finding(indices, rows):
            return self._call(state, data, rows)

    def _call(self, state: list[list[Any]], data: Any, rows: dict[str, Any]) -> Any:
        given = [list(own) for own in state]
        for path, (kind, index) in self._indices.items():
            given[kind][index] = rows[path]
        outputs, new = self._step(tuple(given), data)
        # Evaluation returns the whole state, prediction only what is not trained.
        new = [list(own) for own in (new[1:] if len(state) > 2 else (new,))]
        for kind, index in self._indices.values():
            if kind:  # the variable that stands for a table does not change
                new[0][index] = state[kind][index]
        return outputs, new
