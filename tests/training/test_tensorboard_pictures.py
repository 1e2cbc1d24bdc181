"""What TensorBoard shows besides scalars, as TensorBoard's own readers find it."""

import contextlib
import io

import jax
import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import plugin_data_pb2

from lockstep.errors import InvalidInputError
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.training import TensorBoard

X = np.random.default_rng(0).random((16, 4)).astype("float32")
Y = X[:, :1] * 2

STRATEGIES = {
    "none": lambda: None,
    "one": OneDeviceStrategy,
    "mirrored": lambda: MirroredStrategy(jax.devices()[:2]),
    "sharded": lambda: ShardedStrategy(jax.devices()[:2], stage=3),
    "central": lambda: CentralStorageStrategy(compute_devices=jax.devices()[:2]),
}


def make(strategy=None):
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out", kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def fit(model, folder, *, epochs=2, validation_data=None, **options):
    callbacks = [TensorBoard(folder, **options)]
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks, validation_data=validation_data)
    found = EventMultiplexer(size_guidance={"histograms": 0, "images": 0}).AddRunsFromDirectory(str(folder))
    found.Reload()
    return found


@pytest.mark.parametrize("kind", STRATEGIES)
def test_histograms_are_of_the_weights_and_the_gradients_that_there_are(tmp_path, kind):
    model = make(STRATEGIES[kind]())
    found = fit(model, tmp_path, histogram_freq=2, gradient_batch=(X, Y), epochs=4)
    paths = [weight.path for weight in model.weights]
    tags = {f"{path}/{what}" for path in paths for what in ("histogram", "gradient")}
    assert set(found.Runs()["train"]["histograms"]) == tags
    assert [event.step for event in found.Histograms("train", f"{paths[0]}/histogram")] == [1, 3]
    kernel, bias = (np.asarray(weight) for weight in model.weights)
    weights = found.Histograms("train", f"{paths[0]}/histogram")[-1].histogram_value
    assert (weights.num, weights.sum) == (4, pytest.approx(kernel.sum(), rel=1e-5))
    gradients = found.Histograms("train", f"{paths[0]}/gradient")[-1].histogram_value
    expected = 2 * X.T @ (X @ kernel + bias - Y) / len(X)
    assert gradients.num == 4
    assert (gradients.min, gradients.max) == pytest.approx((expected.min(), expected.max()), rel=1e-4)


def test_images_are_written_once_or_as_a_function_draws_them(tmp_path):
    fixed = {"grey": np.full((2, 3), 0.5), "colours": np.zeros((2, 5, 6, 3), "uint8")}
    found = fit(make(), tmp_path / "fixed", images=fixed)
    assert set(found.Runs()["train"]["images"]) == {"grey/0", "colours/0", "colours/1"}
    (grey,) = found.Images("train", "grey/0")
    assert (grey.step, grey.width, grey.height) == (0, 3, 2)
    assert np.unique(np.asarray(Image.open(io.BytesIO(grey.encoded_image_string))).reshape(-1)[:2]).tolist() == [127]
    found = fit(make(), tmp_path / "drawn", images=lambda model, epoch: {model.name: np.ones((4, 4, 1)) * epoch / 2})
    (tag,) = found.Runs()["train"]["images"]
    assert [event.step for event in found.Images("train", tag)] == [0, 1]


def test_hyperparameters_name_the_results_to_compare(tmp_path):
    values = {"rate": 0.1, "units": np.int64(8), "augments": True, "optimizer": "sgd"}
    found = fit(make(), tmp_path, hyperparameters=values, validation_data=(X, Y))

    def data(tag):
        content = found.PluginRunToTagToContent("hparams")["."][tag]
        return plugin_data_pb2.HParamsPluginData.FromString(content)

    began = data("_hparams_/session_start_info").session_start_info
    kinds = {name: value.WhichOneof("kind") for name, value in began.hparams.items()}
    assert kinds == dict.fromkeys(("rate", "units"), "number_value") | {
        "augments": "bool_value",
        "optimizer": "string_value",
    }
    assert began.hparams["units"].number_value == 8
    experiment = data("_hparams_/experiment").experiment
    assert [(info.name.group, info.name.tag) for info in experiment.metric_infos] == [("validation", "epoch_loss")]
    assert "epoch_loss" in found.Runs()["validation"]["scalars"]
    assert data("_hparams_/session_end_info").session_end_info.status == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"histogram_freq": -1}, "histogram_freq"),
        ({"gradient_batch": (X, Y)}, "gradient_batch needs histogram_freq"),
        ({"hyperparameters": {"layers": [1, 2]}}, "the hyperparameter 'layers'"),
    ],
)
def test_bad_options_are_named(tmp_path, options, message):
    with pytest.raises(InvalidInputError, match=message):
        TensorBoard(tmp_path, **options)


def test_an_array_that_is_no_image_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match="the images 'flat' for TensorBoard"):
        fit(make(), tmp_path, images={"flat": np.ones(3)})
