"""What is exported predicts what the original does, on any number of instances; what does not is not left behind."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

from lockstep.errors import ConfigError, InvalidInputError, ModelError, StorageWriteError
from lockstep.serving.exporting import Format, export_model
from lockstep.serving.exporting import formats as formats_module
from lockstep.serving.exporting.export import random_inputs
from lockstep.serving.model import LoadedModel

pytestmark = pytest.mark.filterwarnings(
    # TensorFlow and the packages of ONNX import what Python or NumPy will remove.
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
)


def _needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


FORMATS = [
    pytest.param(Format.STABLEHLO),
    pytest.param(Format.SAVED_MODEL, marks=_needs("tensorflow")),
    pytest.param(Format.ONNX, marks=_needs("jax2onnx", "onnxruntime")),
]


def _several_inputs() -> keras.Model:
    numbers, ids = keras.Input((4,), name="numbers"), keras.Input((3,), dtype="int32", name="ids")
    both = keras.layers.Concatenate()([numbers, keras.layers.Flatten()(keras.layers.Embedding(11, 2)(ids))])
    both = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(both))
    outputs = {"score": keras.layers.Dense(2)(both), "sure": keras.layers.Dense(1, activation="sigmoid")(both)}
    return keras.Model({"numbers": numbers, "ids": ids}, outputs)


def _images() -> keras.Model:
    layers = [
        keras.Input((8, 8, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
    return keras.Sequential(layers)


def _pooled_images() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.MaxPooling2D()])


def _pair() -> keras.Model:
    left, right = keras.Input((2,)), keras.Input((2,))
    return keras.Model([left, right], [left + 2 * right, left * right])


@pytest.fixture
def save(tmp_path: Path) -> Callable[[keras.Model], Path]:
    def save(model: keras.Model) -> Path:
        path = tmp_path / "net.keras"
        model.save(path)
        return path

    return save


@pytest.mark.parametrize(
    ("to", "build"),
    [
        *(
            pytest.param(*to.values, build, marks=to.marks)
            for to in FORMATS
            for build in (_images, _several_inputs, _pair)
        ),
        # jax2onnx writes max pooling in a form that ONNX Runtime refuses.
        *(pytest.param(*to.values, _pooled_images, marks=to.marks) for to in FORMATS if to.values != (Format.ONNX,)),
    ],
)
def test_an_export_predicts_what_the_original_does(
    to: Format, build: Callable[[], keras.Model], save: Callable[[keras.Model], Path], tmp_path: Path
) -> None:
    keras.utils.set_random_seed(3)
    file, path = save(build()), tmp_path / "out"
    made = export_model(file, to=to, path=path)
    assert made.path == path
    assert made.size_bytes > 100
    assert 0 <= made.max_difference < 1e-4
    original = LoadedModel.load(file)
    run = to.open(path, model=original)
    inputs = random_inputs(original, size=5, rng=np.random.default_rng(9))
    found = run([inputs[spec.name] for spec in original.inputs])
    for array, expected in zip(found, original.predict(inputs).values(), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-4)
        assert np.ptp(expected) > 0, "the inputs make a difference"
    beside = ["out.json"] if to is Format.STABLEHLO else []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.keras", "out", *beside]


def test_stablehlo_is_for_all_platforms_and_runs_without_keras_and_lockstep(
    save: Callable[[keras.Model], Path], tmp_path: Path
) -> None:
    file = save(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]))
    export_model(file, to=Format.STABLEHLO, path=tmp_path / "net.stablehlo")
    code = """
        import sys, pathlib, numpy, jax.export
        exported = jax.export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes()))
        print(exported.platforms, exported.call(numpy.ones((3, 2), "float32")).tolist())
        assert "keras" not in sys.modules
        """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]
    done = subprocess.run(
        [*command, str(tmp_path / "net.stablehlo")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "('cpu', 'cuda', 'tpu') [[2.0], [2.0], [2.0]]\n", done.stderr


def test_dimensions_of_any_size_stay_so(save: Callable[[keras.Model], Path], tmp_path: Path) -> None:
    layers = [keras.Input((None, None, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
    file = save(keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D()]))
    export_model(file, to=Format.STABLEHLO, path=tmp_path / "out")
    exported = jax.export.deserialize(bytearray((tmp_path / "out").read_bytes()))
    for shape in ((1, 4, 5, 3), (2, 9, 3, 3)):
        np.testing.assert_allclose(exported.call(np.full(shape, 255, "uint8")), np.ones((shape[0], 3)), rtol=1e-6)


def test_a_model_of_16_bits_is_compared_as_such(save: Callable[[keras.Model], Path], tmp_path: Path) -> None:
    layers = [keras.Input((8,)), keras.layers.Dense(4, dtype="mixed_bfloat16")]
    made = export_model(save(keras.Sequential(layers)), to=Format.STABLEHLO, path=tmp_path / "out")
    assert made.tolerance == 2e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: [outputs[0] + 0.01], "differs from the original; received 0.01; allowed: a difference of"),
        (lambda outputs: [outputs[0] * np.nan], "differs from the original"),
        (lambda outputs: [outputs[0][:, :0]], "has another shape"),
        (lambda outputs: outputs * 2, "another number of outputs; received 2; allowed: 1"),
        (lambda outputs: [].pop(), "cannot be run on 1 instance: IndexError"),
    ],
)
def test_an_export_that_differs_is_an_error_and_leaves_nothing(
    change: Callable[[list[np.ndarray]], list[np.ndarray]],
    message: str,
    save: Callable[[keras.Model], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = formats_module._open_stablehlo

    def open_changed(path: Path, model: LoadedModel) -> Callable[[Any], list[np.ndarray]]:
        run = opened(path, model)
        return lambda arrays: change(run(arrays))

    monkeypatch.setattr(formats_module, "_open_stablehlo", open_changed)
    file = save(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))
    with pytest.raises(ModelError, match=message):
        export_model(file, to=Format.STABLEHLO, path=tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["net.keras"]


def test_what_the_format_does_not_have_is_said_in_a_line(save: Callable[[keras.Model], Path], tmp_path: Path) -> None:
    left, right = keras.Input((None,), name="left"), keras.Input((None,), name="right")
    file = save(keras.Model([left, right], keras.layers.Concatenate(axis=0)([left, right])))
    with pytest.raises(ModelError, match=r"net\.keras cannot be exported to stablehlo: \w+: ") as raised:
        export_model(file, to=Format.STABLEHLO, path=tmp_path / "out")
    assert len(str(raised.value).splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["net.keras"]


def test_a_package_that_is_missing_is_named_with_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"saved_model needs tensorflow, .* run: pip install tensorflow$"):
        export_model(tmp_path / "none.keras", to=Format.SAVED_MODEL, path=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"onnx needs .* and onnxruntime, which are not installed; run: pip install"):
        export_model(tmp_path / "none.keras", to=Format.ONNX, path=tmp_path / "out")


def test_what_is_there_is_not_written_over(save: Callable[[keras.Model], Path], tmp_path: Path) -> None:
    file = save(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InvalidInputError, match="does not exist yet"):
        export_model(file, to=Format.STABLEHLO, path=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    (tmp_path / "out").rename(tmp_path / "out.json")
    with pytest.raises(InvalidInputError, match=r"out\.json'; allowed: a path that does not exist yet"):
        export_model(file, to=Format.STABLEHLO, path=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(StorageWriteError, match="nowhere/out cannot be written: No such file or directory"):
        export_model(file, to=Format.STABLEHLO, path=tmp_path / "nowhere" / "out")
