"""Tables that are not trained are looked up by all that a model does, and stay as they are."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.embedding.test_exactness import (
    BATCH_SIZE,
    NUM_COLUMNS,
    NUM_STEPS,
    describe,
    make_model,
    make_rows,
)
from tests.parameter_server.role_threads import RoleThreads
from tests.parameter_server.threads import make_layout

from lockstep.parameter_server import ParameterServerStrategy, row_optimizer
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def make_frozen(optimizer: Any) -> Any:
    """The model, one of whose tables is not trained; its layers begin alike in all roles."""
    model = make_model(optimizer)
    for variable in model.trainable_variables:
        if variable.name != "embeddings":
            variable.assign(np.linspace(-0.5, 0.5, math.prod(variable.shape)).reshape(variable.shape))
    model.get_layer("own").trainable = False
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


@pytest.mark.heavy
def test_a_frozen_table_is_looked_up_and_stays_as_it_is(run_roles: RoleThreads) -> None:
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "verbose": 0}
    inputs, targets = make_rows()

    def train(model: Any) -> list[Any]:
        found = [model.predict(inputs, **options)]
        fitting = {"shuffle": False, "validation_data": (inputs, targets), "steps_per_epoch": NUM_STEPS}
        found.append(model.fit(inputs, targets, **fitting, **options).history["val_loss"])
        return [*found, model.evaluate(inputs, targets, **options), model.predict(inputs, **options)]

    def script(strategy: ParameterServerStrategy) -> list[Any]:
        with strategy.scope():
            model = make_frozen(keras.optimizers.SGD(0.5))
        found = train(model)
        assert model.get_layer("own").embeddings.shape == (0, NUM_COLUMNS)
        return found

    found = run_roles(script, overlaps=False)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = train(make_frozen(keras.optimizers.SGD(0.5)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_frozen_table_needs_no_optimizer() -> None:
    keras.backend.clear_session()
    layout = make_layout()
    with layout.scope():
        model = make_frozen(keras.optimizers.RMSprop())
        model.get_layer("shared").row_optimizer = row_optimizer("sgd")
        model._symbolic_build(data_batch=(*make_rows(), None))
        shared, own = describe(model, layout, num_servers=1).tables
    assert (shared.spec.name, own.spec.name, own.follows) == ("shared", "own", None)
