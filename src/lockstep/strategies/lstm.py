"""A faster loop for ``keras.layers.LSTM`` without cuDNN. Results are Keras's, apart from rounding.

Keras writes a step as two products, and JAX derives its gradient step by step. Here:

- A step has one product: the inputs and the previous output, next to each other, times both kernels. Its sums are the
  only operands that the gates read. XLA would not vectorise gates that read the step's part of a longer array.
- The gates and their derivatives are computed again for all steps at once, after the loop.
- The kernels' gradients are one product over all steps, instead of a sum of products in the loop.

The gradient is written as a rule for tangents (``jax.custom_jvp``), which JAX transposes. So forward mode and second
derivatives work as well.

A layer with a mask, ``use_cudnn=False``, ``unroll=True``, ``implementation=1``, ``recurrent_dropout`` or other
activations runs as Keras has it. So does a ``keras.layers.GRU``: Keras multiplies all of its inputs at once already,
and a loop like this one was not faster.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.custom_derivatives import SymbolicZero


def wrap_inner_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``keras.layers.RNN.inner_loop``, which a ``keras.layers.LSTM`` calls where it cannot use cuDNN."""

    @functools.wraps(original)
    def wrapper(self: Any, sequences: Any, initial_state: Any, mask: Any, training: Any = False, **options: Any) -> Any:
        if mask is None and not options and _is_usual(self):
            kernel, recurrent = jnp.asarray(self.cell.kernel), jnp.asarray(self.cell.recurrent_kernel)
            if len({jnp.result_type(one) for one in (sequences, *initial_state, kernel, recurrent)}) == 1:
                return _run_layer(self, sequences, initial_state, (kernel, recurrent), training=training)
        return original(self, sequences, initial_state, mask, training=training, **options)

    return wrapper


def _is_usual(layer: Any) -> bool:
    cell = layer.cell
    return (
        isinstance(layer, keras.layers.LSTM)
        and type(cell) is keras.layers.LSTMCell
        and bool(layer.use_cudnn)
        and not layer.unroll
        and cell.implementation == 2  # 1 draws dropout anew for each gate
        and not cell.recurrent_dropout
        and cell.activation is keras.activations.tanh
        and cell.recurrent_activation is keras.activations.sigmoid
    )


def _run_layer(layer: Any, sequences: Any, initial_state: Any, kernels: tuple[Any, Any], *, training: Any) -> Any:
    cell, (kernel, recurrent) = layer.cell, kernels
    if training and cell.dropout:
        sequences = sequences * cell.get_dropout_mask(sequences[:, 0])[:, None]
    bias = jnp.zeros(kernel.shape[1:], kernel.dtype) if cell.bias is None else jnp.asarray(cell.bias)
    steps = jnp.swapaxes(sequences, 0, 1)
    if layer.go_backwards:
        steps = jnp.flip(steps, axis=0)
    outputs, hidden, state = run_steps(steps, kernel, recurrent, bias, *initial_state)
    shown = jnp.swapaxes(outputs, 0, 1) if layer.return_sequences else hidden[:, None]
    return hidden, shown, [hidden, state]


@jax.custom_jvp
def run_steps(inputs: Any, kernel: Any, recurrent: Any, bias: Any, hidden: Any, cell: Any) -> tuple[Any, Any, Any]:
    """Returns the outputs of all steps (steps, batch, units), and the last output and cell state (batch, units).

    Args:
        inputs: (steps, batch, features).
        kernel: (features, 4 * units): input gate, forget gate, candidate, and output gate, as Keras orders them.
        recurrent: (units, 4 * units).
        bias: (4 * units,).
        hidden: the output before the first step, (batch, units).
        cell: the cell state before the first step, (batch, units).
    """
    (outputs, _, _), last = _scan(inputs, kernel, recurrent, bias, hidden, cell)
    return outputs, *last


def _scan(inputs: Any, kernel: Any, recurrent: Any, bias: Any, hidden: Any, cell: Any) -> Any:
    weights = jnp.concatenate([kernel, recurrent])

    def step(state: Any, row: Any) -> Any:
        hidden, cell = state
        sums = jnp.concatenate([row, hidden], axis=-1) @ weights + bias
        admit, keep, candidate, emit = _gates(sums)
        cell = keep * cell + admit * candidate
        hidden = emit * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, sums)

    last, of_steps = lax.scan(step, (hidden, cell), inputs)
    return of_steps, last


def _gates(sums: Any) -> tuple[Any, Any, Any, Any]:
    admit, keep, candidate, emit = jnp.split(sums, 4, axis=-1)
    return jax.nn.sigmoid(admit), jax.nn.sigmoid(keep), jnp.tanh(candidate), jax.nn.sigmoid(emit)


def _tangents_of_steps(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    inputs, kernel, recurrent, bias, hidden, cell = primals
    # The first layer's inputs have no tangents, and so no product.
    has_inputs = not isinstance(tangents[0], SymbolicZero)
    d_inputs, d_kernel, d_recurrent, d_bias, *d_state = map(_as_array, primals, tangents)
    (outputs, cells, sums), last = _scan(inputs, kernel, recurrent, bias, hidden, cell)

    rows = jnp.concatenate([inputs, jnp.concatenate([hidden[None], outputs[:-1]])], axis=-1)
    d_sums = rows @ jnp.concatenate([d_kernel, d_recurrent]) + d_bias
    d_sums = d_sums + d_inputs @ kernel if has_inputs else d_sums

    admit, keep, candidate, emit = _gates(sums)
    shown = jnp.tanh(cells)
    of_cell = (
        candidate * admit * (1 - admit),
        jnp.concatenate([cell[None], cells[:-1]]) * keep * (1 - keep),
        admit * (1 - candidate * candidate),
        keep,
    )
    of_output = emit * (1 - shown * shown), shown * emit * (1 - emit)

    def step(d_state: Any, values: Any) -> Any:
        d_hidden, d_cell = d_state
        d_sums, (by_admit, by_keep, by_candidate, by_cell), (by_shown, by_emit) = values
        d_admit, d_keep, d_candidate, d_emit = jnp.split(d_sums + d_hidden @ recurrent, 4, axis=-1)
        d_cell = by_cell * d_cell + by_admit * d_admit + by_keep * d_keep + by_candidate * d_candidate
        d_hidden = by_shown * d_cell + by_emit * d_emit
        return (d_hidden, d_cell), d_hidden

    def run(d_sums: Any, d_state: Any) -> Any:
        return lax.scan(step, d_state, (d_sums, of_cell, of_output))

    # The function is linear, so its tangents are its values. JAX 0.9 only transposes loops that it has differentiated.
    of_tangents = d_sums, tuple(d_state)
    _, (d_last, d_outputs) = jax.jvp(run, jax.tree.map(jnp.zeros_like, of_tangents), of_tangents)
    return (outputs, *last), (d_outputs, *d_last)


def _as_array(primal: Any, tangent: Any) -> Any:
    return jnp.zeros_like(primal) if isinstance(tangent, SymbolicZero) else tangent


run_steps.defjvp(_tangents_of_steps, symbolic_zeros=True)
