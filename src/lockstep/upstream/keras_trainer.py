"""Keras's JAX trainer: its epoch iterator, and the state that its loops take from a model while they run."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import keras
from keras.src.backend.jax.trainer import JAXEpochIterator

_GROUPS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
_EVALUATED = ("trainable_variables", "non_trainable_variables", "metrics_variables")


class AbstractEpochIterator(JAXEpochIterator):
    """Keras's iterator over the executions of an epoch, with names for what it asks of itself."""

    def read(self) -> Iterator[Any]:
        """Begins a pass over the data: an iterator over batches, on the devices where a step takes them."""
        return super()._get_iterator()

    def run_epoch(self) -> Iterator[Any]:
        """Begins an epoch: an iterator over (first step, last step, iterator over the execution's batches)."""
        return super()._enumerate_iterator()

    def warn_of_end(self) -> None:
        """Warns that the data has ended before the epoch."""
        super()._interrupted_warning()

    @final
    def read_batches(self) -> Iterator[Any]:
        """Begins a pass over the data, batch by batch, as the data gives them."""
        return iter(self.data_adapter.get_jax_iterator())

    @property
    @final
    def endless(self) -> Iterator[Any] | None:
        """The iterator that goes on from epoch to epoch, where ``steps_per_epoch`` is given."""
        return self._current_iterator

    @endless.setter
    def endless(self, batches: Iterator[Any]) -> None:
        self._current_iterator = batches

    @final
    def _get_iterator(self) -> Iterator[Any]:
        return self.read()

    @final
    def _enumerate_iterator(self) -> Iterator[Any]:
        return self.run_epoch()

    @final
    def _interrupted_warning(self) -> None:
        self.warn_of_end()


def running_state(model: Any) -> list[Any]:
    """Returns the arrays that the last step of a model's running loop has returned; empty where none has run."""
    # Keras has wrapped the state in containers of its own, which JAX would take for leaves.
    return keras.tree.flatten(getattr(model, "_jax_state", None))


def put_back(model: Any, state: Sequence[Any]) -> None:
    """Gives a model's variables their values again, which Keras's loops take away for as long as they run.

    For who ends a loop by an error: afterwards the model would be broken.

    Args:
        model: the model.
        state: what the loop's last step was given: values of trainable, non-trainable, optimizer's and metrics'
            variables; of evaluation there is none of the optimizer's, of prediction the first two alone.
    """
    names = _GROUPS if len(state) == len(_GROUPS) else _EVALUATED
    model._jax_state = dict(zip(names, state, strict=False))
    model.jax_state_sync()


def set_initial_epoch(model: Any, epoch: int) -> None:
    """Has the running ``fit`` begin with an epoch, as Keras's own `BackupAndRestore` does."""
    model._initial_epoch = epoch


def build_with(model: Any, batch: Any) -> None:
    """Builds what of a model, its compiled losses and metrics and its optimizer is not built, from a batch."""
    build = getattr(model, "_maybe_symbolic_build", model._symbolic_build)
    build(data_batch=batch)


def takes_training(model: Any) -> bool:
    """Whether a model's ``call`` has an argument ``training``."""
    return bool(model._call_has_training_arg)


def compute_loss(model: Any, **arguments: Any) -> Any:
    """Returns a model's loss as its own steps compute it: by `Model.compute_loss`, whatever arguments that takes."""
    return model._compute_loss(**arguments)


def loss_tracker_of(model: Any) -> Any:
    """Returns the metric that a model reports as "loss"."""
    return model._loss_tracker


def compiled_loss_of(model: Any) -> Any:
    """Returns what ``compile`` made of ``loss``; None where there is none."""
    return getattr(model, "_compile_loss", None)


def compiled_metrics_of(model: Any) -> Any:
    """Returns what ``compile`` made of ``metrics`` and ``weighted_metrics``; None where there is none."""
    return getattr(model, "_compile_metrics", None)
