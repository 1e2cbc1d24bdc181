"""What a ``fit`` of the parameter-server strategy does not take: models, data, options and clusters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import BATCH_SIZE, NUM_ROWS, STEPS, make_model, make_rows
from tests.parameter_server.role_threads import RoleThreads

from lockstep.errors import ConfigError, InvalidInputError, LockstepError, WrongStateError
from lockstep.parameter_server import DatasetCreator, ParameterServerStrategy
from lockstep.parameter_server.fitting.runs import _num_steps
from lockstep.parameter_server.model_setup import describe_model
from lockstep.parameter_server.protocol import Mode
from lockstep.strategies import OneDeviceStrategy
from lockstep.topology import Task, Topology

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def lone_strategy(role: str) -> ParameterServerStrategy:
    cluster = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    return ParameterServerStrategy(Topology(cluster=cluster, task=Task(role=role)))


@pytest.mark.parametrize("role", ["chief", "worker"])
@pytest.mark.parametrize("is_built_within", [True, False], ids=["compiled", "built and compiled"])
def test_a_model_that_is_not_the_strategys_is_not_trained(role: str, is_built_within: bool) -> None:
    strategy = lone_strategy(role)
    with strategy.scope() if is_built_within else nullcontext():
        model = make_model()
    model.compile("sgd", "mse")
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(InvalidInputError, match=r"compiled outside of the scope of Param.* within strategy.scope"):
            train(*make_rows())
    model.evaluate(*make_rows(), verbose=0)
    del strategy


def test_single_batches_are_not_trained_on() -> None:
    strategy = lone_strategy("chief")
    with strategy.scope():
        model = make_model()
    with pytest.raises(WrongStateError, match="train_on_batch has no steps to hand to workers; train by fit"):
        model.train_on_batch(*make_rows())
    assert np.isfinite(model.test_on_batch(*make_rows())).all()
    assert model.predict_on_batch(make_rows()[0]).shape == (NUM_ROWS, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda x, y: (x, y[:-1]), "received '149 and 150'; allowed: 1 or more, as many in x", id="rows"),
        pytest.param(lambda x, y: (x[:0], y[:0]), "received '0'; allowed: 1 or more", id="none"),
        pytest.param(lambda x, y: (x.astype(str), y), "not numbers; received 'an array of dtype <U", id="words"),
    ],
)
@pytest.mark.parametrize("role", ["chief", "worker"])
def test_data_that_no_step_can_take_are_refused(role: str, change: Callable[..., Any], said: str) -> None:
    strategy = lone_strategy(role)
    with strategy.scope():
        model = make_model()
    with pytest.raises(InvalidInputError, match=said):
        model.fit(*change(*make_rows()), steps_per_epoch=2, verbose=0)


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_a_step_that_takes_the_batch_alone_is_refused(role: str) -> None:
    class WithStep(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            raise AssertionError(data)

    strategy = lone_strategy(role)
    with strategy.scope():
        model = WithStep([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    said = (
        r"received .WithStep.train_step\(self, data\).; allowed: train_step\(self, state, data\).* coordinator.schedule"
    )
    with pytest.raises(InvalidInputError, match=said):
        model.fit(*make_rows(), steps_per_epoch=2, verbose=0)


@pytest.mark.parametrize("role", ["chief", "worker"])
@pytest.mark.parametrize("steps", [None, 0, 2.5], ids=["none", "zero", "half"])
def test_steps_per_epoch_is_asked_for_in_every_role(role: str, steps: Any) -> None:
    strategy = lone_strategy(role)
    with strategy.scope():
        model = make_model()
    with pytest.raises(InvalidInputError, match=r"needs steps_per_epoch: how many steps all workers"):
        model.fit(*make_rows(), steps_per_epoch=steps, verbose=0)


def test_numpys_whole_numbers_are_steps_too() -> None:
    assert _num_steps({"steps_per_epoch": np.int64(20)}) == 20


def test_a_second_fit_takes_what_the_workers_know(run_roles: RoleThreads) -> None:
    rows = make_rows()
    options = {"batch_size": BATCH_SIZE, "steps_per_epoch": STEPS, "verbose": 0}

    def script(strategy: ParameterServerStrategy) -> list[str]:
        with strategy.scope():
            model, other = make_model(), make_model()
        model.fit(*rows, **options)
        said: list[str] = []

        def refuse(one: Any, *data: Any, **changes: Any) -> None:
            with pytest.raises(LockstepError) as caught:
                one.fit(*data, **{**options, **changes})
            said.append(str(caught.value))

        refuse(model, *make_rows())
        refuse(model, *rows, batch_size=2 * BATCH_SIZE, shuffle=False)
        refuse(other, *rows)
        model.fit(*rows, **options)
        model.layers[0].trainable = False
        refuse(model, *rows)
        model.layers[0].trainable = True
        model.fit(*rows, **options)
        with strategy.scope():
            model.compile(model.optimizer, "mae", metrics=["mae"])
        refuse(model, *rows)
        return said

    data, batch_size, model, frozen, compiled = run_roles(script)
    assert data.startswith("a later fit has other data, which the workers do not have; received 'another ")
    assert "received 'another batch_size, shuffle'; allowed: the same objects as x, y, sample_weight" in batch_size
    assert model.startswith("the parameter servers keep another model already")
    assert frozen.startswith("the model was compiled again, or its layers were frozen or unfrozen, after the first")
    assert "received 'another set of trainable variables'; save the model" in frozen
    assert "received 'another loss'" in compiled


def test_a_second_fit_may_split_validation_data_off_and_name_what_is_equal(run_roles: RoleThreads) -> None:
    rows = make_rows()

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        found: list[float] = []
        for _ in range(2):
            weights = {"class_weight": {0: 1.0, 1: 2.0}, "validation_split": 0.5, "batch_size": int("500")}
            history = model.fit(*rows, **weights, steps_per_epoch=STEPS, verbose=0)
            found += history.history["val_loss"]
        return found

    found = run_roles(script)
    assert len(found) == 2
    assert np.isfinite(found).all()


def test_a_server_that_would_be_empty_is_said() -> None:
    with OneDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
    with pytest.raises(InvalidInputError, match="parameter server 1 would have nothing to keep"):
        describe_model(
            model.variables, optimizers=[model.optimizer], num_servers=2, partitioner=None, mode=Mode.ASYNCHRONOUS
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"max_staleness": -1}, "max_staleness; received -1; allowed: 0 or more", id="staleness"),
        pytest.param({"num_backup_workers": 2}, "must be below the number of workers; received '2 of 2'", id="backups"),
        pytest.param({"max_staleness": 1, "num_backup_workers": 0}, "either bounded .* or synchronous", id="both"),
        pytest.param({"overlaps": True, "max_staleness": 0}, "cannot begin before the last one's push", id="overlap"),
        pytest.param(
            {"overlaps": "no"}, "overlaps; received 'no'; allowed: True, False or None", id="overlap in words"
        ),
        pytest.param({"silence_s": 0}, "silence_s of the strategy; received 0; allowed: 0.1 to 86400", id="silence"),
        pytest.param({"silence_s": "10"}, "silence_s of the strategy; received '10'; allowed: 0.1 to", id="text"),
        pytest.param({"start_within_s": float("nan")}, "start_within_s .* received nan; allowed: 0 to", id="start"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    cluster = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2", "127.0.0.1:4"), "ps": ("127.0.0.1:3",)}
    with pytest.raises(InvalidInputError, match=said):
        ParameterServerStrategy(Topology(cluster=cluster), **options)


@pytest.mark.parametrize("missing", ["chief", "worker", "ps"])
def test_a_cluster_without_one_of_the_roles_is_refused(missing: str) -> None:
    cluster = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    del cluster[missing]
    role = next(iter(cluster))
    with pytest.raises(ConfigError, match=f"ParameterServerStrategy has no {missing} in its cluster"):
        ParameterServerStrategy(Topology(cluster=cluster, task=Task(role=role)))


def test_a_variable_of_a_kind_that_cannot_travel_is_refused_by_its_name() -> None:
    variable = keras.Variable(np.zeros(2), dtype="complex64", trainable=False, name="spectrum")
    with pytest.raises(InvalidInputError, match="servers cannot keep spectrum; received 'complex64'; allowed: float16"):
        describe_model(
            [variable],
            optimizers=[],
            num_servers=1,
            partitioner=None,
            mode=Mode.ASYNCHRONOUS,
            is_kept=lambda _variable: True,
        )


@pytest.mark.parametrize(("method", "name"), [("fit", "validation_data"), ("evaluate", "x"), ("predict", "x")])
def test_data_that_workers_would_make_is_refused_where_none_does(method: str, name: str) -> None:
    strategy = lone_strategy("chief")
    with strategy.scope():
        model = make_model()
        model.compile("sgd", "mse")
    arguments: dict[str, Any] = {"x": make_rows()[0], name: DatasetCreator(lambda context: None)}
    if method == "fit":
        arguments.update(y=make_rows()[1], steps_per_epoch=1)
    with pytest.raises(InvalidInputError, match=f"{method} was given a DatasetCreator as {name}.*call its dataset_fn"):
        getattr(model, method)(**arguments)
