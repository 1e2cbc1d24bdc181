"""A saved Keras model, compiled for a few batch sizes and run on arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast, final

import jax
import keras
import numpy as np

from lockstep.errors import LockstepError, ModelError
from lockstep.serving.images import num_channels_of
from lockstep.serving.instances import Arrays, InputSpec, OutputSpec
from lockstep.serving.model_files import SUFFIX

SIZE_STEP: Final = 2

_MAX_SCALE_OF_PIXELS: Final = 1 / 100
_KEEP_VALUES: Final = (
    keras.layers.InputLayer,
    keras.layers.Resizing,
    keras.layers.CenterCrop,
    keras.layers.RandomCrop,
    keras.layers.RandomFlip,
    keras.layers.RandomRotation,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
)
"""Layers that only move pixels, or that do nothing in a prediction."""


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Returns the batch sizes to compile programs for: the powers of 2 below the maximum, and the maximum.

    A batch is padded to the next larger size. Fewer sizes mean fewer programs to compile; more sizes mean less padding.
    """
    sizes = [1]
    while sizes[-1] * SIZE_STEP < max_batch_size:
        sizes.append(sizes[-1] * SIZE_STEP)
    return (*sizes, max_batch_size) if max_batch_size > 1 else (1,)


@final
class LoadedModel:
    """A model that is ready to predict. Only one thread at a time may call `predict`.

    Args:
        model: a Keras model with known inputs: Functional, Sequential, or of another class with a saved build config.
        max_batch_size: the maximum number of instances in one run. Longer arrays take several runs.

    Raises:
        ModelError: the model's inputs are not known, or are not numbers.
    """

    def __init__(self, model: keras.Model, *, max_batch_size: int = 64) -> None:
        if not getattr(model, "inputs", None):
            model = _with_inputs(model)
        self._model = model
        inputs = model.inputs
        sequential = isinstance(model, keras.Sequential)
        self._structure = structure = inputs[0] if sequential else model.input
        tensors = keras.tree.flatten_with_path(structure)
        rescales = len(tensors) == 1 and rescales_pixels(model)
        self._specs = tuple(_spec(path, tensor, rescales_pixels=rescales) for path, tensor in tensors)
        outputs = model.outputs[0] if sequential else model.output
        self._output_names = _output_names(model, outputs)
        self._outputs = tuple(map(_output_spec, self._output_names, keras.tree.flatten(outputs)))
        self._sizes = batch_sizes(max_batch_size)
        self._trainable = [variable.value for variable in model.trainable_variables]
        self._other = [variable.value for variable in model.non_trainable_variables]

        def forward(trainable: list[Any], other: list[Any], arrays: list[Any]) -> list[Any]:
            values = keras.tree.pack_sequence_as(structure, arrays)
            outputs_and_state = model.stateless_call(trainable, other, values, training=False)
            return keras.tree.flatten(outputs_and_state[0])

        self._forward = jax.jit(forward)
        self._programs: dict[int, Callable[..., list[Any]]] = {}

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        max_batch_size: int = 64,
        display_url: str | None = None,
        prepare: Callable[[Path], None] | None = None,
    ) -> LoadedModel:
        """Loads a ``.keras`` file. Files that contain code are rejected (Keras's safe mode).

        Args:
            path: the path of the file.
            max_batch_size: the maximum number of instances in one run.
            display_url: the URL of the model in error messages; the path by default.
            prepare: called with the file before it is loaded; registers the classes that the model needs with Keras.

        Raises:
            ModelError: the file does not exist, cannot be read, or is not a ``.keras`` file.
        """
        display_url = display_url or str(path)
        try:
            if not zipfile.is_zipfile(path):
                raise ModelError(f"it is not a {SUFFIX} file" if path.exists() else "there is no such file")
            if prepare is not None:
                prepare(path)
            model = keras.saving.load_model(path, safe_mode=True, compile=False)
        except LockstepError as error:
            raise ModelError(f"cannot load the model {display_url}: {error}") from None
        except Exception as error:
            # Keras raises many classes here, and its messages quote whole configurations.
            reason = (str(error) or type(error).__name__).replace(str(path), display_url).splitlines()[0]
            raise ModelError(f"cannot load the model {display_url}: {reason[:400]}") from error
        return cls(cast("keras.Model", model), max_batch_size=max_batch_size)

    @property
    def keras_model(self) -> keras.Model:
        """The model itself, Functional or Sequential."""
        return self._model

    @property
    def structure(self) -> Any:
        """The structure of the model's inputs: a tensor, or a list, tuple or dictionary of them."""
        return self._structure

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The specifications of the model's inputs."""
        return self._specs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the model's outputs."""
        return self._output_names

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The specifications of the model's outputs."""
        return self._outputs

    @property
    def max_batch_size(self) -> int:
        """The maximum number of instances in one run."""
        return self._sizes[-1]

    def warm_up(self) -> None:
        """Compiles the programs of all batch sizes at the same time, if the shape of an instance is known in advance.

        Raises:
            ModelError: the model cannot be compiled or run.
        """
        if not all(spec.is_fixed for spec in self._specs):
            return
        zeros = {
            size: [np.zeros((size, *cast("tuple[int, ...]", spec.shape)), spec.dtype) for spec in self._specs]
            for size in self._sizes
        }
        try:
            lowered = [self._forward.lower(self._trainable, self._other, arrays) for arrays in zeros.values()]
            with ThreadPoolExecutor(os.cpu_count()) as executor:
                compiled = executor.map(lambda program: program.compile(), lowered)
                self._programs = dict(zip(zeros, compiled, strict=True))
        except Exception as error:
            raise _not_run(error) from error
        for arrays in zeros.values():
            self._run({spec.name: array for spec, array in zip(self._specs, arrays, strict=True)})

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the model. The result of a row does not depend on the other rows.

        Args:
            arrays: arrays of shape ``[n, *shape]`` by input name, with n at least 1.

        Returns:
            Arrays of shape ``[n, ...]`` by output name. Floats have at least 32 bits.

        Raises:
            ModelError: the model could not be run on the arrays.
        """
        num_rows = len(arrays[self._specs[0].name])
        step = self.max_batch_size
        parts = [
            self._run({name: array[start : start + step] for name, array in arrays.items()})
            for start in range(0, num_rows, step)
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self._output_names}

    def _run(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        num_rows = len(arrays[self._specs[0].name])
        size = next(size for size in self._sizes if size >= num_rows)
        # Padded with the last row instead of zeros, because the model certainly accepts its values.
        padding = size - num_rows
        padded = [np.concatenate([a, np.repeat(a[-1:], padding, 0)]) if padding else a for a in self._ordered(arrays)]
        program = self._programs.get(size, self._forward)
        try:
            outputs = program(self._trainable, self._other, padded)
            found = [np.asarray(output)[:num_rows] for output in outputs]
        except Exception as error:
            raise _not_run(error) from error
        return {name: _plain(array) for name, array in zip(self._output_names, found, strict=True)}

    def _ordered(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [arrays[spec.name] for spec in self._specs]


def _not_run(error: Exception) -> ModelError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ModelError(f"the model could not be run: {reason[:400]}")


def _with_inputs(model: keras.Model) -> keras.Model:
    """Returns a model of another class as a Functional model, using the shapes that it was built for.

    Raises:
        ModelError: the model does not have these shapes, or cannot be called on values of these shapes.
    """
    shapes = (model.get_build_config() or {}).get("input_shape")
    refusal = ModelError(
        "the model does not say what its inputs are",
        received=type(model).__name__,
        allowed="a Functional or Sequential model with its Input, or one whose call() has one argument beside training "
        "and mask, and that was built before it was saved",
    )
    if not shapes:
        raise refusal
    try:
        if isinstance(shapes, dict):
            named = cast("dict[str, list[int | None]]", shapes)
            inputs: Any = {name: keras.Input(shape[1:], name=name) for name, shape in named.items()}
        elif isinstance(shapes[0], list | tuple):
            inputs = [keras.Input(shape[1:]) for shape in shapes]
        else:
            inputs = keras.Input(shapes[1:])
        return keras.Model(inputs, model(inputs, training=False))
    except Exception as error:  # the model's own code may raise anything
        raise refusal from error


def rescales_pixels(model: keras.Model) -> bool:
    """Returns whether a model first scales pixels down, so that its input values are pixels from 0 to 255.

    A ``Rescaling`` layer that multiplies by 1/255 or 1/127.5 takes pixels; one that multiplies by 2 does not.

    Args:
        model: a Functional or Sequential model with one input.
    """
    for layer in model.layers:
        if isinstance(layer, keras.layers.Rescaling):
            return bool(np.all(np.abs(np.asarray(layer.scale, "float64")) <= _MAX_SCALE_OF_PIXELS))
        if isinstance(layer, keras.Model) and getattr(layer, "inputs", None):
            return rescales_pixels(layer)
        if not isinstance(layer, _KEEP_VALUES):
            return False
    return False


def _spec(path: tuple[object, ...], tensor: keras.KerasTensor, *, rescales_pixels: bool) -> InputSpec:
    name = path[-1] if path and isinstance(path[-1], str) else tensor.name
    try:
        # By default, JAX stores 64-bit numbers in 32 bits. Values that do not fit are rejected when they are read.
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(tensor.dtype))
    except TypeError:
        raise ModelError(f"input {name} of the model is not numeric", received=tensor.dtype) from None
    # Small floats that NumPy lacks (bfloat16) are read as float32, and the model rounds them itself.
    read_dtype = dtype.name if dtype.kind in "biuf" else "float32"
    shape = tuple(tensor.shape[1:])
    takes_pixels = num_channels_of(shape) is not None and (
        read_dtype == "uint8" or (np.dtype(read_dtype).kind == "f" and rescales_pixels)
    )
    return InputSpec(name=str(name), shape=shape, dtype=read_dtype, takes_pixels=takes_pixels)


def _output_names(model: keras.Model, structure: object) -> tuple[str, ...]:
    flat = keras.tree.flatten_with_path(structure)
    paths = [path for path, _ in flat]
    if all(path and isinstance(path[-1], str) for path in paths):
        return tuple(str(path[-1]) for path in paths)
    names = tuple(str(name) for name in getattr(model, "output_names", None) or ["output"])
    # One layer may have several outputs with the same name.
    return names if len(set(names)) == len(paths) else tuple(f"output_{index}" for index in range(len(paths)))


def _output_spec(name: str, tensor: keras.KerasTensor) -> OutputSpec:
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(tensor.dtype))
    is_plain = dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize >= 4)
    return OutputSpec(name=name, shape=tuple(tensor.shape[1:]), dtype=dtype.name if is_plain else "float32")


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biu" or array.dtype.itemsize >= 4 else array.astype(np.float32)
