"""Where strategies meet Keras's trainer: a model remembers its strategy, and its batches go where the strategy says.

Keras's JAX trainer already runs one program over a mesh. What it lacks is replaced here, once in a process and for all
models, by `install`:

- ``compile`` notes the current strategy, and ``fit``, ``evaluate``, ``predict`` and their ``_on_batch`` forms enter it;
- arguments that would have no effect beside the data are refused (`lockstep.strategies.data_arguments`);
- the trainer's iterator over an epoch's batches is another one (`lockstep.strategies.epochs`);
- ``predict`` hands every process the whole result;
- a run that ends with averaged weights keeps them apart from the averages;
- a model that was compiled outside of the scope is not trained where a strategy's processes train one together.

These are private parts of Keras, so `install` checks that they are there.
"""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
import keras
from keras.src.backend.jax import trainer as jax_trainer
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from lockstep.errors import BackendError, InvalidInputError
from lockstep.heartbeat import current_sender
from lockstep.strategies import host_updates, programs, stateful_steps
from lockstep.strategies.data_arguments import check_arguments
from lockstep.strategies.epochs import PlacingEpochIterator, Run, current_layout, current_run, place_for_step, running
from lockstep.strategies.heartbeat import Heartbeat
from lockstep.strategies.input import GlobalBatches
from lockstep.strategies.keras_steps import taking_a_batch_alone
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.peers import agreement
from lockstep.strategies.running_alone import alone, can_run_alone, is_elsewhere
from lockstep.strategies.runs import PassedOver
from lockstep.strategies.saving import check_saving

_WHOLE_RUNS: Final = ("fit", "evaluate", "predict")
_SINGLE_BATCHES: Final = ("train_on_batch", "test_on_batch", "predict_on_batch")
_TRAINING: Final = ("fit", "train_on_batch")
_KERAS_PARTS: Final = ("JAXEpochIterator", "_distribute_data")
_STATE_LABELS: Final = (programs.PARAMETERS, programs.OTHER_STATE, programs.OPTIMIZER, programs.OTHER_STATE)
"""What Keras's training state holds: trainable, non-trainable, optimizer's and metrics' variables."""

_layouts: WeakKeyDictionary[Any, AbstractLayout] = WeakKeyDictionary()
_only: ContextVar[ReferenceType[AbstractLayout] | None] = ContextVar("lockstep_only", default=None)


def train_only_within(layout: AbstractLayout) -> None:
    """Refuses, in this thread and as long as the layout is there, to train models that no strategy owns.

    For strategies whose processes find out in ``fit`` what each of them is for: by themselves, each would train such a
    model of its own, and nobody would notice.
    """
    _only.set(ref(layout))


def put_back(model: Any, state: Sequence[Any]) -> None:
    """Gives a model's variables their values again, which Keras's loops take away for as long as they run.

    For who ends a loop by an error: afterwards the model would be broken.

    Args:
        model: the model.
        state: what the loop's last step was given: values of trainable, non-trainable, optimizer's and metrics'
            variables; of evaluation there is none of the optimizer's, of prediction the first two alone.
    """
    names = [f"{kind}_variables" for kind in ("trainable", "non_trainable", "optimizer", "metrics")]
    if len(state) < len(names):
        names.remove("optimizer_variables")
    model._jax_state = dict(zip(names, state, strict=False))
    model.jax_state_sync()


def install() -> None:
    """Puts Lockstep's parts into Keras's JAX trainer; a second call does nothing.

    Raises:
        BackendError: this version of Keras has another trainer than the one that the parts are for.
    """
    if jax_trainer.JAXEpochIterator is PlacingEpochIterator:
        return
    missing = [name for name in _KERAS_PARTS if not hasattr(jax_trainer, name)]
    if missing:
        raise BackendError(
            "this version of Keras has another JAX trainer than the one Lockstep knows",
            received=f"keras {keras.__version__} without {', '.join(missing)}",
            action="install the version of Keras that Lockstep's lock file names",
        )
    _replace("compile", _remembering)
    for name in (*_WHOLE_RUNS, *_SINGLE_BATCHES):
        _replace(name, _within_strategy)
    _replace("make_predict_function", _gathering)
    for kind, make_step in (
        ("train", _training_on_host),
        ("test", host_updates.test_step),
        ("predict", host_updates.predict_step),
    ):
        _replace(f"make_{kind}_function", functools.partial(_computing_elsewhere, kind=kind, make_step=make_step))
    _replace("_make_function", _announcing)
    _replace("_symbolic_build", _building)
    for kind in ("train", "test", "predict"):
        _replace(f"{kind}_step", taking_a_batch_alone)
    averaging = next(kind for kind in keras.Optimizer.__mro__ if "finalize_variable_values" in vars(kind))
    averaging.finalize_variable_values = _parting(averaging.finalize_variable_values)
    jax_trainer._distribute_data = _placing(jax_trainer._distribute_data)
    jax_trainer.JAXEpochIterator = PlacingEpochIterator


def _replace(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    # In the class that defines it: Keras takes a method that differs from that class's for a user's own.
    owner = next(kind for kind in keras.Model.__mro__ if name in vars(kind))
    setattr(owner, name, wrap(vars(owner)[name]))


def _remembering(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_model)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        layout = current_layout()
        if layout is None:
            _layouts.pop(self, None)
        else:
            _check_variables(self, layout)
            _layouts[self] = layout
        stateful_steps.forget(self)
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
    """Whether a method is called in a callback of another model's run, which other processes may not call it in."""
    outer, layout = current_run(), current_layout()
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
    """Enters the scope of the strategy that a model was compiled under, where there is one.

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


def _within_strategy(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    kind = stateful_steps.KINDS[method.__name__]

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(self, *args, **kwargs)
        data = bound.arguments.get("x")
        if "shuffle" in signature.parameters and isinstance(data, GlobalBatches):
            bound.arguments.setdefault("shuffle", False)  # such data has an order of its own; Keras would warn
        is_alone = _runs_alone(self, data)
        layout = None if is_alone else _layout_of(self)
        if method.__name__ == "fit":
            check_saving(self, bound.arguments)
        if layout is None and not is_alone and method.__name__ in _TRAINING:
            _check_owned(self, method.__name__)
        if layout is not None and layout.runs is not None:
            stateful_steps.refuse_where_servers_update(self, kind, layout)
        if "_use_cached_eval_dataset" not in bound.arguments.get("kwargs", ()):  # `fit` calls `evaluate`
            check_arguments(method.__name__, bound.arguments, is_distributed=layout is not None)
        with ExitStack() as stack:
            if is_alone:
                stack.enter_context(alone(self, current_layout()))
            if layout is not None and layout is not current_layout():
                stack.enter_context(layout.scope())
            if layout is not None and layout.num_processes > 1 and method.__name__ in _WHOLE_RUNS:
                agreement.agree_on_run(self, method.__name__)
            run = stack.enter_context(running(Run(model=self, method=method.__name__, data=data, is_alone=is_alone)))
            if layout is not None and layout.runs is not None and method.__name__ in _WHOLE_RUNS:
                try:
                    stack.enter_context(layout.runs.around(self, method.__name__, bound.arguments))
                except PassedOver as passed:
                    return passed.returned
            if method.__name__ in _WHOLE_RUNS:
                _add_heartbeat(bound.arguments, run)
            try:
                return method(*bound.args, **bound.kwargs)
            except BaseException:
                if method.__name__ in ("evaluate", "predict"):  # `fit` does so itself
                    self.jax_state_sync()  # Keras took the variables' values away for the loop
                raise

    return wrapper


def _add_heartbeat(arguments: dict[str, Any], run: Run) -> None:
    """Has a run say how far it is, where somebody asked this process for that and the caller did not see to it."""
    given = arguments.get("callbacks")
    if current_sender() is None or isinstance(given, keras.callbacks.CallbackList):  # the latter: validation in `fit`
        return
    callbacks = keras.tree.flatten(given) if given else []
    if not any(isinstance(callback, Heartbeat) for callback in callbacks):
        arguments["callbacks"] = [*callbacks, Heartbeat(count_examples=lambda: run.num_examples)]


def _placing(distribute_data: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(distribute_data)
    def wrapper(data: Any, layouts: Any = None) -> Any:
        layout = current_layout()
        return distribute_data(data, layouts) if layout is None else place_for_step(layout, data)

    return wrapper


def _parting(finalize: Callable[..., Any]) -> Callable[..., Any]:
    """Gives variables an array of their own: Keras's averages share theirs, which the next step gives away."""

    @functools.wraps(finalize)
    def wrapper(self: Any, var_list: Any) -> None:
        finalize(self, var_list)
        for variable in var_list if self.use_ema else ():
            variable.assign(jnp.copy(variable.value))

    return wrapper


def _gathering(make_predict_function: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``predict`` bring each batch's outputs to every device, so that any process can read them.

    Left to itself, the compiler divides an uneven batch's outputs in a way that the variables' mesh has no name for.
    """

    @functools.wraps(make_predict_function)
    def wrapper(self: Any, force: bool = False) -> Any:  # noqa: FBT001 - Keras's signature
        layout = current_layout()
        is_stateful = stateful_steps.is_stateful(self, stateful_steps.PREDICT)
        if layout is None or self.run_eagerly or not self.jit_compile or is_stateful:
            return make_predict_function(self, force=force)
        if self.predict_function is not None and not force:
            return self.predict_function

        def predict_step(state: Any, data: Any) -> Any:
            outputs, non_trainable_variables = self.predict_step(state, data)
            outputs = jax.lax.with_sharding_constraint(outputs, layout.replicated)
            return outputs, (state[0], non_trainable_variables)

        state_shardings = self._get_state_sharding_spec()[:2]
        compiled = jax.jit(predict_step, donate_argnums=0, out_shardings=(None, state_shardings))
        self.predict_function = self._make_function(compiled, concatenate_outputs=True)
        return self.predict_function

    return wrapper


def _computing_elsewhere(
    make_function: Callable[..., Any], *, kind: str, make_step: Callable[[Any, AbstractLayout], Callable[..., Any]]
) -> Callable[..., Any]:
    """Has a step run as the strategy does, or lent its state where that is kept elsewhere than steps are computed."""
    attribute = f"{kind}_function"

    @functools.wraps(make_function)
    def wrapper(self: Any, force: bool = False) -> Any:  # noqa: FBT001 - Keras's signature
        layout = current_layout()
        own = layout.runs.function(self, kind) if layout is not None and layout.runs is not None else None
        if own is not None:
            setattr(self, attribute, own)
            return own
        if layout is not None and layout.num_processes > 1:
            # Optimizer and metrics may have been built since the run began.
            is_certain = force or getattr(self, attribute) is None
            agreement.agree_on_variables(agreement.variables_of(self), kind, is_certain=is_certain)
        if stateful_steps.is_stateful(self, kind):
            if getattr(self, attribute) is None or force:
                step = stateful_steps.step_of(self, kind, layout)
                setattr(self, attribute, self._make_function(step, concatenate_outputs=kind == "predict"))
            return getattr(self, attribute)
        if layout is None or not layout.updates_on_host:
            return make_function(self, force=force)
        if getattr(self, attribute) is None or force:
            setattr(
                self, attribute, self._make_function(make_step(self, layout), concatenate_outputs=kind == "predict")
            )
        return getattr(self, attribute)

    return wrapper


def _building(build: Callable[..., Any]) -> Callable[..., Any]:
    """Has a step that takes the batch alone make its own variables: Keras would ask for a ``call()`` that fits."""

    @functools.wraps(build)
    def wrapper(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        run = current_run()
        kind = None if run is None or run.model is not self else stateful_steps.KINDS[run.method]
        if kind is None or not stateful_steps.is_stateful(self, kind):
            build(self, iterator=iterator, data_batch=data_batch)
            return
        step = stateful_steps.step_of(self, kind, current_layout())
        if step.is_built:
            return
        if data_batch is None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        step.build(data_batch)

    return wrapper


def _training_on_host(model: Any, layout: AbstractLayout) -> Callable[..., Any]:
    def num_steps() -> int | None:
        run = current_run()
        return None if run is None else run.num_steps

    return host_updates.training_step(model, layout, num_steps=num_steps)


def _announcing(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Shows a training step to whoever watches, right before it runs."""

    @functools.wraps(make_function)
    def wrapper(self: Any, step_function: Any, concatenate_outputs: bool = False) -> Any:  # noqa: FBT001 - Keras's
        layout = current_layout()
        is_on_host = layout is not None and layout.updates_on_host
        announces_itself = is_on_host or isinstance(step_function, stateful_steps.StatefulStep)
        if announces_itself or not programs.is_watched():
            return make_function(self, step_function, concatenate_outputs)

        announced = False

        def announced_step(state: Any, data: Any) -> Any:
            nonlocal announced
            # The states of evaluation and prediction are shorter.
            if not announced and len(state) == len(_STATE_LABELS):
                announced = True
                run = current_run()
                programs.announce(
                    programs.Program(
                        name=f"fit of {self.name}",
                        step=step_function,
                        args=(state, data),
                        labels=(_STATE_LABELS, programs.BATCH),
                        num_steps=run.num_steps if run is not None else None,
                    )
                )
            return step_function(state, data)

        return make_function(self, announced_step, concatenate_outputs)

    return wrapper
