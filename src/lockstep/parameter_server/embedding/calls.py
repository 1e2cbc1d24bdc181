"""Calls of compiled functions that look up rows which servers keep: the rows are read before each call."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.embedding.lookups import Lookups, Wanted, check_ids, pad_to_power_of_two
from lockstep.parameter_server.layout import ServedLayout
from lockstep.strategies import updates
from lockstep.strategies.loops.lifting import Lifted, current_scope


@final
@dataclass(frozen=True, kw_only=True)
class RowGradient:
    """The gradient of some rows of a table, in place of a gradient of the table's variable in an update.

    Attributes:
        ids: int64[rows], ascending.
        values: float32[rows or more, columns]. The rows after the first `len(ids)` are padding.
    """

    ids: np.ndarray[Any, Any]
    values: Any


@final
class RowCalls:
    """Calls functions that `lockstep.function` has compiled, as the `call_wrapper` of a layout.

    Belongs to one thread.

    Args:
        layout: the layout with the embeddings and the function that reads their rows.
    """

    def __init__(self, layout: ServedLayout) -> None:
        self._layout = layout
        self._known: WeakKeyDictionary[Lifted, _RowFunction] = WeakKeyDictionary()

    def __call__(self, function: Lifted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function whose lookups find the current rows.

        Where updates are deferred, an optimizer's update of rows is recorded with a `RowGradient`.

        Raises:
            InvalidInputError: an id is not in its table, or is not known before the call; or the function would update
                rows here, which only their servers can do.
        """
        layers = {layer.path: layer for layer in self._layout.embeddings}
        if not layers or self._layout.read_rows is None:
            return function.call(args, kwargs)
        known = self._known.get(function)
        if known is None or known.layers != layers:
            known = self._known[function] = _RowFunction(function, layers)
        return known.run(function, args, kwargs, read_rows=self._layout.read_rows)


@final
class _RowFunction:
    """A compiled function with the rows that it looks up as additional arguments.

    Args:
        function: the function. Only a weak reference to it is kept.
        layers: the embeddings in which it may look up rows, by path.
    """

    def __init__(self, function: Lifted, layers: Mapping[str, Any]) -> None:
        self.layers = layers
        self._function = weakref.ref(function)
        self._tables = {path: layer.embeddings for path, layer in layers.items()}
        self._paths = {id(table): path for path, table in self._tables.items()}
        self._name = str(getattr(function, "__name__", function))
        self._lookups = Lookups(self._tables, self._find_ids, compiling=self._compiling)
        self._with_rows = Lifted(self._call_with_rows, name=self._name)

    def run(
        self,
        function: Lifted,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        read_rows: Callable[[Mapping[str, np.ndarray[Any, Any]]], Mapping[str, np.ndarray[Any, Any]]],
    ) -> Any:
        """Runs the function; see `RowCalls`."""
        wanted = self._lookups.wanted(args, kwargs)
        if not wanted.indices:
            return function.call(args, kwargs)
        for path, ids in wanted.ids.items():
            check_ids(path, ids, num_rows=self.layers[path].input_dim)
        found = read_rows({path: ids for path, ids in wanted.ids.items() if len(ids)})
        rows = {
            path: pad_to_power_of_two(found[path] if path in found else np.zeros((0, table.shape[-1]), np.float32))
            for path, table in self._tables.items()
        }
        arguments = (rows, wanted.indices, args, kwargs)
        if not updates.is_deferring():
            return self._with_rows.call(arguments, {})
        with updates.deferred_updates() as noted:
            outputs = self._with_rows.call(arguments, {})
        for update in noted:
            updates.defer(replace(update, gradients=self._with_ids(update, wanted)))
        return outputs

    def _with_ids(self, update: updates.Update, wanted: Wanted) -> Sequence[Any]:
        paths = [self._paths.get(id(variable)) for variable in update.variables]
        return [
            gradient if path is None or gradient is None else RowGradient(ids=wanted.ids[path], values=gradient)
            for path, gradient in zip(paths, update.gradients, strict=True)
        ]

    def _compiling(self, look: Callable[..., Any]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        return Lifted(look, name=self._name, discards_state=True).prepare

    def _find_ids(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del value  # only rows are unknown
        self._call(args, kwargs)

    def _call_with_rows(
        self, rows: Mapping[str, Any], indices: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        scope = current_scope()
        assert scope is not None, "this is lifted code"
        with self._lookups.finding(indices, rows):
            for path, table in self._tables.items():
                scope.set(table, rows[path])
            outputs = self._call(args, kwargs)
        written = [path for path, table in self._tables.items() if id(table) in scope.written]
        if written:
            raise InvalidInputError(
                f"{self._name} changes rows of an embedding whose table lies on the parameter servers",
                received=written[0],
                allowed="an optimizer's apply, in a function that a worker runs: coordinator.schedule",
            )
        return outputs

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = self._function()
        assert function is not None, "it is being called"
        return function(*args, **kwargs)
