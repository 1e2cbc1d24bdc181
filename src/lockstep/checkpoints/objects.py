"""Checkpoints of named objects, by the names of ``tf.train``: models, optimizers, metrics, variables."""

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
    """What `Checkpoint.restore` has found; its methods are those of the status that ``tf.train`` returns.

    Attributes:
        missing: the names of tracked objects that the checkpoint does not have; they are as they were.
        unused: names in the checkpoint that nothing is tracked under.
    """

    def __init__(self, *, missing: list[str], unused: list[str]) -> None:
        self.missing = missing
        self.unused = unused

    def expect_partial(self) -> Self:
        """Takes what was found for enough."""
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Checks that the checkpoint had every tracked object.

        Raises:
            InvalidInputError: it had not.
        """
        if self.missing:
            raise InvalidInputError("the checkpoint lacks objects that are tracked", received=", ".join(self.missing))
        return self

    def assert_consumed(self) -> Self:
        """Checks that both have the same objects.

        Raises:
            InvalidInputError: they have not.
        """
        if self.unused:
            raise InvalidInputError("the checkpoint has objects that are not tracked", received=", ".join(self.unused))
        return self.assert_existing_objects_matched()


@final
class Checkpoint:
    """The values of objects under names, as ``tf.train.Checkpoint`` keeps them.

    The variables of all of them are saved, under any strategy, and given back under any other. In a job of several
    processes every one calls `save` and `restore`. The files are those of `CheckpointDirectory`, which says who writes
    and reads them: a folder for each number.

    Args:
        objects: models, layers, optimizers, metrics and variables by name; of a compiled model the optimizer, too.

    Raises:
        InvalidInputError: an object is something else.
    """

    def __init__(self, **objects: Any) -> None:
        for name, value in objects.items():
            _variables_of(value, name=name)
            setattr(self, name, value)
        self._objects = objects
        self._num_saved = 0

    def save(self, file_prefix: str | os.PathLike[str]) -> str:
        """Writes a checkpoint beside those that are there, and returns when it is there.

        Args:
            file_prefix: a path whose folder gets it; its last part, such as "ckpt", has no meaning here.

        Returns:
            Where it is, for `restore`.
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
        """Gives the objects what a checkpoint has of them. An optimizer that is not built yet is built.

        Args:
            save_path: what `save` or `latest_checkpoint` returned; None changes nothing.

        Raises:
            MissingInputError: there is no such checkpoint.
            InvalidInputError: an object has other variables than the checkpoint has under its name.
        """
        if save_path is None:
            return RestoredObjects(missing=sorted(self._tracked()), unused=[])
        folder, _, number = os.fspath(save_path).rstrip("/").rpartition("/")
        if not number.isdigit() or not broadcast_number(int(open_path(save_path).exists())):
            raise MissingInputError(
                "there is no such checkpoint",
                received=os.fspath(save_path),
                action="take what save() or latest_checkpoint() returned",
            )
        with CheckpointDirectory(folder or ".", is_read_only=True) as directory:
            state = directory.restore(int(number))
        assert state is not None, "it is there"
        tracked = self._tracked()
        for name, value in tracked.items():
            if name in state.paths:
                self._give(name, value, state)
        self._num_saved = int(number)
        missing = [name for name in tracked if name not in state.paths]
        if missing:
            logger.warning("%s has no %s, which stay as they are", save_path, ", ".join(missing))
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

    def _give(self, name: str, value: Any, state: TrainingState) -> None:
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
        """Returns the model that an optimizer trains: the only one, or the one whose name its own begins with."""
        models = {name: value for name, value in self._objects.items() if isinstance(value, keras.Model)}
        named = [name for name in models if optimizer.startswith(name)]
        if len(models) == 1 or len(named) == 1:
            return models[named[0] if named else next(iter(models))]
        raise InvalidInputError(
            f"{optimizer!r} is not built, and nobody can say which variables it is of",
            received=sorted(models) or "no model",
            action=f"build it before: {optimizer}.build(model.trainable_variables)",
        )


@final
class CheckpointManager:
    """Checkpoints in a folder, the latest of which are kept, as ``tf.train.CheckpointManager`` keeps them.

    Args:
        checkpoint: what is saved.
        directory: the folder, the same in every process; local, or ``gs://``.
        max_to_keep: how many checkpoints stay; all by None.
        checkpoint_name: taken, as ``tf.train`` has it; the files are named by their numbers alone.
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
        """Where the latest checkpoint is; None where there is none. Every process has to ask."""
        return latest_checkpoint(self.directory)

    def save(self) -> str:
        """Writes a checkpoint, removes those that are too many, and returns when it is there.

        Returns:
            Where it is.
        """
        with CheckpointDirectory(self.directory, keep=self._keep) as directory:
            return self._checkpoint._save_to(directory)

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint where there is one.

        Returns:
            Where it is; None where there is none, and nothing was changed.
        """
        latest = self.latest_checkpoint
        self._checkpoint.restore(latest)
        return latest


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Finds the latest checkpoint in a folder; None where there is none. Every process has to ask.

    Args:
        checkpoint_dir: the folder.
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
        f"a checkpoint cannot keep {name!r}",
        received=type(value).__name__,
        allowed=_KINDS,
        action="numbers that change go into a keras.Variable",
    )
