"""Compiles stateful Keras code as one program, with its variables as inputs and outputs (a lifted function).

Keras's variables are objects that code reads and assigns. `function` runs such code under a `keras.StatelessScope` that
records which variables the code reads and writes. It compiles the code with these variables as arguments and results,
and stores the results in the variables after each call. The old buffers are donated, and no value is copied to the host
between steps.

The first call with arguments of new shapes traces the code at least twice: first abstractly, until every variable that
the code uses is known and created (an optimizer creates its own when it is first applied), then to compile it. So
Python side effects, such as a `print`, only happen during tracing, as in ``tf.function``.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, final
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.strategies import assigning, host_updates, programs, updates
from lockstep.strategies.loops.call_arguments import CallArguments, split_arguments
from lockstep.strategies.loops.in_flight import run_in_turn
from lockstep.strategies.loops.replica import PerReplica
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.peers.agreement import agree_on_variables
from lockstep.strategies.uniform import writes_are_uniform
from lockstep.upstream.keras_scopes import (
    enclosing_scope,
    has_uninitialized_variables,
    in_stateless_scope,
    initialize_all_variables,
    stateless_scope,
)
from lockstep.upstream.keras_variables import set_stored_value, stored_dtype
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

logger = logging.getLogger(__name__)

MAX_PASSES: Final = 10
"""The maximum number of abstract passes until every variable is known. Each pass must find a new variable."""

RETRACES_WORTH_A_WARNING: Final = 8

_by_name: WeakValueDictionary[str, Lifted] = WeakValueDictionary()


@final
class LiftedScope(keras.StatelessScope):
    """A stateless scope that records which variables are read and written within it.

    Args:
        parent: the scope that supplies the values of variables that have no value in this scope.
        entering: a function that changes a variable's value when it comes from the parent. By default, the value is
            used unchanged.
        writing: a function that changes the value that is assigned to a variable. By default, the value is assigned
            unchanged.
        is_abstract: whether a variable without a value in the scopes reads as zeros. Then only its shape matters, and
            its own value does not become a constant of a program.
    """

    def __init__(
        self,
        parent: LiftedScope | None = None,
        *,
        entering: Callable[[Any, Any], Any] | None = None,
        writing: Callable[[Any, Any], Any] | None = None,
        is_abstract: bool = False,
    ) -> None:
        super().__init__(initialize_variables=False, collect_losses=True)
        self.parent = parent
        self._entering = entering
        self._writing = writing
        self._is_abstract = is_abstract
        self._variables: dict[int, Any] = {}
        self.written: dict[int, Any] = {}
        self.unknown: dict[int, Any] = {}
        self.layouts: list[AbstractLayout] = []
        self.deferred: list[updates.Update] = []
        self._differing: set[int] = set()

    @property
    def root(self) -> LiftedScope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.root

    def set(self, variable: Any, value: Any) -> None:
        """Sets a variable's value without recording it as written."""
        self._variables[id(variable)] = variable
        self.state_mapping[id(variable)] = value

    @property
    def visible(self) -> list[tuple[Any, Any]]:
        """The variables that have a value in this scope or in an outer one, each with its value."""
        found = (
            {} if self.parent is None else {id(variable): (variable, value) for variable, value in self.parent.visible}
        )
        found.update({key: (variable, self.state_mapping[key]) for key, variable in self._variables.items()})
        return list(found.values())

    def get_current_value(self, variable: Any) -> Any:
        """Returns a variable's value in this scope.

        A variable without a value is recorded as unknown. Keras uses the variable's own value if this returns None.
        """
        updates.check_up_to_date(variable, self.root.deferred)
        value = self.state_mapping.get(id(variable))
        if value is not None:
            return value
        if self.parent is not None:
            value = self.parent.get_current_value(variable)
            if value is not None and self._entering is not None:
                value = self._entering(variable, value)
                self.set(variable, value)
            return value
        self.unknown[id(variable)] = variable
        return jnp.zeros(variable.shape, stored_dtype(variable)) if self._is_abstract else None

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Records a variable's new value."""
        variable, value = update
        updates.check_up_to_date(variable, self.root.deferred)
        if self.parent is None and id(variable) not in self.state_mapping:
            self.unknown[id(variable)] = variable
        self.set(variable, value if self._writing is None else self._writing(variable, value))
        self.written[id(variable)] = variable
        if not writes_are_uniform():
            self._differing.add(id(variable))

    def may_differ(self, variable: Any) -> bool:
        """Whether a variable was written by code that may write different values on different replicas."""
        return id(variable) in self._differing


def wrap_get_current_value(get_current_value: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Keras's own scopes within lifted code look up missing values in the enclosing lifted scope.

    Otherwise, Keras would use the variable's own value, which would become a constant of the program.
    """

    @functools.wraps(get_current_value)
    def wrapper(self: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        value = get_current_value(self, variable, *args, **kwargs)
        if value is None and stateless_scope() is self:
            return _value_around(self, variable)
        return value

    return wrapper


def _value_around(scope: Any, variable: Any) -> Any:
    """Returns a variable's value in the scopes around one of Keras's; None if none of them is a lifted scope."""
    value, outer = None, enclosing_scope(scope)
    while outer is not None and not isinstance(outer, LiftedScope):
        value = outer.state_mapping.get(id(variable)) if value is None else value
        outer = enclosing_scope(outer)
    if outer is None:
        return None
    return outer.get_current_value(variable) if value is None else value


def current_scope() -> LiftedScope | None:
    """Returns the scope of the lifted code that is running; None if there is none."""
    scope = stateless_scope()
    return scope if isinstance(scope, LiftedScope) else None


def function(step: Callable[..., Any] | None = None) -> Any:
    """Compiles stateful Keras code, as ``tf.function`` does. Variables, optimizers and metrics are its state.

    Arrays among the arguments may have different values in each call. Every other argument (a Python number, a string,
    a model) is a constant. The function is compiled again for each new constant, as for new shapes. A lifted function
    that is called by another one becomes part of it. Keep loops over a data set outside, and pass the batch.

    Args:
        step: a function or a method; None if the decorator is written with parentheses.

    Returns:
        The compiled function. It returns a pytree of arrays.

    Raises:
        InvalidInputError: on a call, an argument is neither an array nor hashable, or variables are on other devices
            than the strategy's.
    """
    return _decorated if step is None else _decorated(step)


def _decorated(step: Callable[..., Any]) -> Lifted:
    lifted = Lifted(step)
    module, name = getattr(step, "__module__", None), getattr(step, "__qualname__", None)
    if module and name:
        _by_name[f"{module}:{name}"] = lifted
    return lifted


def functions_by_name() -> dict[str, Lifted]:
    """Returns the lifted functions that `function` has created and that still exist, by "module:qualified name".

    If several have the same name (such as an inner function of a function that was called twice), the last one counts.
    """
    return dict(_by_name)


@final
class Lifted:
    """A function whose Keras state has become arguments and results. `function` creates it.

    Args:
        step: the stateful code.
        name: the name in messages. By default, the function's own name.
        discards_state: whether to discard the function's changes of variables and its updates by optimizers, so that
            only its result remains.
    """

    def __init__(self, step: Callable[..., Any], *, name: str | None = None, discards_state: bool = False) -> None:
        functools.update_wrapper(self, step)
        self._step = step
        self._discards_state = discards_state
        self._name = name or str(getattr(step, "__name__", repr(step)))
        self._programs: dict[Hashable, _Program] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled code, and assigns the new values to the variables before it returns."""
        if in_stateless_scope():  # of a lifted function or of Keras, where variables are values already
            return self._step(*args, **kwargs)
        layout = keras.distribution.distribution()
        wrapper = layout.call_wrapper if isinstance(layout, AbstractLayout) else None
        return self.call(args, kwargs) if wrapper is None else wrapper(self, args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the compiled code, without the layout's wrapper of calls (`AbstractLayout.call_wrapper`)."""
        arguments = split_arguments(args, kwargs, name=self._name)
        return self.program_for(arguments)(arguments.arrays)

    def discover(self, *args: Any, **kwargs: Any) -> None:
        """Traces the code for these arguments, and creates the variables that it creates. The code does not run."""
        self.program_for(split_arguments(args, kwargs, name=self._name))

    def prepare(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """Returns the function from `jax.jit` that a call would run, and its arguments.

        If `discards_state` is set, the returned function returns the results of this function and two empty lists.
        """
        arguments = split_arguments(args, kwargs, name=self._name)
        return self.program_for(arguments).prepare(arguments.arrays)

    def program_for(self, arguments: CallArguments) -> _Program:
        """Returns the program for arguments of these shapes and constants. A new program is traced first."""
        current = keras.distribution.distribution()
        # The distribution itself, because its id could be reused by a later one.
        key = (arguments.key, current, updates.is_deferring())
        program = self._programs.get(key)
        if program is None:
            program = _Program(
                step=self._step, name=self._name, arguments=arguments, discards_state=self._discards_state
            )
            program.discover()
            self._programs[key] = program
            if len(self._programs) == RETRACES_WORTH_A_WARNING:
                logger.warning(
                    "%s was compiled %d times: each new shape and each new constant argument compiles it anew; "
                    "pass numbers that change as arrays",
                    self._name,
                    len(self._programs),
                )
        return program

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Returns the lowered program for these arguments, for inspection. The program is not compiled or run."""
        arguments = split_arguments(args, kwargs, name=self._name)
        return self.program_for(arguments).lower(arguments.arrays)


@final
@dataclass(kw_only=True)
class _Program:
    """Lifted code for arguments of one form: the variables that it uses, and the compiled function of their values."""

    step: Callable[..., Any]
    name: str
    arguments: CallArguments
    discards_state: bool = False
    layout: AbstractLayout | None = None
    _variables: dict[int, Any] = field(default_factory=dict[int, Any])
    _written: list[Any] = field(default_factory=list[Any])
    _kept: list[Any] = field(default_factory=list[Any])
    _deferred: list[updates.Update] = field(default_factory=list[updates.Update])
    _compiled: Any = None

    def discover(self) -> None:
        """Finds the variables that the code uses, by abstract passes, and creates those that the code creates."""
        replace(Stage.STRATEGY)
        for _ in range(MAX_PASSES):
            scope = self._pass_abstractly()
            new = {key: variable for key, variable in scope.unknown.items() if key not in self._variables}
            made = has_uninitialized_variables()
            self._note_layouts(scope.layouts)
            if made:
                with ExitStack() as stack:
                    if self.layout is not None:
                        stack.enter_context(self.layout.scope())
                    initialize_all_variables()
            self._variables.update(new)
            if not new and not made:
                self._written = [] if self.discards_state else list(scope.written.values())
                self.arguments = dataclasses.replace(self.arguments, arrays=[])  # else the batch would stay in memory
                written = set(map(id, self._written))
                self._kept = [variable for key, variable in self._variables.items() if key not in written]
                self._check_devices()
                if self.layout is not None:
                    agree_on_variables(self._variables.values(), self.name)
                return
        raise InvalidInputError(
            f"{self.name} uses different variables each time it is traced",
            allowed="code that makes its variables once",
            action="make models, optimizers and metrics before, or on the first call alone",
        )

    def _note_layouts(self, layouts: list[AbstractLayout]) -> None:
        self.layout = layouts[0] if layouts else self.layout
        if any(layout is not self.layout for layout in layouts):
            raise InvalidInputError(
                f"{self.name} uses more than one strategy",
                received=list(dict.fromkeys(layout.name for layout in layouts)),
                allowed="one in a compiled function",
                action="write a function for each",
            )

    def _pass_abstractly(self) -> LiftedScope:
        scopes: list[LiftedScope] = []
        variables = list(self._variables.values())

        def trace(values: list[Any], arrays: list[Any]) -> Any:
            with LiftedScope(is_abstract=True) as scope:
                scopes.append(scope)
                for variable, value in zip(variables, values, strict=True):
                    scope.set(variable, value)
                return self._run(scope, arrays)

        jax.eval_shape(trace, [variable.value for variable in variables], self.arguments.arrays)
        return scopes[0]

    def _run(self, scope: LiftedScope, arrays: list[Any]) -> Any:
        args, kwargs = self.arguments.rebuild(arrays)
        with updates.deferred_updates(scope.deferred) if updates.is_deferring() else nullcontext():
            return _checked_outputs(self.step(*args, **kwargs), name=self.name)

    def _check_devices(self) -> None:
        if self.layout is None:
            return
        devices = set(self.layout.state_devices)
        for variable in self._variables.values():
            value = variable.value
            if isinstance(value, jax.Array) and value.sharding.device_set != devices:
                raise InvalidInputError(
                    f"variable {variable.path} was made outside the scope of {self.layout.name}",
                    received=f"a variable on {len(value.sharding.device_set)} devices",
                    allowed=f"one on all of its {len(devices)} devices",
                    action="make models, optimizers and metrics within strategy.scope()",
                )

    def _lifted(self) -> Callable[..., Any]:
        def lifted(written: list[Any], kept: list[Any], arrays: list[Any]) -> Any:
            with LiftedScope(is_abstract=True) as scope:
                for variable, value in zip([*self._written, *self._kept], [*written, *kept], strict=True):
                    scope.set(variable, value)
                outputs = self._run(scope, arrays)
            if scope.unknown:
                paths = [variable.path for variable in scope.unknown.values()]
                raise InvalidInputError(f"{self.name} uses different variables when it is traced again", received=paths)
            self._deferred = [] if self.discards_state else list(scope.deferred)
            gradients = [update.gradients for update in self._deferred]
            return outputs, [scope.state_mapping[id(variable)] for variable in self._written], gradients

        return lifted

    def _compile(self) -> Any:
        if self.layout is not None and self.layout.updates_on_host:
            return jax.jit(self._lifted())  # nothing is donated: the lent values belong to the layout
        shardings = [variable.value.sharding for variable in self._written]
        return jax.jit(self._lifted(), donate_argnums=0, out_shardings=(None, shardings, None))

    def lower(self, arrays: list[Any]) -> jax.stages.Lowered:
        """Returns the lowered program, before it is compiled."""
        written, kept = self._state()
        return self._compile().lower(written, kept, arrays)

    def prepare(self, arrays: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Returns the compiled function and its arguments."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled, (*self._state(), arrays)

    def _announce(self, written: list[Any], kept: list[Any], arrays: list[Any]) -> None:
        on_host = self.layout is not None and self.layout.updates_on_host
        if not on_host and not any(variable.trainable for variable in self._written):
            return  # not a training program
        labels = [[_label(variable) for variable in variables] for variables in (self._written, self._kept)]
        programs.announce(
            programs.Program(
                name=self.name,
                step=self._compiled,
                args=(written, kept, arrays),
                labels=(*labels, programs.BATCH),
                donates=not on_host,
                num_rows=_num_rows(self.arguments.rebuild(arrays)),
            )
        )

    def _state(self) -> tuple[list[Any], list[Any]]:
        values = assigning.own_arrays((*self._written, *self._kept))
        written, kept = values[: len(self._written)], values[len(self._written) :]
        if self.layout is not None and self.layout.updates_on_host:
            return self.layout.to_compute_devices(written), self.layout.to_compute_devices(kept)
        return written, kept

    def __call__(self, arrays: list[Any]) -> Any:
        """Runs the program, and assigns the new values to the variables."""
        is_new = self._compiled is None
        _, (written, kept, _) = self.prepare(arrays)
        if is_new and programs.is_watched():
            self._announce(written, kept, arrays)
        outputs, values, gradients = run_in_turn(self._compiled, written, kept, arrays)
        layout = self.layout
        if layout is not None and layout.updates_on_host:
            values = layout.to_state_devices(values)
        for variable, value in zip(self._written, values, strict=True):
            set_stored_value(variable, value)
        found = zip(self._deferred, gradients, strict=True)
        computed = [dataclasses.replace(update, gradients=gradient) for update, gradient in found]
        if updates.is_deferring():
            for update in computed:
                updates.defer(update)
        elif layout is not None and computed:
            host_updates.apply_updates(computed, layout=layout)
        return outputs


def _num_rows(arguments: Any) -> int | None:
    """Returns the number of rows of all replicas together; None if no argument is a `PerReplica` value with rows."""
    leaves = jax.tree.leaves(arguments, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
    shapes = [np.shape(leaf.stacked) for leaf in leaves if isinstance(leaf, PerReplica)]
    return next((shape[0] * shape[1] for shape in shapes if len(shape) > 1), None)


def _label(variable: Any) -> str:
    if updates.is_of_optimizer(variable):
        return programs.OPTIMIZER
    return programs.PARAMETERS if variable.trainable else programs.OTHER_STATE


def _checked_outputs(outputs: Any, *, name: str) -> Any:
    for leaf in jax.tree.leaves(outputs):
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | int | float | complex):
            raise InvalidInputError(
                f"{name} returns something that is no array",
                received=type(leaf).__name__,
                allowed="a pytree of arrays, numbers and PerReplica values",
                action="return variable.value instead of a variable",
            )
    return outputs
