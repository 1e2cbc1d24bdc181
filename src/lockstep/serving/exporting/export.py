"""Exports a model, and compares what was exported with the original on random inputs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import keras
import numpy as np

from lockstep.errors import InvalidInputError, ModelError, StorageWriteError, counted
from lockstep.serving.exporting.formats import Format, Run
from lockstep.serving.instances import Arrays, InputSpec
from lockstep.serving.model import LoadedModel
from lockstep.serving.needed_code import needed_code
from lockstep.serving.package_code import import_own_layers, listed, missing_names

BATCH_SIZES: Final = (1, 2, 7)
"""The numbers of instances that an exported model is run on."""
TOLERANCE: Final = 1e-4
HALF_TOLERANCE: Final = 2e-2
"""The tolerance for models that compute with 16 bits."""
VARIABLE_SIZE: Final = 32
"""The size that a dimension of any size has in random inputs."""
SEED: Final = 0


@final
@dataclass(frozen=True, kw_only=True)
class Export:
    """An exported model.

    Attributes:
        path: the file or folder.
        size_bytes: the size of the file, or of all files of the folder, in bytes.
        max_difference: the largest absolute difference of a value from the original's.
        tolerance: the allowed difference: this much, plus this share of the original's value.
        batch_sizes: the numbers of instances that were compared.
    """

    path: Path
    size_bytes: int
    max_difference: float
    tolerance: float
    batch_sizes: tuple[int, ...] = BATCH_SIZES


def export_model(
    file: Path, *, to: Format, path: Path, display_url: str | None = None, import_code: Callable[[], None] | None = None
) -> Export:
    """Exports a ``.keras`` file, and checks the export against the original. Nothing is left if that fails.

    Args:
        file: the path of the file. Files that contain code are rejected (Keras's safe mode).
        to: the format.
        path: the file or folder to write. It must not exist.
        display_url: the URL of the model in error messages; the path by default.
        import_code: imports the modules with the model's own classes, before the model is loaded.

    Raises:
        ConfigError: a package that the format needs is not installed.
        InvalidInputError: the path exists already.
        ModelError: the model cannot be loaded or exported, or what was exported differs from it.
        StorageWriteError: the path cannot be written.
    """
    to.check_packages()
    for suffix in to.files:
        if os.path.lexists(other := path.with_name(path.name + suffix)):
            raise InvalidInputError("--output", received=str(other), allowed="a path that does not exist yet")

    def prepare(file: Path) -> None:
        if import_code is not None:
            import_code()
        _check_classes(file)

    model = LoadedModel.load(file, display_url=display_url, prepare=prepare)
    what = f"the model {display_url or file}"
    cases = _cases(model)
    try:
        # In the same folder, so that it can be renamed; it is removed if anything fails.
        with tempfile.TemporaryDirectory(prefix=".lockstep-export-", dir=path.parent) as folder:
            written = Path(folder) / f"model{to.suffix}"
            try:
                to.write(model, written)
                run = to.open(written, model=model)
            except OSError:
                raise
            except Exception as error:  # the packages raise many classes, with long messages
                raise ModelError(f"{what} cannot be exported to {to}: {_first_line(error)}") from error
            tolerance = _tolerance(model.keras_model)
            difference = _compare(model, run, cases=cases, tolerance=tolerance, what=f"{what}, exported to {to},")
            size_bytes = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
            for suffix in to.files:
                written.with_name(written.name + suffix).rename(path.with_name(path.name + suffix))
    except OSError as error:
        raise StorageWriteError(f"--output: {path} cannot be written: {error.strerror or error}") from None
    return Export(path=path, size_bytes=size_bytes, max_difference=difference, tolerance=tolerance)


def _check_classes(file: Path) -> None:
    needed = needed_code(file)
    import_own_layers(needed)
    if missing := missing_names(needed):
        raise ModelError(
            f"it needs {listed(missing)}, which {'is' if len(missing) == 1 else 'are'} not Keras's",
            action="name the module that defines and registers it with --module",
        )


def _cases(model: LoadedModel) -> list[tuple[Arrays, Arrays]]:
    """Returns random inputs of each batch size, and what the original predicts for them."""
    rng = np.random.default_rng(SEED)
    inputs = [random_inputs(model, size=size, rng=rng) for size in BATCH_SIZES]
    return [(arrays, model.predict(arrays)) for arrays in inputs]


def _compare(
    model: LoadedModel, run: Run, *, cases: Sequence[tuple[Arrays, Arrays]], tolerance: float, what: str
) -> float:
    """Returns the largest difference of an exported model from the original.

    Raises:
        ModelError: it cannot be run, or differs by more than the tolerance.
    """
    largest = 0.0
    for size, (inputs, expected) in zip(BATCH_SIZES, cases, strict=True):
        try:
            found = run([inputs[spec.name] for spec in model.inputs])
        except Exception as error:
            raise ModelError(f"{what} cannot be run on {counted(size, 'instance')}: {_first_line(error)}") from error
        largest = max(
            largest, _difference(found, expected, tolerance=tolerance, what=f"{what} for {counted(size, 'instance')}")
        )
    return largest


def _difference(
    found: Sequence[np.ndarray], expected: Mapping[str, np.ndarray], *, tolerance: float, what: str
) -> float:
    if len(found) != len(expected):
        raise ModelError(f"{what} has another number of outputs", received=len(found), allowed=str(len(expected)))
    largest = 0.0
    for (name, wanted), array in zip(expected.items(), found, strict=True):
        if array.shape != wanted.shape:
            raise ModelError(
                f"{what}: output {name} has another shape", received=list(array.shape), allowed=str(list(wanted.shape))
            )
        ours, theirs = wanted.astype(np.float64), array.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite values of both
            distance = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, np.abs(ours - theirs))
        largest = max(largest, float(np.max(distance, initial=0.0)))
        if not np.allclose(theirs, ours, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ModelError(
                f"{what}: output {name} differs from the original",
                received=float(f"{np.max(distance):.3g}"),
                allowed=f"a difference of {tolerance:g}, plus {tolerance:g} of the value",
                action="nothing was written",
            )
    return largest


def random_inputs(model: LoadedModel, *, size: int, rng: np.random.Generator) -> Arrays:
    """Returns random inputs for a model, by input name.

    Args:
        model: the model.
        size: the number of instances.
        rng: the source of randomness.
    """
    num_ids = min((layer.input_dim for layer in _layers(model.keras_model, keras.layers.Embedding)), default=2)
    return {spec.name: _random_input(spec, size=size, num_ids=num_ids, rng=rng) for spec in model.inputs}


def _random_input(spec: InputSpec, *, size: int, num_ids: int, rng: np.random.Generator) -> np.ndarray:
    shape = (size, *(VARIABLE_SIZE if dim is None else dim for dim in spec.shape))
    dtype = np.dtype(spec.dtype)
    if spec.takes_pixels or dtype == np.uint8:
        return rng.integers(0, 256, shape).astype(dtype)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else num_ids, shape).astype(dtype)


def _tolerance(model: keras.Model) -> float:
    dtypes = {str(layer.compute_dtype) for layer in _layers(model, keras.layers.Layer)}
    return HALF_TOLERANCE if dtypes & {"float16", "bfloat16"} else TOLERANCE


def _layers(model: keras.Model, kind: type) -> list[keras.Layer]:
    found: list[keras.Layer] = []
    for layer in model.layers:
        if isinstance(layer, kind):
            found.append(layer)
        if isinstance(layer, keras.Model):
            found += _layers(layer, kind)
    return found


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400]}" if lines else type(error).__name__
