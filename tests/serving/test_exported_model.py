"""A program of ``jax.export`` is served as the model that it was exported from, and says why if it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from lockstep.errors import ModelError
from lockstep.serving.exported_model import ExportedModel
from lockstep.serving.exporting import Format, export_model
from lockstep.serving.exporting.export import random_inputs
from lockstep.serving.model import LoadedModel
from lockstep.serving.opening import open_model


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def images() -> keras.Model:
    image = keras.Input((4, 5, 3), dtype="uint8", name="image")
    hidden = keras.layers.Conv2D(2, 3)(keras.layers.Rescaling(1 / 255)(image))
    return keras.Model(image, keras.layers.GlobalAveragePooling2D()(hidden))


def halves() -> keras.Model:
    given = keras.Input((3,), dtype="float16", name="given")
    return keras.Model(given, keras.layers.Dense(2, dtype="float16")(given))


def several() -> keras.Model:
    numbers, ids = keras.Input((4,), name="numbers"), keras.Input((None,), dtype="int32", name="ids")
    found = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(11, 2)(ids))
    both = keras.layers.Concatenate()([numbers, found])
    outputs = {"sure": keras.layers.Dense(1)(both), "score": keras.layers.Dense(2)(both)}
    return keras.Model({"numbers": numbers, "ids": ids}, outputs)


def listed() -> keras.Model:
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    one, two = keras.layers.Dense(1, name="one"), keras.layers.Dense(1, name="two")
    return keras.Model([left, right], [one(left), two(right)])


@pytest.mark.parametrize("make", [dense, images, halves, several, listed])
def test_what_was_exported_is_served_as_the_model_was(make: Callable[[], keras.Model], tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    original = make()
    original.save(tmp_path / "net.keras")
    loaded = LoadedModel.load(tmp_path / "net.keras", max_batch_size=4)
    made = export_model(tmp_path / "net.keras", to=Format.STABLEHLO, path=tmp_path / "net.stablehlo")
    assert made.size_bytes == sum((tmp_path / name).stat().st_size for name in ("net.stablehlo", "net.stablehlo.json"))
    served = open_model(tmp_path / "net.stablehlo", max_batch_size=4)
    served.warm_up()
    assert served.max_batch_size == 4
    assert sorted(map(str, served.inputs)) == sorted(map(str, loaded.inputs))
    assert sorted(served.output_names) == sorted(loaded.output_names)
    for size in (1, 3, 9):
        arrays = random_inputs(loaded, size=size, rng=np.random.default_rng(size))
        expected, found = loaded.predict(arrays), served.predict(arrays)
        for name, array in expected.items():
            tolerance = 1e-3 if make is halves else 1e-6
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)


def saved(tmp_path: Path, function: Callable[..., Any], *shapes: Any, **options: Any) -> Path:
    path = tmp_path / "net.stablehlo"
    path.write_bytes(bytes(jax.export.export(jax.jit(function), **options)(*shapes).serialize()))
    return path


def batch(*dims: int | None, dtype: Any = np.float32, name: str = "b") -> jax.ShapeDtypeStruct:
    shape = ", ".join([name, *(str(dim) for dim in dims)])
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"({shape},)", scope=SCOPE), dtype)


SCOPE = jax.export.SymbolicScope()


def test_a_program_of_a_fixed_size_gets_padded_batches(tmp_path: Path) -> None:
    fixed = jax.ShapeDtypeStruct((4, 2), np.float32)
    model = ExportedModel.load(saved(tmp_path, lambda x: x * 2, fixed), max_batch_size=64)
    model.warm_up()
    assert (model.max_batch_size, model.output_names) == (4, ("output",))
    assert [spec.to_json() for spec in model.inputs] == [{"name": "input", "shape": [2], "dtype": "float32"}]
    for size in (1, 4, 9):
        given = np.arange(2 * size, dtype="float32").reshape(size, 2)
        np.testing.assert_array_equal(model.predict({"input": given})["output"], 2 * given)


def test_without_a_signature_names_are_keys_or_numbers(tmp_path: Path) -> None:
    def by_key(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"sum": inputs["x"] + inputs["y"], "x": inputs["x"]}

    named = ExportedModel.load(saved(tmp_path, by_key, {"y": batch(2), "x": batch(2)}))
    assert [spec.name for spec in named.inputs] == ["x", "y"]
    assert set(named.output_names) == {"sum", "x"}
    numbered = ExportedModel.load(saved(tmp_path, lambda a, b: (a + b, a), batch(2), batch(2)))
    assert [spec.name for spec in numbered.inputs] == ["input_0", "input_1"]
    found = numbered.predict({"input_0": np.ones((3, 2), "float32"), "input_1": np.zeros((3, 2), "float32")})
    assert sorted(found) == ["output_0", "output_1"]


def test_small_floats_are_read_and_answered_in_32_bits(tmp_path: Path) -> None:
    model = ExportedModel.load(saved(tmp_path, lambda x: x + 1, batch(2, dtype=jnp.bfloat16)))
    assert model.inputs[0].dtype == "float32"
    (output,) = model.predict({"input": np.ones((3, 2), "float32")}).values()
    assert output.dtype == np.float32


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (lambda x: x.sum(), [(4, 2)], "an array of the program has no batch dimension"),
        (lambda x: x + 1, [()], "an array of the program has no batch dimension"),
        (lambda x, y: x + y[0], [(4, 2), (3, 2)], "an array of the program has no batch dimension"),
        (lambda: jnp.ones((2, 2)), [], "the program takes or returns nothing; received '0 inputs'"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, function: Callable[..., Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    path = saved(tmp_path, function, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes))
    with pytest.raises(ModelError, match="cannot load the model gs://b/net: ") as caught:
        ExportedModel.load(path, display_url="gs://b/net")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_complex_inputs_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: x.real, jax.ShapeDtypeStruct((4, 2), np.complex64))
    with pytest.raises(ModelError, match="input input of the program is not a real number; received 'complex64'"):
        ExportedModel.load(path)


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        ExportedModel.load(tmp_path / "none.stablehlo")
    for content in (b"", b"hello", b"\0" * 4096):
        (tmp_path / "text.stablehlo").write_bytes(content)
        with pytest.raises(ModelError, match=r"it is not a program of jax\.export") as caught:
            ExportedModel.load(tmp_path / "text.stablehlo")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("{", "net.stablehlo.json is not a signature: Invalid JSON"),
        ('{"inputs": []}', "net.stablehlo.json is not a signature: inputs: "),
        ({"more": 1}, "is not a signature: more: Extra inputs are not permitted"),
        ({"shape": [3]}, "the signature beside the program has other inputs"),
        ({"dtype": "int32"}, "the signature beside the program has other inputs"),
        ({"outputNames": ["a", "b"]}, "the signature beside the program has another number of outputs"),
    ],
)
def test_a_signature_that_does_not_fit_is_refused(tmp_path: Path, signature: Any, message: str) -> None:
    path = saved(tmp_path, lambda x: x * 2, batch(2))
    if isinstance(signature, dict):
        only = {"name": "x", "shape": [2], "dtype": "float32"}
        changed = {key: signature[key] for key in ("shape", "dtype") if key in signature}
        rest = {key: value for key, value in signature.items() if key not in changed}
        signature = json.dumps({"inputs": [only | changed], "outputNames": ["y"]} | rest)
    path.with_name("net.stablehlo.json").write_text(signature)
    with pytest.raises(ModelError) as caught:
        ExportedModel.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_exported_program_is_served_without_keras(tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: x * 2, batch(2))
    program = (
        "import sys, pathlib; from lockstep.serving.opening import open_model; "
        f"open_model(pathlib.Path({str(path)!r}), max_batch_size=2).warm_up(); print('keras' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert found.stdout.strip() == "False"
