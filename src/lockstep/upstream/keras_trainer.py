"""Keras's JAX trainer: its epoch iterator, and the state that its loops remove from a model while they run."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from keras.src.backend.jax.trainer import JAXEpochIterator

_GROUPS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
_EVALUATED = ("trainable_variables", "non_trainable_variables", "metrics_variables")


class AbstractEpochIterator(JAXEpochIterator):
    """Keras's iterator over the executions of an epoch, with public names for its private methods."""

    def read(self) -> Iterator[Any]:
        """Begins a pass over the data, and returns an iterator over batches that are on the devices."""
        return super()._get_iterator()

    def run_epoch(self) -> Iterator[Any]:
        """Begins an epoch, and returns an iterator over (first step, last step, iterator over the batches)."""
        return super()._enumerate_iterator()

    def warn_of_end(self) -> None:
        """Warns that the data has ended before the epoch."""
        super()._interrupted_warning()

    @final
    def read_batches(self) -> Iterator[Any]:
        """Begins a pass over the data, and returns an iterator over its batches as they are, not placed."""
        return iter(self.data_adapter.get_jax_iterator())

    @property
    @final
    def endless(self) -> Iterator[Any] | None:
        """The iterator that continues from epoch to epoch if ``steps_per_epoch`` is given."""
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
    """Returns the arrays that the last step of a model's running loop has returned; empty if no step has run."""
    groups = getattr(model, "_jax_state", None) or {}
    return [value for group in groups.values() for value in group]


def restore_variables(model: Any, state: Sequence[Any]) -> None:
    """Restores the values of a model's variables, which Keras's loops remove while they run.

    Call it before ending a loop with an error. Otherwise, the model could not be used afterwards.

    Args:
        model: the model.
        state: the state that was passed to the loop's last step: the values of trainable, non-trainable, optimizer's
            and metrics' variables. Evaluation has no optimizer's variables, and prediction only the first two groups.
    """
    names = _GROUPS if len(state) == len(_GROUPS) else _EVALUATED
    model._jax_state = dict(zip(names, state, strict=False))
    model.jax_state_sync()


def set_initial_epoch(model: Any, epoch: int) -> None:
    """Makes the running ``fit`` start at an epoch, as Keras's own `BackupAndRestore` does."""
    model._initial_epoch = epoch


def build_from_batch(model: Any, batch: Any) -> None:
    """Builds those parts of a model that are not built (layers, losses, metrics, optimizer), from a batch."""
    build = getattr(model, "_maybe_symbolic_build", model._symbolic_build)
    build(data_batch=batch)


def takes_training(model: Any) -> bool:
    """Whether a model's ``call`` has an argument ``training``."""
    return bool(model._call_has_training_arg)


def compute_loss(model: Any, **arguments: Any) -> Any:
    """Returns a model's loss as its own steps compute it: by `Model.compute_loss`, with the arguments that it takes."""
    return model._compute_loss(**arguments)


def loss_tracker_of(model: Any) -> Any:
    """Returns the metric that a model reports as "loss"."""
    return model._loss_tracker


def compiled_loss_of(model: Any) -> Any:
    """Returns the object that ``compile`` made from ``loss``; None if there is none."""
    return getattr(model, "_compile_loss", None)


def compiled_metrics_of(model: Any) -> Any:
    """Returns the object that ``compile`` made from ``metrics`` and ``weighted_metrics``; None if there is none."""
    return getattr(model, "_compile_metrics", None)
