"""Connects strategies to Keras's trainer: a model remembers its strategy, which places the model's batches.

Keras's JAX trainer already runs one program over a mesh. The functions of this module wrap its methods
(`lockstep.upstream.table` lists them):

- ``compile`` records the current strategy, and ``fit``, ``evaluate``, ``predict`` and the ``_on_batch`` methods enter
  it.
- Arguments that would have no effect beside the data are rejected (`lockstep.strategies.data_arguments`).
- Steps run as the strategy runs them (`lockstep.strategies.step_functions`).
- A model that was compiled outside of the scope cannot be trained if a strategy's processes train a model together.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import jax
import keras

from lockstep.errors import InvalidInputError
from lockstep.heartbeat import current_sender
from lockstep.strategies import programs, stateful_steps
from lockstep.strategies.data_arguments import check_arguments
from lockstep.strategies.epochs import (
    KerasCall,
    current_call,
    current_layout,
    place_for_step,
    reads_batches_one_by_one,
    running,
)
from lockstep.strategies.heartbeat import Heartbeat
from lockstep.strategies.input import GlobalBatches
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.observing import AbstractStepObserver
from lockstep.strategies.peers import agreement
from lockstep.strategies.profiling import current_recorder
from lockstep.strategies.running_alone import can_run_alone, is_elsewhere, run_without_strategy
from lockstep.strategies.runs import RepeatCall, SkipCall
from lockstep.strategies.saving import check_saving
from lockstep.strategies.step_functions import StepFunction, guard_of, make_step_function
from lockstep.upstream.keras_callbacks import keeps_weights
from lockstep.upstream.keras_data import DataAdapter

_WHOLE_RUNS: Final = ("fit", "evaluate", "predict")
_SINGLE_BATCHES: Final = ("train_on_batch", "test_on_batch", "predict_on_batch")
_TRAINING: Final = ("fit", "train_on_batch")
_layouts: WeakKeyDictionary[Any, AbstractLayout] = WeakKeyDictionary()
_of_keras: WeakSet[Any] = WeakSet()
"""The step functions that Keras has made. All other step functions are Lockstep's."""

_only: ContextVar[ReferenceType[AbstractLayout] | None] = ContextVar("lockstep_only", default=None)


def train_only_within(layout: AbstractLayout) -> None:
    """Rejects, in this thread and as long as the layout exists, the training of models without a strategy.

    This is for strategies whose processes take their roles in ``fit``. Without the check, each process would train such
    a model by itself, and nobody would notice.
    """
    _only.set(ref(layout))


def wrap_compile(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``compile`` so that it records the current strategy, which the model's methods enter later."""

    @functools.wraps(compile_model)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        layout = current_layout()
        if layout is None:
            _layouts.pop(self, None)
        else:
            _check_variables(self, layout)
            _layouts[self] = layout
        stateful_steps.clear_steps(self)
        return compile_model(self, *args, **kwargs)

    return wrapper


def _check_variables(model: Any, layout: AbstractLayout) -> None:
    for variable in model.variables:
        if is_elsewhere(variable, layout):
            raise InvalidInputError(
                f"variable {variable.path} was made outside the scope of {layout.name}",
                received=f"a variable on {len(variable.value.sharding.device_set)} devices",
                allowed=f"one on its {len(layout.state_devices)}",
                action="build the model and compile it within the same strategy.scope()",
            )


def _layout_of(model: Any) -> AbstractLayout | None:
    remembered, current = _layouts.get(model), current_layout()
    if remembered is None and current is not None:
        _check_variables(model, current)
    if remembered is None or current is None or remembered is current:
        return remembered or current
    raise InvalidInputError(
        "the model was compiled under another strategy than the current one",
        received=f"{remembered.name}, called within {current.name}",
        action="call it outside any scope, or build and compile it within this one",
    )


def _runs_alone(model: Any, data: Any) -> bool:
    """Whether a method is called in a callback of another model's run, and other processes may not call it."""
    outer, layout = current_call(), current_layout()
    if outer is None or outer.model is model:
        return outer is not None and outer.is_alone
    if layout is None or layout.runs is not None or isinstance(data, GlobalBatches | DataAdapter):
        return False
    if layout.num_processes == 1:
        return model not in _layouts and any(is_elsewhere(variable, layout) for variable in model.variables)
    return can_run_alone(model)


def _check_owned(model: Any, method: str) -> None:
    reference = _only.get()
    layout = None if reference is None else reference()
    if layout is not None:
        raise InvalidInputError(
            f"{method} of a model that was compiled outside of the scope of {layout.name}, whose processes would each "
            "train one of their own",
            received=model.name,
            action="build and compile the model within strategy.scope(); train any other in a script of its own",
        )


@contextmanager
def scope_of(model: Any) -> Generator[None]:
    """Enters the scope of the strategy that a model was compiled under, if there is one.

    Args:
        model: a Keras model.

    Raises:
        InvalidInputError: another strategy is current.
    """
    layout = _layout_of(model)
    with ExitStack() as stack:
        if layout is not None and layout is not current_layout():
            stack.enter_context(layout.scope())
        yield


def wrap_run(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of a model so that it enters the model's strategy and checks its arguments."""
    signature = inspect.signature(method)
    kind = stateful_steps.KINDS[method.__name__]

    @functools.wraps(method)
    @_repeated
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(self, *args, **kwargs)
        data = bound.arguments.get("x")
        if "shuffle" in signature.parameters and isinstance(data, GlobalBatches):
            bound.arguments.setdefault("shuffle", False)  # the data has its own order; Keras would warn
        is_alone = _runs_alone(self, data)
        layout = None if is_alone else _layout_of(self)
        if method.__name__ == "fit":
            check_saving(self, bound.arguments)
        if layout is None and not is_alone and method.__name__ in _TRAINING:
            _check_owned(self, method.__name__)
        if layout is not None and layout.runs is not None:
            stateful_steps.reject_under_parameter_servers(self, kind, layout)
        if "_use_cached_eval_dataset" not in bound.arguments.get("kwargs", ()):  # `fit` calls `evaluate`
            check_arguments(method.__name__, bound.arguments, is_distributed=layout is not None)
        with ExitStack() as stack:
            if is_alone:
                stack.enter_context(run_without_strategy(self, current_layout()))
            if layout is not None and layout is not current_layout():
                stack.enter_context(layout.scope())
            if layout is not None and layout.num_processes > 1 and method.__name__ in _WHOLE_RUNS:
                agreement.agree_on_run(self, method.__name__)
            reads_one_by_one = (
                layout is not None
                or reads_batches_one_by_one(data)
                or stateful_steps.is_stateful(self, kind)
                or programs.is_watched()
                or _is_observed(bound.arguments)
            )
            call = KerasCall(
                model=self, method=method.__name__, data=data, is_alone=is_alone, reads_one_by_one=reads_one_by_one
            )
            stack.enter_context(running(call))
            if method.__name__ == "fit":
                _order_callbacks(bound.arguments, call)
                _check_callbacks(self, call.callbacks)
            if layout is not None and layout.runs is not None and method.__name__ in _WHOLE_RUNS:
                try:
                    stack.enter_context(layout.runs.wrap_call(self, method.__name__, bound.arguments))
                except SkipCall as passed:
                    return passed.returned
            if method.__name__ in _WHOLE_RUNS:
                _add_heartbeat(bound.arguments, call)
            recorder = current_recorder() if method.__name__ == "fit" else None
            if recorder is not None:
                call.observe(recorder)
            try:
                return method(*bound.args, **bound.kwargs)
            except BaseException:
                if method.__name__ in ("evaluate", "predict"):  # `fit` does this itself
                    self.jax_state_sync()  # put back the variables' values, which Keras removed for the loop
                raise

    return run


def _repeated(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes a call again as often as a callback raises `RepeatCall`."""

    def repeated(*args: Any, **kwargs: Any) -> Any:
        while True:
            with suppress(RepeatCall):
                return run(*args, **kwargs)

    return repeated


def _is_observed(arguments: dict[str, Any]) -> bool:
    """Whether a callback of a run observes its steps, which needs the step function of this package."""
    given = arguments.get("callbacks")
    if not given or isinstance(given, keras.callbacks.CallbackList):
        return False
    return any(isinstance(callback, AbstractStepObserver) for callback in keras.tree.flatten(given))


def _order_callbacks(arguments: dict[str, Any], call: KerasCall) -> None:
    """Puts callbacks that save the others' state behind the others, which change it in the same methods."""
    given = arguments.get("callbacks")
    callbacks: list[Any]
    if isinstance(given, keras.callbacks.CallbackList):
        callbacks = given.callbacks
    else:
        callbacks = arguments["callbacks"] = [*keras.tree.flatten(given)] if given else []
    callbacks.sort(key=_saves_others)
    call.callbacks = list(callbacks)


def _check_callbacks(model: Any, callbacks: Sequence[Any]) -> None:
    values = (variable.value for variable in model.variables)
    if any(map(keeps_weights, callbacks)) and any(
        isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated)
        for value in values
    ):
        raise InvalidInputError(
            "EarlyStopping(restore_best_weights=True) needs the whole model in each process",
            received=f"{model.name}, which is divided over the processes",
            action="pass restore_best_weights=False, give fit a lockstep.training.BackupAndRestore with keep_best=1, "
            "and call its restore_best(model) after fit",
        )


def _saves_others(callback: Any) -> bool:
    return bool(getattr(callback, "saves_other_callbacks", False))


def _add_heartbeat(arguments: dict[str, Any], call: KerasCall) -> None:
    """Adds the heartbeat callback to a run, if this process sends heartbeats and the caller has not added it."""
    given = arguments.get("callbacks")
    if current_sender() is None or isinstance(given, keras.callbacks.CallbackList):  # the latter: validation in `fit`
        return
    callbacks = keras.tree.flatten(given) if given else []
    if not any(isinstance(callback, Heartbeat) for callback in callbacks):
        arguments["callbacks"] = [*callbacks, Heartbeat(count_examples=lambda: call.num_examples)]


def wrap_distribute_data(distribute_data: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras's placement of batches so that the current strategy places batches of the ``_on_batch`` methods."""

    @functools.wraps(distribute_data)
    def wrapper(data: Any, *args: Any, **kwargs: Any) -> Any:
        layout = current_layout()
        return distribute_data(data, *args, **kwargs) if layout is None else place_for_step(layout, data)

    return wrapper


def _wrap_make_function(make_function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(make_function)
    def wrapper(self: Any, force: bool = False, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001 - Keras's signature
        layout = current_layout()
        own = layout.runs.step_function(self, kind) if layout is not None and layout.runs is not None else None
        if own is not None:
            setattr(self, attribute, own)
            return own
        found = getattr(self, attribute)
        if layout is not None and layout.num_processes > 1:
            # Optimizer and metrics may have been built since the run began.
            is_certain = force or found is None
            agreement.agree_on_variables(agreement.variables_of(self), kind, is_certain=is_certain)
        call = current_call()
        is_of_keras = not (layout is not None or (call is not None and call.model is self and call.reads_one_by_one))
        if is_of_keras:
            make_function(self, force or isinstance(found, StepFunction), *args, **kwargs)
            _of_keras.add(getattr(self, attribute))
        elif found is None or force or found in _of_keras or _is_guarded_otherwise(self, kind):
            setattr(self, attribute, make_step_function(self, kind, layout))
        return getattr(self, attribute)

    return wrapper


def _is_guarded_otherwise(model: Any, kind: str) -> bool:
    found = getattr(model, f"{kind}_function")
    return isinstance(found, StepFunction) and found.guard is not guard_of(model, kind)


def wrap_make_train_function(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes ``fit`` run steps as the current strategy does."""
    return _wrap_make_function(make_function, stateful_steps.TRAIN)


def wrap_make_test_function(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes ``evaluate`` run steps as the current strategy does."""
    return _wrap_make_function(make_function, stateful_steps.TEST)


def wrap_make_predict_function(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes ``predict`` run steps as the current strategy does."""
    return _wrap_make_function(make_function, stateful_steps.PREDICT)


def wrap_symbolic_build(build: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a step that takes only the batch create its own variables. Keras would require a matching ``call()``."""

    @functools.wraps(build)
    def wrapper(self: Any, iterator: Any = None, data_batch: Any = None, *args: Any, **kwargs: Any) -> Any:
        call = current_call()
        kind = None if call is None or call.model is not self else stateful_steps.KINDS[call.method]
        if call is not None and call.model is self and call.apply_class_weights is not None and data_batch is not None:
            data_batch = call.apply_class_weights(data_batch)  # since Keras 3.16, this batch comes without its weights
        if kind is None or not stateful_steps.is_stateful(self, kind):
            given = {"iterator": iterator, "data_batch": data_batch}
            with call.building() if call is not None else nullcontext():
                return build(self, *args, **{name: one for name, one in given.items() if one is not None}, **kwargs)
        step = stateful_steps.get_step(self, kind, current_layout())
        if not step.is_built:
            if data_batch is None:
                with call.building() if call is not None else nullcontext():
                    _, _, batches = next(iter(iterator))
                    data_batch = next(batches)
            step.build(data_batch)
        return None

    return wrapper
