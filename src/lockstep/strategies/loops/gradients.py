"""Losses and their gradients in stateful Keras code, for custom loops. They replace ``tf.GradientTape``."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
from jax.core import Tracer

from lockstep.errors import InvalidInputError
from lockstep.strategies.loops.lifting import LiftedScope, current_scope
from lockstep.strategies.loops.replica import active_replica_context
from lockstep.upstream.keras_scopes import has_uninitialized_variables, in_stateless_scope, initialize_all_variables


def value_and_grad(
    loss_fn: Callable[[], Any], variables: Sequence[Any] | Callable[[], Sequence[Any]], *, has_aux: bool = False
) -> tuple[Any, list[Any]]:
    """Computes a loss and its gradients with respect to Keras variables.

    The variables that the loss function assigns (batch statistics, the state of random generators, metrics) have their
    new values when this function returns. If it assigns one of the variables to differentiate with respect to, as
    ``keras.layers.SpectralNormalization`` does, the gradient is that of the reads of the variable, before and after:
    none flows through the assigned value. ``tf.GradientTape`` does the same. Unbuilt layers create their variables in
    the first call.

    Args:
        loss_fn: a function without arguments that returns the loss, a float scalar. With ``has_aux``, it returns the
            loss and a pytree of arrays.
        variables: the variables to differentiate with respect to, such as ``model.trainable_variables``; or a function
            that returns them, ``lambda: model.trainable_variables``. The function also finds the variables of an
            unbuilt model, which the first call of the loss function creates.
        has_aux: whether ``loss_fn`` returns more than the loss.

    Returns:
        The result of ``loss_fn``, and a gradient for each variable, of the variable's shape and dtype. The gradient is
        zero if the loss does not depend on the variable (``tf.GradientTape`` returns None then).

    Raises:
        InvalidInputError: there are no variables, or one of them is not a Keras variable, or the loss is not a float
            scalar, or Keras runs the code (``train_step``).
    """
    outer = current_scope()
    if outer is None and in_stateless_scope():
        raise InvalidInputError(
            "value_and_grad was called within a step that Keras runs, whose variables are values already",
            action="use jax.value_and_grad over model.stateless_call there",
        )
    compute = partial(_Loss, loss_fn, has_aux=has_aux, outer=outer)
    given = list(variables()) if callable(variables) else _checked(variables)
    if outer is None or not given:
        _make_variables(compute(given))
    if not callable(variables):
        return _differentiated(compute(given))
    given = _checked(variables())
    found = _differentiated(compute(given))
    made = _checked(variables())
    return found if len(made) == len(given) else _differentiated(compute(made))  # the call built a model


def _checked(variables: Sequence[Any]) -> list[Any]:
    given = list(variables)
    if not given:
        raise InvalidInputError(
            "value_and_grad was given no variables",
            received="an empty list, as a model has before its layers are built",
            action="pass a function, lambda: model.trainable_variables; or begin the model with keras.Input",
        )
    for variable in given:
        if not isinstance(variable, keras.Variable):
            raise InvalidInputError(
                "value_and_grad differentiates by Keras variables",
                received=type(variable).__name__,
                action="pass model.trainable_variables; for pytrees there is jax.value_and_grad",
            )
    return given


@final
class _Loss:
    """A loss as a function of the values of variables, so that JAX can differentiate it.

    Attributes:
        variables: the variables, without duplicates.
        written: the variables that the last call assigned.
    """

    def __init__(
        self, loss_fn: Callable[[], Any], given: Sequence[Any], *, has_aux: bool, outer: LiftedScope | None
    ) -> None:
        self.given = given
        self.variables = list({id(variable): variable for variable in given}.values())
        self.written: list[Any] = []
        self.has_aux = has_aux
        self.outer = outer
        self._loss_fn = loss_fn

    def __call__(self, values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
        given = {id(variable): value for variable, value in zip(self.variables, values, strict=True)}

        def assigned(variable: Any, value: Any) -> Any:
            return _replace(given[id(variable)], value) if id(variable) in given else value

        with LiftedScope(self.outer, writing=assigned) as scope:
            for variable, value in zip(self.variables, values, strict=True):
                scope.set(variable, value)
            result = self._loss_fn()
            loss, aux = result if self.has_aux else (result, None)
            self.written = list(scope.written.values())
            return _scalar(loss), (aux, [scope.get_current_value(variable) for variable in self.written])


@jax.custom_jvp
def _replace(variable: jax.Array, value: jax.Array) -> jax.Array:
    """Returns a value that is assigned to a variable, through which no gradient flows. Reading it reads the variable.

    So the gradient of a variable is the sum over all reads of it, as with ``tf.GradientTape``.
    """
    del variable
    return value


@_replace.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return primals[1], tangents[0]


def _differentiated(compute: _Loss) -> tuple[Any, list[Any]]:
    values = [variable.value for variable in compute.variables]
    (loss, (aux, assigned)), found = jax.value_and_grad(compute.__call__, has_aux=True)(values)
    for variable, value in zip(compute.written, assigned, strict=True):
        variable.assign(value)
    by_id = {id(variable): gradient for variable, gradient in zip(compute.variables, found, strict=True)}
    return ((loss, aux) if compute.has_aux else loss), [by_id[id(variable)] for variable in compute.given]


def _make_variables(compute: _Loss) -> None:
    """Creates the variables that layers create on their first call.

    Within a lifted function, the function's own discovery initializes them.
    """
    jax.eval_shape(compute.__call__, [variable.value for variable in compute.variables])
    if compute.outer is None and has_uninitialized_variables():
        initialize_all_variables()


def _scalar(loss: Any) -> jax.Array:
    array = jnp.asarray(loss)
    if array.ndim or not jnp.issubdtype(array.dtype, jnp.floating):
        raise InvalidInputError(
            "a loss to differentiate",
            received=f"{array.dtype}, shape {array.shape}",
            allowed="a float scalar",
            action="sum it: lockstep.compute_average_loss(per_example_loss, global_batch_size=...)",
        )
    return array


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> jax.Array:
    """Computes a replica's part of the average loss: the sum over all replicas is the average over the global batch.

    Like ``tf.nn.compute_average_loss``, it sums the losses of this replica's examples and divides by the global batch
    size.

    Args:
        per_example_loss: the losses; float, of shape (rows of this replica, ...).
        sample_weight: a weight for each example, broadcast to the losses from the left. If the weights have one dim
            more than the losses, of size 1 and at the end, it is dropped, as ``tf.nn`` does.
        global_batch_size: the number of examples of the global batch, a number or an array. By default, this replica's
            rows times the replicas of this step, which is also right for uneven batches.

    Returns:
        A scalar of the losses' dtype.

    Raises:
        InvalidInputError: the losses are a scalar, the weights have more dims than the losses, or the batch size is not
            positive.
    """
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise InvalidInputError(
            "compute_average_loss takes a loss for each example",
            received="a scalar",
            action='make the loss function with reduction="none"',
        )
    if sample_weight is not None:
        weights = jnp.asarray(sample_weight, losses.dtype)
        if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        if weights.ndim > losses.ndim:
            raise InvalidInputError("sample_weight", received=weights.shape, allowed=f"dims of {losses.shape}")
        losses = losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    if global_batch_size is None:
        global_batch_size = losses.shape[0] * _num_replicas()
    elif not isinstance(global_batch_size, Tracer) and global_batch_size < 1:
        raise InvalidInputError("global_batch_size", received=global_batch_size, allowed="1 or more")
    return jnp.sum(losses) / global_batch_size


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """Divides a regularization loss by the number of replicas, because every replica adds it.

    This is ``tf.nn.scale_regularization_loss``.

    Args:
        regularization_loss: an array, or a list of scalars such as ``model.losses``.

    Returns:
        A scalar.
    """
    total = sum((jnp.sum(jnp.asarray(part)) for part in jax.tree.leaves(regularization_loss)), jnp.zeros(()))
    return total / _num_replicas()


def _num_replicas() -> int:
    context = active_replica_context()
    return 1 if context is None else context.num_replicas_in_sync
