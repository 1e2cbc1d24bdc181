"""A saved model predicts what it predicted before it was saved, whatever it is batched with."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from lockstep.errors import ModelError
from lockstep.serving.model import LoadedModel
from lockstep.serving.needed_code import text_layers
from lockstep.serving.programs import batch_sizes


def images(num: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (num, 6, 4), np.uint8)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))],
)
def test_programs_of_a_few_sizes_are_compiled(largest: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(largest) == sizes


def test_predictions_are_those_of_the_model(image_model: keras.Model, model_url: str) -> None:
    model = LoadedModel.load(Path(model_url), max_batch_size=8)
    model.warm_up()
    assert [spec.to_json() for spec in model.inputs] == [
        {"name": model.inputs[0].name, "shape": [6, 4], "dtype": "uint8"}
    ]
    batch = images(21)
    expected = image_model.predict(batch, verbose=0)
    (name,) = model.output_names
    for num in (1, 2, 8, 9, 21):
        found = model.predict({model.inputs[0].name: batch[:num]})[name]
        assert found.shape == (num, 3)
        np.testing.assert_allclose(found, expected[:num], rtol=1e-6, atol=1e-7)


def test_a_rows_result_does_not_depend_on_the_rows_beside_it(model_url: str) -> None:
    model = LoadedModel.load(Path(model_url), max_batch_size=8)
    (name,), key = model.output_names, model.inputs[0].name
    batch = images(8)
    other = np.concatenate([batch[:3], 255 - batch[3:]])
    np.testing.assert_array_equal(model.predict({key: batch})[name][:3], model.predict({key: other})[name][:3])


@pytest.mark.filterwarnings(
    # Keras asks for the model's 64 bits, which JAX computes in 32.
    "ignore:Explicitly requested dtype int64:UserWarning"
)
def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    left = keras.Input((2,), name="left")
    right = keras.Input((None,), name="right", dtype="int64")
    total = keras.layers.Dense(3, name="total")(left)
    count = keras.layers.Embedding(5, 2, name="count")(right)
    for outputs, names in (([total, count], ("total", "count")), ({"a": total, "b": count}, ("a", "b"))):
        original = keras.Model([left, right], outputs)
        original.save(tmp_path / "several.keras")
        model = LoadedModel.load(tmp_path / "several.keras", max_batch_size=4)
        model.warm_up()
        # That is the range that instances are checked against.
        assert [(s.name, s.shape, s.dtype) for s in model.inputs] == [
            ("left", (2,), "float32"),
            ("right", (None,), "int32"),
        ]
        values = {"left": np.ones((3, 2), "float32"), "right": np.array([[0, 1], [2, 3], [4, 0]], "int32")}
        found = model.predict(values)
        assert tuple(found) == model.output_names == names
        expected = keras.tree.flatten(original.predict([values["left"], values["right"]], verbose=0))
        for name, array in zip(names, expected, strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_small_floats_are_answered_in_32_bits(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,), dtype="bfloat16"), keras.layers.Dense(1, dtype="bfloat16")])
    loaded = LoadedModel(model, max_batch_size=2)
    assert loaded.inputs[0].dtype == "float32"
    (output,) = loaded.predict({loaded.inputs[0].name: np.ones((2, 2), "float32")}).values()
    assert output.dtype == np.float32


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(1)

    def call(self, values):
        return self.dense(values)


@keras.saving.register_keras_serializable("tests")
class OfTwo(keras.Model):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(1)

    def call(self, left, right):
        return self.dense(left) + self.dense(right)


def lambda_model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda values: values + 1)])


def model_of_two() -> keras.Model:
    model = OfTwo()
    model(np.zeros((1, 2)), np.zeros((1, 2)))
    return model


def test_a_model_with_code_in_its_file_is_refused(tmp_path: Path) -> None:
    lambda_model().save(tmp_path / "m.keras")
    with pytest.raises(ModelError, match=r"cannot load the model .*m\.keras: .*Lambda") as caught:
        LoadedModel.load(tmp_path / "m.keras")
    assert "\n" not in str(caught.value)


def test_a_model_whose_weights_are_in_another_file_is_refused(tmp_path: Path) -> None:
    whole, crafted, secret = tmp_path / "whole.keras", tmp_path / "m.keras", tmp_path / "secret"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(whole)
    secret.write_bytes(b"a secret of the server's machine")
    kernel = "layers/dense/vars/0"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(crafted, "w") as target:
        for name in source.namelist():
            content = io.BytesIO(source.read(name))
            if name == "model.weights.h5":
                with h5py.File(content, "r+") as weights:
                    del weights[kernel]
                    weights.create_dataset(kernel, (2, 3), "float32", external=[(str(secret), 0, 24)])
            target.writestr(name, content.getvalue())
    with pytest.raises(ModelError, match=r"cannot load the model .*m\.keras: ") as caught:
        LoadedModel.load(crafted, max_batch_size=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [Subclassed, model_of_two])
def test_a_model_whose_inputs_nobody_knows_is_refused(make: Callable[[], keras.Model]) -> None:
    with pytest.raises(ModelError, match=r"does not say what its inputs are; received '(Subclassed|OfTwo)'"):
        LoadedModel(make())


@pytest.mark.parametrize("shape", [(2,), {"left": (2,), "right": (2,)}, [(2,), (2,)]])
def test_a_model_of_a_class_of_its_own_has_the_inputs_that_it_was_built_for(shape: Any, tmp_path: Path) -> None:
    @keras.saving.register_keras_serializable("tests")
    class Summing(keras.Model):
        def call(self, values):
            return keras.ops.sum(sum(keras.tree.flatten(values)), axis=1, keepdims=True)

    model = Summing()
    model(keras.tree.map_shape_structure(lambda each: np.zeros((3, *each), "float32"), shape))
    model.save(tmp_path / "m.keras")
    loaded = LoadedModel.load(tmp_path / "m.keras", max_batch_size=2)
    arrays = {spec.name: np.full((3, 2), 2.0, "float32") for spec in loaded.inputs}
    assert [spec.shape for spec in loaded.inputs] == [(2,)] * len(arrays)
    (output,) = loaded.predict(arrays).values()
    np.testing.assert_array_equal(output, np.full((3, 1), 4.0 * len(arrays)))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.keras").write_text("hello")
    with pytest.raises(ModelError, match=r"cannot load the model .*text\.keras: "):
        LoadedModel.load(tmp_path / "text.keras")
    with pytest.raises(ModelError, match=r"cannot load the model .*none\.keras: there is no such file"):
        LoadedModel.load(tmp_path / "none.keras")


def test_an_input_of_text_is_refused() -> None:
    inputs = keras.Input((1,), dtype="string", name="words")
    with pytest.raises(ModelError, match="input words of the model is not numeric; received 'string'"):
        LoadedModel(keras.Model(inputs, keras.layers.Identity()(inputs)))


def edited(path: Path, *, layer: str) -> Path:
    """Saves a model, and then gives its first layer another class, which needs TensorFlow to be created."""
    keras.Sequential([keras.Input((2,)), keras.layers.Identity()]).save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["config.json"] = content["config.json"].replace(b'"Identity"', f'"{layer}"'.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("layer", ["StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing"])
def test_a_layer_of_text_is_refused_by_name_with_what_to_do(tmp_path: Path, layer: str) -> None:
    assert text_layers(edited(tmp_path / "m.keras", layer=layer)) == (layer,)
    with pytest.raises(ModelError) as caught:
        LoadedModel.load(tmp_path / "m.keras", display_url="gs://b/m.keras")
    assert str(caught.value) == (
        f"cannot load the model gs://b/m.keras: {layer} computes with text in TensorFlow, which prediction servers do "
        "not run; allowed: inputs that are numbers; deploy the part of the model behind it with a custom prediction "
        "routine that converts the text (--prediction-class)"
    )


def test_a_saved_input_of_text_is_refused_by_its_name(tmp_path: Path) -> None:
    inputs = keras.Input((1,), dtype="string", name="words")
    keras.Model(inputs, keras.layers.Identity()(inputs)).save(tmp_path / "m.keras")
    with pytest.raises(ModelError, match=r"m\.keras: the input words computes with text in TensorFlow"):
        LoadedModel.load(tmp_path / "m.keras")


def test_what_the_model_cannot_run_is_one_line() -> None:
    length = keras.Input((None,), name="x")
    model = LoadedModel(keras.Model(length, keras.layers.Reshape((4,))(length)))
    with pytest.raises(ModelError, match="the model could not be run") as caught:
        model.predict({"x": np.zeros((1, 3), "float32")})
    assert "\n" not in str(caught.value)
