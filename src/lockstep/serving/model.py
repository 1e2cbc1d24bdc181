"""A saved Keras model, compiled for a few batch sizes and run on arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast, final

import jax
import keras
import numpy as np

from lockstep.errors import LockstepError, ModelError
from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.images import num_channels_of
from lockstep.serving.instances import Arrays, InputSpec, OutputSpec, plain_dtype
from lockstep.serving.model_files import SUFFIX
from lockstep.serving.needed_code import text_layers
from lockstep.serving.programs import Programs, batch_sizes

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


@final
class LoadedModel(AbstractModel):
    """A Keras model that is ready to predict. Only one thread at a time may call `predict`.

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
        self._output_structure = model.outputs[0] if sequential else model.output
        self._output_names = _output_names(model, self._output_structure)
        tensors = keras.tree.flatten(self._output_structure)
        self._outputs = tuple(map(_output_spec, self._output_names, tensors))

        def forward(trainable: list[Any], other: list[Any], arrays: list[Any]) -> list[Any]:
            values = keras.tree.pack_sequence_as(structure, arrays)
            outputs_and_state = model.stateless_call(trainable, other, values, training=False)
            return keras.tree.flatten(outputs_and_state[0])

        self._programs = Programs(
            forward,
            constants=(
                [variable.value for variable in model.trainable_variables],
                [variable.value for variable in model.non_trainable_variables],
            ),
            inputs=self._specs,
            output_names=self._output_names,
            sizes=batch_sizes(max_batch_size),
        )

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
            _check_has_no_text(path)
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
    def output_structure(self) -> Any:
        """The structure of the model's outputs, in the same form."""
        return self._output_structure

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
        return self._programs.max_batch_size

    def warm_up(self) -> None:
        """Compiles the programs of all batch sizes; see `AbstractModel.warm_up`."""
        self._programs.warm_up()

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the model; see `AbstractModel.predict`."""
        return self._programs.predict(arrays)


def _check_has_no_text(path: Path) -> None:
    if found := text_layers(path):
        raise ModelError(
            f"{' and '.join(found)} computes with text in TensorFlow, which prediction servers do not run",
            allowed="inputs that are numbers",
            action="deploy the part of the model behind it with a custom prediction routine that converts the text "
            "(--prediction-class)",
        )


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
    return OutputSpec(name=name, shape=tuple(tensor.shape[1:]), dtype=plain_dtype(dtype))
