"""The formats of exported models: writing a model, and running what was written."""

from __future__ import annotations

import enum
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import keras
import numpy as np

from lockstep.errors import ConfigError
from lockstep.serving.model import LoadedModel
from lockstep.serving.model_files import EXPORTED_SUFFIX, SIGNATURE_SUFFIX
from lockstep.serving.signature import Signature

PLATFORMS: Final = ("cpu", "cuda", "tpu")
"""JAX's names of the platforms that an exported program runs on."""
BATCH: Final = "batch"

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Runs an exported model: one array for each input, in their order, to one array for each output."""


class Format(enum.StrEnum):
    """A format of exported models."""

    SAVED_MODEL = "saved_model"
    ONNX = "onnx"
    STABLEHLO = "stablehlo"

    @property
    def suffix(self) -> str:
        """The end of the name of an exported file or folder."""
        if self is Format.STABLEHLO:
            return EXPORTED_SUFFIX
        return "_saved_model" if self is Format.SAVED_MODEL else f".{self}"

    @property
    def files(self) -> tuple[str, ...]:
        """What the names of the exported files, or of the folder, add to its path. The path itself is the last one."""
        return (SIGNATURE_SUFFIX, "") if self is Format.STABLEHLO else ("",)

    def check_packages(self) -> None:
        """Checks that the packages that write the format, and run what was written, are installed.

        Raises:
            ConfigError: a package is missing.
        """
        packages = _packages(self)
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"exporting to {self} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
                "not installed",
                action=f"run: pip install {' '.join(missing)}",
            )

    def write(self, model: LoadedModel, path: Path) -> None:
        """Writes a model to a new file, or a new folder for a SavedModel. A StableHLO program has a file beside it.

        Raises:
            Exception: of any class, from the package that writes the format: the model has something that the format
                does not.
        """
        if self is Format.STABLEHLO:
            path.write_bytes(_stablehlo(model))
            path.with_name(path.name + SIGNATURE_SUFFIX).write_text(_names(model).to_json(), encoding="utf-8")
        elif self is Format.SAVED_MODEL:
            options = {"native_serialization": True, "native_serialization_platforms": PLATFORMS}
            model.keras_model.export(path, format="tf_saved_model", verbose=False, jax2tf_kwargs=options)
        else:
            # Without a signature, Keras refuses a model that was loaded and not called since.
            model.keras_model.export(path, format="onnx", verbose=False, input_signature=_signature(model))

    def open(self, path: Path, *, model: LoadedModel) -> Run:
        """Returns a function that runs what was written, without Keras.

        Args:
            path: the file or folder.
            model: the original, for the structure of its inputs.
        """
        if self is Format.STABLEHLO:
            return _open_stablehlo(path, model)
        return _open_saved_model(path, model) if self is Format.SAVED_MODEL else _open_onnx(path)


def _packages(to: Format) -> tuple[str, ...]:
    if to is Format.STABLEHLO:
        return ("flatbuffers",)  # which JAX serializes with, but does not install
    if to is Format.SAVED_MODEL:
        return ("tensorflow",)
    # Keras exports to ONNX through TensorFlow up to version 3.13.
    is_direct = tuple(int(part) for part in keras.__version__.split(".")[:2]) >= (3, 14)
    return ("jax2onnx", "onnxruntime") if is_direct else ("tensorflow", "tf2onnx", "onnxruntime")


def _signature(model: LoadedModel) -> list[Any]:
    def spec(tensor: keras.KerasTensor) -> keras.InputSpec:
        return keras.InputSpec(shape=(None, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name)

    return [keras.tree.map_structure(spec, model.structure)]


def _stablehlo(model: LoadedModel) -> bytes:
    scope = jax.export.SymbolicScope()
    names = _dim_names()
    shapes = []
    for spec in model.inputs:
        dims = (BATCH, *(next(names) if size is None else str(size) for size in spec.shape))
        shapes.append(jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"({', '.join(dims)},)", scope=scope), spec.dtype))
    net = model.keras_model
    trainable = [variable.value for variable in net.trainable_variables]
    other = [variable.value for variable in net.non_trainable_variables]

    def predict(inputs: Any) -> Any:
        return net.stateless_call(trainable, other, inputs, training=False)[0]

    inputs = keras.tree.pack_sequence_as(model.structure, shapes)
    return bytes(jax.export.export(jax.jit(predict), platforms=PLATFORMS)(inputs).serialize())


def _names(model: LoadedModel) -> Signature:
    """Returns the names of a model's inputs and outputs in JAX's order, which sorts the keys of dictionaries."""
    specs = keras.tree.pack_sequence_as(model.structure, list(model.inputs))
    names = keras.tree.pack_sequence_as(model.output_structure, list(model.output_names))
    return Signature.of(tuple(jax.tree_util.tree_leaves(specs)), tuple(jax.tree_util.tree_leaves(names)))


def _dim_names() -> Iterator[str]:
    number = 1
    while True:
        yield f"dim_{number}"
        number += 1


def _open_stablehlo(path: Path, model: LoadedModel) -> Run:
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    call = jax.jit(exported.call)

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = call(keras.tree.pack_sequence_as(model.structure, list(arrays)))
        return [np.asarray(output) for output in keras.tree.flatten(outputs)]

    return run


def _open_saved_model(path: Path, model: LoadedModel) -> Run:
    tensorflow: Any = importlib.import_module("tensorflow")  # an optional package
    loaded = tensorflow.saved_model.load(str(path))

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [tensorflow.constant(array) for array in arrays]
        outputs = loaded.serve(keras.tree.pack_sequence_as(model.structure, tensors))
        return [output.numpy() for output in keras.tree.flatten(outputs)]

    return run


def _open_onnx(path: Path) -> Run:
    onnxruntime: Any = importlib.import_module("onnxruntime")  # an optional package
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, arrays, strict=True)))

    return run
