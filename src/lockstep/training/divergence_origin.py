"""Finds where numbers stop being finite in a training step: in the data, in a layer, or in the loss function.

The step's forward and backward pass run again, with a check of each layer's output. To see the gradient between two
layers, a zero is added to each output: the gradient with respect to the zero is that of the output.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import keras

from lockstep.strategies.epochs import current_layout, place_for_step
from lockstep.strategies.gathering import whole_value
from lockstep.upstream.jax_tracing import current_trace
from lockstep.upstream.keras_layers import layers_of, wrapped_calls
from lockstep.upstream.keras_trainer import running_state

NUM_ROWS_SHOWN: Final = 5
_DATA_ADVICE: Final = "remove or repair these rows of the data"
_MODEL_ADVICE: Final = "make the learning rate smaller, clip gradients (clipnorm), or look at this layer"


@final
@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where numbers stopped being finite.

    Attributes:
        text: the place in words.
        advice: what to do.
        is_in_data: whether the batch itself is not finite.
        layer: the path of the layer; None if it was not in a layer.
    """

    text: str
    advice: str = _MODEL_ADVICE
    is_in_data: bool = False
    layer: str | None = None


@final
@dataclass(kw_only=True)
class _Call:
    """A call of a layer: its outputs' positions among all outputs, and the calls whose outputs it was given."""

    layer: Any
    outputs: list[int] = field(default_factory=list[int])
    sources: set[int] = field(default_factory=set[int])
    is_innermost: bool = True


@final
class _Recorder:
    """Records the calls of layers while a step is traced.

    Args:
        zeros: what is added to each output; None in the first trace, which finds their shapes.
    """

    def __init__(self, zeros: Sequence[Any] | None) -> None:
        self._zeros = zeros
        self._trace = current_trace()
        self._by_output: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self.calls: list[_Call] = []
        self.are_finite: list[Any] = []
        self.shapes: list[jax.ShapeDtypeStruct] = []

    def wrap(self, layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls a layer and records the call."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            num_before = len(self.calls)
            outputs = call(*args, **kwargs)
            if current_trace() != self._trace:
                return outputs  # within a loop of a layer, whose values may not leave it
            made = _Call(layer=layer, is_innermost=len(self.calls) == num_before)
            sources = (self._by_output.get(id(leaf)) for leaf in jax.tree.leaves((args, kwargs)))
            made.sources = {source for source in sources if source is not None}
            number = len(self.calls)
            self.calls.append(made)
            return jax.tree.map(lambda leaf: self._tap(leaf, made, number), outputs)

        return recorded

    def _tap(self, leaf: Any, made: _Call, number: int) -> Any:
        if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        made.outputs.append(len(self.shapes))
        if self._zeros is not None:
            leaf = leaf + self._zeros[len(self.shapes)]
        self.shapes.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        self.are_finite.append(jnp.all(jnp.isfinite(leaf)))
        self._by_output[id(leaf)] = number
        self._kept.append(leaf)
        return leaf


def find_origin(model: Any, batch: Any) -> Origin:
    """Returns where a training step's numbers stop being finite. The model is not changed.

    In a job of several processes, each of them has to call this.

    Args:
        model: a compiled model, which may be within ``fit``.
        batch: the batch of the step, as ``fit`` passes it to the model's step.
    """
    found = _in_data(batch)
    if found is not None:
        return found
    try:
        return _in_step(model, batch)
    except jax.errors.JaxRuntimeError as error:  # such as: not enough memory beside the training
        reason = str(error).partition("\n")[0]
        return Origin(text=f"the step is not finite, and where that began could not be found ({reason})")


def _in_data(batch: Any) -> Origin | None:
    parts = dict(zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(batch), strict=True))
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) or not jnp.ndim(leaf):
            continue
        bad = jax.jit(lambda array: ~jnp.all(jnp.isfinite(array.reshape(len(array), -1)), axis=1))(leaf)
        rows = [int(row) for row in whole_value(bad).nonzero()[0]]
        if rows:
            shown = ", ".join(map(str, rows[:NUM_ROWS_SHOWN])) + (", ..." if len(rows) > NUM_ROWS_SHOWN else "")
            name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
            where = f"row{'s' if len(rows) > 1 else ''} {shown} of the batch"
            return Origin(text=f"the data is not finite: {name}, {where}", advice=_DATA_ADVICE, is_in_data=True)
    return None


def _values_of(model: Any) -> tuple[list[Any], ...]:
    optimizer_variables = [] if model.optimizer is None else list(model.optimizer.variables)
    groups = (
        list(model.trainable_variables),
        list(model.non_trainable_variables),
        optimizer_variables,
        list(model.metrics_variables),
    )
    running = iter(running_state(model))  # within `fit`, the variables themselves have no values
    values = tuple([next(running, variable) for variable in group] for group in groups)
    return tuple([getattr(one, "value", one) for one in group] for group in values)


def _in_step(model: Any, batch: Any) -> Origin:
    trainable, non_trainable, optimizer_values, metrics = _values_of(model)
    scalars = [value for value in optimizer_values if not value.shape]
    layout = current_layout()
    data: Any = keras.utils.unpack_x_y_sample_weight(batch)
    if layout is not None:
        lent = layout.to_compute_devices((trainable, non_trainable, scalars, metrics))
        trainable, non_trainable, scalars, metrics = lent
        data = place_for_step(layout, data)
    layers = layers_of(model)
    recorders: list[_Recorder] = []

    def loss_of(differentiated: Any, others: Any, known: Any, counted: Any, inputs: Any) -> Any:
        values, zeros = differentiated
        following = iter(known)
        optimizer_variables = [] if model.optimizer is None else model.optimizer.variables
        filled = [
            jnp.zeros(variable.shape, variable.dtype) if variable.shape else next(following)
            for variable in optimizer_variables
        ]
        recorder = _Recorder(zeros)
        recorders.append(recorder)
        with wrapped_calls(layers, recorder.wrap):
            _, (unscaled, outputs, *_) = model.compute_loss_and_updates(
                values, others, counted, *inputs, training=True, optimizer_variables=filled
            )
        leaves = [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        has_finite_outputs = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        return unscaled, (recorder.are_finite, has_finite_outputs, jnp.isfinite(unscaled))

    arguments = non_trainable, scalars, metrics, data
    jax.eval_shape(lambda values, *others: loss_of((values, None), *others), trainable, *arguments)
    zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in recorders[-1].shapes]

    def checks(values: Any, *others: Any) -> Any:
        (_, forward), gradients = jax.value_and_grad(loss_of, has_aux=True)((values, zeros), *others)
        return forward, jax.tree.map(lambda gradient: jnp.all(jnp.isfinite(gradient)), gradients)

    forward, backward = jax.tree.map(lambda flag: bool(whole_value(flag)), jax.jit(checks)(trainable, *arguments))
    calls = recorders[-1].calls
    return _forward_origin(calls, forward) or _backward_origin(model, calls, backward)


def _forward_origin(calls: Sequence[_Call], forward: Any) -> Origin | None:
    are_finite, has_finite_outputs, has_finite_loss = forward
    for call in calls:
        if not all(are_finite[output] for output in call.outputs):
            return Origin(text=f"the output of layer {_name(call.layer)} is not finite", layer=call.layer.path)
    if not has_finite_outputs:
        return Origin(text="the output of the model is not finite, though those of all its layers are")
    if not has_finite_loss:
        return Origin(text="the loss is not finite, though the output of the model is")
    return None


def _backward_origin(model: Any, calls: Sequence[_Call], backward: Any) -> Origin:
    of_variables, of_outputs = backward
    bad = {
        id(variable)
        for variable, is_finite in zip(model.trainable_variables, of_variables, strict=True)
        if not is_finite
    }
    has_bad_gradient = [not all(of_outputs[output] for output in call.outputs) for call in calls]

    def begins_in(number: int) -> bool:
        call = calls[number]
        own = any(id(variable) in bad for variable in call.layer.trainable_variables)
        return not has_bad_gradient[number] and (own or any(has_bad_gradient[source] for source in call.sources))

    found = [number for number in range(len(calls)) if begins_in(number)]
    innermost = [number for number in found if calls[number].is_innermost]
    if found:
        layer = calls[(innermost or found)[-1]].layer
        return Origin(
            text=f"the gradient is not finite from layer {_name(layer)} on, in the backward pass", layer=layer.path
        )
    if any(has_bad_gradient) or bad:
        return Origin(text="the gradient of the loss function is not finite, though the loss is")
    return Origin(text="the step was not finite, but it is when it runs again with the state of now")


def _name(layer: Any) -> str:
    return f"{layer.path} ({type(layer).__name__})"
