"""Learning rates that are scaled with the batch: the numbers of the papers, and the way through files and servers."""

import math

import keras
import numpy as np
import pytest
from keras.optimizers.schedules import CosineDecay, PiecewiseConstantDecay

from lockstep.errors import InvalidInputError
from lockstep.training import ScaledLearningRate, load_model, save_model, scaling_factor


def rates(schedule, *steps):
    return [float(np.asarray(schedule(np.int32(step)))) for step in steps]


def test_the_factors_of_the_rules():
    sizes = {"batch_size": 8192, "reference_batch_size": 256}
    assert scaling_factor(**sizes) == scaling_factor(**sizes, rule="linear") == 32
    assert scaling_factor(**sizes, rule="square_root") == pytest.approx(math.sqrt(32))
    assert scaling_factor(batch_size=64, reference_batch_size=256) == 0.25


def test_resnet50_in_one_hour():
    """Goyal et al.: 0.1 for 256 images; 3.2 for 8192 after a warm-up of 5 epochs; a tenth after 30, 60 and 80."""
    steps = 156  # of an epoch
    decay = PiecewiseConstantDecay([30 * steps, 60 * steps, 80 * steps], [0.1, 0.01, 0.001, 0.0001])
    schedule = ScaledLearningRate(decay, batch_size=8192, reference_batch_size=256, warmup_steps=5 * steps)
    found = rates(schedule, 0, 5 * steps // 2, 5 * steps, 30 * steps, 30 * steps + 1, 80 * steps + 1)
    assert found == pytest.approx([0.1, 1.65, 3.2, 3.2, 0.32, 0.0032])


def test_a_warm_up_from_zero_and_none_at_all():
    options = {"batch_size": 64, "reference_batch_size": 16, "rule": "square_root"}
    schedule = ScaledLearningRate(0.01, **options, warmup_steps=4, warmup_start="zero")
    assert rates(schedule, 0, 1, 2, 4, 9) == pytest.approx([0, 0.005, 0.01, 0.02, 0.02])
    assert rates(ScaledLearningRate(0.01, **options), 0, 9) == pytest.approx([0.02, 0.02])
    same = ScaledLearningRate(0.01, batch_size=16, reference_batch_size=16, warmup_steps=4)
    assert rates(same, 0, 2, 9) == pytest.approx([0.01] * 3)


def test_accumulated_batches_are_one_update():
    options = {"reference_batch_size": 8, "warmup_steps": 3}
    large = ScaledLearningRate(CosineDecay(0.1, 10), batch_size=32, **options)
    accumulated = ScaledLearningRate(CosineDecay(0.1, 10), batch_size=8, accumulation_steps=4, **options)
    assert accumulated.factor == large.factor == 4
    for update in range(11):
        batches = range(4 * update, 4 * update + 4)
        assert rates(accumulated, *batches) == rates(large, update) * 4


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # Keras saves variables
@pytest.mark.parametrize("rate", [0.1, PiecewiseConstantDecay([3], [0.1, 0.01])], ids=["number", "schedule"])
def test_it_is_saved_with_a_model(rate, tmp_path):
    schedule = ScaledLearningRate(
        rate,
        batch_size=64,
        reference_batch_size=16,
        rule="square_root",
        warmup_steps=5,
        warmup_start="zero",
        accumulation_steps=2,
        name="mine",
    )
    again = ScaledLearningRate.from_config(schedule.get_config())
    assert again.get_config() == schedule.get_config()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.optimizer.get_config()["learning_rate"]["config"] == schedule.get_config()
    assert float(np.asarray(loaded.optimizer.learning_rate)) == float(np.asarray(model.optimizer.learning_rate))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size; received 0; allowed: an integer, 1 or more"),
        ({"reference_batch_size": 2.5}, "reference_batch_size; received 2.5"),
        ({"rule": "cubic"}, "a rule for the learning rate; received 'cubic'; allowed: linear, square_root"),
        ({"warmup_steps": -1}, "warmup_steps; received -1; allowed: an integer, 0 or more"),
        ({"warmup_start": 0.1}, "warmup_start; received 0.1; allowed: reference, zero"),
        ({"accumulation_steps": True}, "accumulation_steps; received True"),
        ({"learning_rate": -0.1}, "a learning rate; received -0.1; allowed: a positive number, or a Learn"),
        ({"learning_rate": "0.1"}, "a learning rate; received '0.1'"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    arguments = {"learning_rate": 0.1, "batch_size": 8, "reference_batch_size": 8, **wrong}
    with pytest.raises(InvalidInputError) as refused:
        ScaledLearningRate(arguments.pop("learning_rate"), **arguments)
    assert str(refused.value).startswith(message)
