"""Checkpoints of named objects (models, optimizers, metrics, variables), with the API of ``tf.train``."""

from __future__ import annotations

import logging
import os
from typing import Any, Final, Self, final

import jax
import keras

from lockstep.checkpoints.arrays import Array, assign_all
from lockstep.checkpoints.directory import CheckpointDirectory, open_path
from lockstep.checkpoints.sending import broadcast_number
from lockstep.checkpoints.state import Position, TrainingState, copies_of
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.strategies import fitting

logger = logging.getLogger(__name__)

_KEEP_ALL: Final = 2**31 - 1
_KINDS: Final = "models, layers, optimizers, metrics and variables of Keras"


@final
class RestoredObjects:
    """The result of `Checkpoint.restore`, with the methods of the status object that ``tf.train`` returns.

    Attributes:
        missing: the names of tracked objects that the checkpoint does not have. These objects are unchanged.
        unused: the names in the checkpoint under which no object is tracked.
    """

    def __init__(self, *, missing: list[str], unused: list[str]) -> None:
        self.missing = missing
        self.unused = unused

    def expect_partial(self) -> Self:
        """Accepts a partial restore. Checks nothing."""
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Checks that the checkpoint had every tracked object.

        Raises:
            InvalidInputError: an object is missing in the checkpoint.
        """
        if self.missing:
            raise InvalidInputError("the checkpoint lacks objects that are tracked", received=", ".join(self.missing))
        return self

    def assert_consumed(self) -> Self:
        """Checks that the checkpoint has exactly the tracked objects.

        Raises:
            InvalidInputError: an object is missing in the checkpoint, or is not tracked.
        """
        if self.unused:
            raise InvalidInputError("the checkpoint has objects that are not tracked", received=", ".join(self.unused))
        return self.assert_existing_objects_matched()


@final
class Checkpoint:
    """Saves and restores objects by name, like ``tf.train.Checkpoint``.

    The variables of all objects can be saved under one strategy and restored under another one. In a job of several
    processes, every process must call `save` and `restore`. The files are those of `CheckpointDirectory`, with a folder
    for each number; see there which process writes and reads what.

    Args:
        objects: models, layers, optimizers, metrics and variables by name. The optimizer of a compiled model is
            included.

    Raises:
        InvalidInputError: an object is of another kind.
    """

    def __init__(self, **objects: Any) -> None:
        for name, value in objects.items():
            _variables_of(value, name=name)
            setattr(self, name, value)
        self._objects = objects
        self._num_saved = 0

    def save(self, file_prefix: str | os.PathLike[str]) -> str:
        """Writes a checkpoint in addition to existing ones. Returns when it is written.

        Args:
            file_prefix: a path whose folder the checkpoint is written to. Its last part, such as "ckpt", is ignored.

        Returns:
            The path of the checkpoint, for `restore`.
        """
        with CheckpointDirectory(os.path.dirname(os.fspath(file_prefix)) or ".", keep=_KEEP_ALL) as directory:
            return self._save_to(directory)

    def _save_to(self, directory: CheckpointDirectory) -> str:
        self._num_saved = max(self._num_saved, broadcast_number(directory.latest_step()) or 0) + 1
        arrays: dict[str, dict[str, Array]] = {}
        paths: dict[str, list[str]] = {}
        for name, value in self._tracked().items():
            variables = _variables_of(value, name=name)
            arrays[name] = copies_of(variables)
            paths[name] = [variable.path for variable in variables]
        position = Position(epoch=0, batch=0, step=self._num_saved)
        directory.save(TrainingState(position=position, arrays=arrays, paths=paths, generators={}))
        directory.wait()
        return os.path.join(directory.url, str(self._num_saved))

    def restore(self, save_path: str | os.PathLike[str] | None) -> RestoredObjects:
        """Restores the objects' values from a checkpoint. Builds an optimizer that is not built yet.

        Args:
            save_path: a path that `save` or `latest_checkpoint` returned. If None, nothing is restored.

        Raises:
            MissingInputError: there is no such checkpoint.
            InvalidInputError: an object's variables differ from those that the checkpoint has under its name.
        """
        if save_path is None:
            return RestoredObjects(missing=sorted(self._tracked()), unused=[])
        folder, _, number = os.fspath(save_path).rstrip("/").rpartition("/")
        if not number.isdigit() or not broadcast_number(int(open_path(save_path).exists())):
            raise MissingInputError(
                "there is no such checkpoint",
                received=os.fspath(save_path),
                action="pass a path that save() or latest_checkpoint() returned",
            )
        with CheckpointDirectory(folder or ".", is_read_only=True) as directory:
            state = directory.restore(int(number))
        assert state is not None, "it is there"
        tracked = self._tracked()
        for name, value in tracked.items():
            if name in state.paths:
                self._restore_object(name, value, state)
        self._num_saved = int(number)
        missing = [name for name in tracked if name not in state.paths]
        if missing:
            logger.warning("%s does not contain %s; they keep their current values", save_path, ", ".join(missing))
        return RestoredObjects(missing=missing, unused=[name for name in state.paths if name not in tracked])

    def _tracked(self) -> dict[str, Any]:
        """Returns the objects by name, with the optimizers of compiled models."""
        found = dict(self._objects)
        known = {id(value) for value in found.values()}
        for name, value in self._objects.items():
            optimizer = getattr(value, "optimizer", None)
            if isinstance(value, keras.Model) and optimizer is not None and id(optimizer) not in known:
                found[f"{name}.optimizer"] = optimizer
        return found

    def _restore_object(self, name: str, value: Any, state: TrainingState) -> None:
        saved = state.paths[name]
        if isinstance(value, keras.optimizers.Optimizer) and len(saved) > len(value.variables):
            model = self._model_of(name)
            with fitting.scope_of(model), keras.name_scope(value.name, caller=value):
                value.build(model.trainable_variables)
        variables = _variables_of(value, name=name)
        arrays = state.arrays.get(name, {})
        shapes = [arrays[str(number)].shape if str(number) in arrays else (0,) for number in range(len(saved))]
        wanted = [tuple(variable.shape) for variable in variables]
        if [shape for shape in shapes if 0 not in shape] != [shape for shape in wanted if 0 not in shape]:
            raise InvalidInputError(
                f"the checkpoint has other variables under {name!r}",
                received=f"{len(saved)} variables, of shapes {shapes[:3]}...",
                allowed=f"{len(wanted)}, of shapes {wanted[:3]}...",
                action="restore into the same object, after it is built",
            )
        assign_all((variable, arrays[str(n)]) for n, variable in enumerate(variables) if str(n) in arrays)

    def _model_of(self, optimizer: str) -> Any:
        """Returns the model of an optimizer: the only model, or the one whose name begins the optimizer's name."""
        models = {name: value for name, value in self._objects.items() if isinstance(value, keras.Model)}
        named = [name for name in models if optimizer.startswith(name)]
        if len(models) == 1 or len(named) == 1:
            return models[named[0] if named else next(iter(models))]
        raise InvalidInputError(
            f"{optimizer!r} is not built, and its model cannot be determined",
            received=sorted(models) or "no model",
            action=f"build it before: {optimizer}.build(model.trainable_variables)",
        )


@final
class CheckpointManager:
    """Keeps the latest checkpoints in a folder, like ``tf.train.CheckpointManager``.

    Args:
        checkpoint: the objects to save.
        directory: the folder of the checkpoints, the same in every process: a local path or a ``gs://`` URL.
        max_to_keep: the number of checkpoints to keep; None to keep all.
        checkpoint_name: accepted for compatibility with ``tf.train``, but ignored: folders are named by number only.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        checkpoint_name: str = "ckpt",
    ) -> None:
        del checkpoint_name
        self._checkpoint = checkpoint
        self.directory = os.fspath(directory)
        self._keep = _KEEP_ALL if max_to_keep is None else max_to_keep

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the latest checkpoint; None if there is none. Every process must read this property."""
        return latest_checkpoint(self.directory)

    def save(self) -> str:
        """Writes a checkpoint, and removes the oldest ones beyond ``max_to_keep``. Returns when it is written.

        Returns:
            The path of the checkpoint.
        """
        with CheckpointDirectory(self.directory, keep=self._keep) as directory:
            return self._checkpoint._save_to(directory)

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint, if there is one.

        Returns:
            The path of the checkpoint; None if there is none, in which case nothing was changed.
        """
        latest = self.latest_checkpoint
        self._checkpoint.restore(latest)
        return latest


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Returns the path of the latest checkpoint in a folder; None if there is none. Every process must call this.

    Args:
        checkpoint_dir: the folder of the checkpoints.
    """
    latest: int | None = None
    if jax.process_index() == 0 and open_path(checkpoint_dir).exists():
        with CheckpointDirectory(checkpoint_dir, is_read_only=True) as directory:
            latest = directory.latest_step()
    latest = broadcast_number(latest)
    return None if latest is None else os.path.join(str(open_path(checkpoint_dir)), str(latest))


def _variables_of(value: Any, *, name: str) -> list[Any]:
    if isinstance(value, keras.Variable):
        return [value]
    if isinstance(value, keras.layers.Layer):
        return [*value.trainable_variables, *value.non_trainable_variables]
    if isinstance(value, keras.optimizers.Optimizer | keras.metrics.Metric):
        return list(value.variables)
    raise InvalidInputError(
        f"a checkpoint cannot store {name!r}",
        received=type(value).__name__,
        allowed=_KINDS,
        action="wrap it in a keras.Variable",
    )
