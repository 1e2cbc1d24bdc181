"""Rematerialisation of layers with state: what ``keras.RematScope`` does, for layers that draw or keep statistics too.

Keras passes a layer's ``call`` to `jax.checkpoint`, which traces every argument and forbids side effects. So on JAX, a
layer with an argument ``training`` fails there (dropout, batch normalisation, recurrent layers), up to Keras 3.15, and
one that assigns a variable leaks the tracer of its new value. Here, the call becomes a pure function first: arguments
that are no arrays stay as they are, variables' values are arguments, and their new values are results.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import jax
import keras
import numpy as np

from lockstep.strategies.loops.lifting import LiftedScope
from lockstep.strategies.uniform import uniform_writes, writes_are_uniform
from lockstep.upstream.keras_layers import get_keras_mask, note_loss, set_keras_mask
from lockstep.upstream.keras_scopes import enclosing_scope, in_symbolic_scope, stateless_scope


def wrap_remat(remat: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras's rematerialisation so that it takes layers with state."""

    @functools.wraps(remat)
    def wrapper(f: Callable[..., Any], *options: Any, **named_options: Any) -> Callable[..., Any]:
        def make(pure: Callable[..., Any]) -> Callable[..., Any]:
            return remat(pure, *options, **named_options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            scope = stateless_scope()
            if scope is None or in_symbolic_scope():  # nothing is differentiated, and layers may create variables
                return f(*args, **kwargs)
            return _Call(f, args, kwargs, scope=scope).run(make)

        return call

    return wrapper


@final
class _Call:
    """One call of a layer, as a pure function of the arrays that it uses.

    Args:
        f: the layer's ``call``, or another function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        scope: the scope that has the values of variables.
    """

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, scope: Any) -> None:
        self._f = f
        self._scope = scope
        self._leaves, self._structure = jax.tree.flatten((args, kwargs))
        self._is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in self._leaves]
        owner = getattr(inspect.unwrap(f), "__self__", f)
        self._layer = owner if isinstance(owner, keras.Layer) else None
        self._variables: list[Any] = []
        self._written: list[tuple[Any, bool]] = []
        self._losses: list[Any] = []

    def run(self, remat: Callable[..., Any]) -> Any:
        """Calls the layer, stores what it assigned in the scope around it, and returns its outputs."""
        arrays = [leaf for leaf, is_array in zip(self._leaves, self._is_array, strict=True) if is_array]
        known = [] if self._layer is None else [(one, _value_in(self._scope, one)) for one in self._layer.variables]
        self._variables = [variable for variable, value in known if value is not None]
        values = [value for _, value in known if value is not None]
        outputs, masks, written, losses = remat(self._pure)(arrays, [get_keras_mask(one) for one in arrays], values)
        for (variable, is_uniform), value in zip(self._written, written, strict=True):
            with uniform_writes() if is_uniform else nullcontext():
                variable.assign(value)
        for own, loss in zip(self._losses, losses, strict=True):
            self._scope.add_loss(loss)
            if self._layer is not None:
                note_loss(self._layer, loss, replaces=own)
        _set_masks(jax.tree.leaves(outputs), masks)
        return outputs

    def _pure(self, arrays: list[Any], masks: list[Any], values: list[Any]) -> tuple[Any, list[Any], list[Any], Any]:
        _set_masks(arrays, masks)
        given = iter(arrays)
        leaves = [
            next(given) if is_array else leaf for leaf, is_array in zip(self._leaves, self._is_array, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
        with _Scope(self._scope) as scope:
            for variable, value in zip(self._variables, values, strict=True):
                scope.state_mapping[id(variable)] = value
            outputs = self._f(*args, **kwargs)
        self._written = [(variable, is_uniform) for variable, is_uniform in scope.written.values()]
        self._losses = list(scope.losses)
        new_values = [scope.state_mapping[id(variable)] for variable, _ in self._written]
        return outputs, [get_keras_mask(one) for one in jax.tree.leaves(outputs)], new_values, self._losses


@final
class _Scope(keras.StatelessScope):
    """A scope within another one, that keeps what is assigned within it to itself.

    Args:
        outer: the scope around it.
    """

    def __init__(self, outer: Any) -> None:
        super().__init__(collect_losses=outer.collect_losses, initialize_variables=outer.initialize_variables)
        self._outer = outer
        self.written: dict[int, tuple[Any, bool]] = {}

    def get_current_value(self, variable: Any) -> Any:
        """Returns a variable's value in this scope or in those around it; None if none of them has one."""
        value = self.state_mapping.get(id(variable))
        return value if value is not None else _value_in(self._outer, variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Records a variable's new value."""
        variable, value = update
        _, was_uniform = self.written.get(id(variable), (variable, True))
        self.written[id(variable)] = variable, was_uniform and writes_are_uniform()
        self.state_mapping[id(variable)] = value


def _value_in(scope: Any, variable: Any) -> Any:
    """Returns a variable's value in a scope or in those around it; None if none of them has one."""
    while scope is not None:
        if isinstance(scope, LiftedScope | _Scope):  # these look into the scopes around them
            return scope.get_current_value(variable)
        value = scope.state_mapping.get(id(variable))
        if value is not None:
            return value
        scope = enclosing_scope(scope)
    return None


def _set_masks(arrays: list[Any], masks: list[Any]) -> None:
    for array, mask in zip(arrays, masks, strict=True):
        if mask is not None:
            set_keras_mask(array, mask)
