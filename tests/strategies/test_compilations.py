"""Each step is compiled once: for new variables, for metrics that were reset, and for the results of a step."""

from collections import Counter

import jax
import keras
import numpy as np
import pytest

import lockstep
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.training import Divergence

STRATEGIES = {
    "one device": OneDeviceStrategy,
    "the second device": lambda: OneDeviceStrategy("cpu:1"),
    "mirrored": lambda: MirroredStrategy(["cpu:0", "cpu:1"]),
    "sharded": lambda: ShardedStrategy(stage=3, min_shard_elements=1),
    "central storage": lambda: CentralStorageStrategy(["cpu:0", "cpu:1"]),
}
ROWS, LABELS = np.ones((16, 6), np.float32), np.zeros(16, np.int32)


@pytest.fixture
def compiled():
    """Counts compilations by the name of the function."""
    found: Counter[str] = Counter()

    def note(event, duration_secs, **labels):
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            found[str(labels.get("fun_name"))] += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def make_model(strategy):
    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.mark.parametrize("callbacks", [[], ["stop"], ["skip"]], ids=["plain", "stop", "skip"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_of_fit_is_compiled_once(compiled, name, callbacks):
    model = make_model(STRATEGIES[name]())
    options = {"batch_size": 4, "epochs": 3, "verbose": 0, "validation_data": (ROWS, LABELS)}
    model.fit(ROWS, LABELS, callbacks=[Divergence(action) for action in callbacks], **options)
    steps = {key: count for key, count in compiled.items() if key in ("jit(train_step)", "jit(guarded_step)")}
    if name == "central storage":
        steps = {key: count for key, count in compiled.items() if key == "jit(compute)"}
        assert steps == {"jit(compute)": 2}, "of training and of validation"
    else:
        assert list(steps.values()) == [1], compiled
        assert compiled["jit(test_step)"] == 1


@pytest.mark.parametrize("name", ["one device", "mirrored"])
def test_a_step_of_a_loop_is_compiled_once(compiled, name):
    strategy = STRATEGIES[name]()
    model = make_model(strategy)
    per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(inputs, labels):
        variables = model.trainable_variables
        loss, gradients = lockstep.value_and_grad(
            lambda: lockstep.compute_average_loss(per_row(labels, model(inputs, training=True))), variables
        )
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @lockstep.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset([(ROWS, LABELS)] * 3):
            step(batch)
    assert compiled["jit(lifted)"] == 1, compiled
