"""Every layer of Keras gives the numbers of one device: its outputs and one step, for batches that divide or do not.

XLA's partitioner divides a program over devices operation by operation, and has got some of them wrong without a word:
these tests are to catch the next one. The cases of a family are branches of one model, each with a loss of its own.
"""

import functools
import inspect
import zlib

import keras
import numpy as np
import pytest
from tests.strategies.layer_cases import FAMILIES, LEFT_OUT, branch
from tests.strategies.layer_strategies import STRATEGIES
from tests.strategies.setups import cpus, sharded

from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, function, value_and_grad
from lockstep.strategies.loops.gradients import compute_average_loss

ROWS = {"even": 8, "over_some": 6, "fewer_than_devices": 2}
"""Batches over four devices: over all of them, over two and repeated on the others, and over two of one row each."""

CUT_SCORES = {"even": 8, "over_none": 7}
"""Batches for two replicas whose scores are cut along their inputs, which XLA carries back into the layers before."""

RATE = 0.5
MOST = 1e-4
"""How far an update, or an output, may be from one device's, by their norms: rounding makes 1e-6 to 2e-5."""

IN_MAKE_TEST = {
    ("pooling", "mirrored", "over_some"),
    ("convolutions_1d", "central_storage", "over_some"),
}
IN_MAKE_TEST_CUT = {("convolutions_2d", "over_none")}
IN_MAKE_TEST_RUN = {("grouped_2d", "over_some")}


def cells(names, chosen):
    return [
        pytest.param(*cell, marks=() if cell in chosen else pytest.mark.product, id="-".join(cell)) for cell in names
    ]


FIT = [(family, strategy, rows) for family in FAMILIES for strategy in STRATEGIES for rows in ROWS]
CUT = [(family, rows) for family in FAMILIES for rows in CUT_SCORES]
RUN = [(family, rows) for family in FAMILIES for rows in ROWS]


@pytest.mark.parametrize(("family", "strategy", "rows"), cells(FIT, IN_MAKE_TEST))
@pytest.mark.filterwarnings("ignore:Layer '.*' .of type .*. was passed an input with a mask:UserWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")  # Keras's RandAugment
def test_fit(family, strategy, rows):
    num_rows = ROWS[rows]
    check(train_by_fit(STRATEGIES[strategy](), family, num_rows), on_one_device(family, num_rows))


@pytest.mark.parametrize(("family", "rows"), cells(CUT, IN_MAKE_TEST_CUT))
@pytest.mark.filterwarnings("ignore:Layer '.*' .of type .*. was passed an input with a mask:UserWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")  # Keras's RandAugment
def test_fit_before_scores_that_are_cut(family, rows):
    num_rows = CUT_SCORES[rows]
    strategy = sharded(4, stage=2, model_parallel=2, layout_map={".*_scores/kernel": ("model", None)})
    check(train_by_fit(strategy, family, num_rows), on_one_device(family, num_rows))


@pytest.mark.parametrize(("family", "rows"), cells(RUN, IN_MAKE_TEST_RUN))
@pytest.mark.filterwarnings("ignore:Layer '.*' .of type .*. was passed an input with a mask:UserWarning")
def test_run(family, rows):
    if not any(cases_of(family, in_run=True)):
        return  # all of them need the whole batch
    num_rows = ROWS[rows]
    found = train_by_run(MirroredStrategy(cpus(4)), family, num_rows)
    expected = on_one_device(family, num_rows, in_run=True)
    if family == "normalisation":
        # The kernel that the layer assigns in training is kept in a custom loop, as in TensorFlow. Keras's `fit` on JAX
        # drops it, because a step returns the other variables alone.
        alone = train_by_run(OneDeviceStrategy("cpu:0"), family, num_rows)
        kernel = "update of spectral_normalization/dense/kernel"
        expected = {**expected, kernel: alone[kernel]}
    check(found, expected)


NEWER = {"Mosaic", "TernaryDense"}
"""Layers of Keras 3.16, which get cases when the lock file names it."""


@pytest.mark.heavy
def test_each_layer_has_a_case_or_a_reason():
    keras.utils.clear_session()
    covered = set()
    with MirroredStrategy(cpus(2)).scope():  # which lets batch normalisation be synchronized
        for cases in FAMILIES.values():
            for name, case in cases.items():
                parts = keras.Model(*branch(name, case))._flatten_layers(include_self=False)
                covered |= {type(layer).__name__ for layer in parts}
    classes = [cls for _, cls in inspect.getmembers(keras.layers, inspect.isclass)]
    exported = {cls.__name__ for cls in classes if issubclass(cls, keras.layers.Layer)}
    assert exported - covered - set(LEFT_OUT) - NEWER == set()
    assert set(LEFT_OUT) - exported == set()


def cases_of(family, *, in_run):
    return {name: case for name, case in FAMILIES[family].items() if not (in_run and case.needs_whole_batch)}


def make_model(family, *, in_run):
    """Builds a family's model in the current scope, with weights that depend on their names alone."""
    keras.utils.set_random_seed(5)
    inputs, outputs = [], []
    for name, case in cases_of(family, in_run=in_run).items():
        branch_inputs, output = branch(name, case)
        inputs += branch_inputs
        outputs.append(output)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(RATE), ["mse"] * len(outputs))
    for variable in model.trainable_variables:
        generator = np.random.default_rng(zlib.crc32(variable.path.encode()))
        variable.assign(np.asarray(variable.value) + generator.normal(scale=0.2, size=variable.shape))
    return model


def batch_of(family, num_rows, *, in_run):
    inputs, targets = [], []
    for seed, case in enumerate(cases_of(family, in_run=in_run).values()):
        inputs += case.inputs(num_rows, seed=seed)
        targets.append(np.random.default_rng(100 + seed).normal(size=(num_rows, 3)).astype(np.float32))
    return inputs, targets


def values_of(model):
    return {variable.path: np.asarray(variable.value) for variable in model.variables if "seed" not in variable.path}


def train_by_fit(strategy, family, num_rows, *, in_run=False):
    """Returns what a model predicts, its loss, and how one step of ``fit`` changes it."""
    keras.utils.clear_session()  # layers are named as in any other run; within a scope it would end that, too
    with strategy.scope():
        model = make_model(family, in_run=in_run)
    inputs, targets = batch_of(family, num_rows, in_run=in_run)
    predictions = dict(zip(model.output_names, model.predict(inputs, batch_size=num_rows, verbose=0), strict=True))
    before = values_of(model)
    history = model.fit(inputs, targets, batch_size=num_rows, shuffle=False, verbose=0)
    return {
        "loss": np.array(history.history["loss"]),
        **{f"predictions of {name}": value for name, value in predictions.items()},
        **{f"update of {path}": value - before[path] for path, value in values_of(model).items()},
    }


def train_by_run(strategy, family, num_rows):
    """Returns the loss, and how one step of a custom loop changes the model."""
    keras.utils.clear_session()  # layers are named as in any other run; within a scope it would end that, too
    with strategy.scope():
        model = make_model(family, in_run=True)
    before = values_of(model)

    def step(inputs, targets):
        def loss():
            outputs = model(inputs, training=True)
            squares = [keras.ops.mean((y - x) ** 2, axis=-1) for x, y in zip(outputs, targets, strict=True)]
            return compute_average_loss(sum(squares))

        value, gradients = value_and_grad(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    @function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(step, args=batch))

    batches = strategy.experimental_distribute_dataset([batch_of(family, num_rows, in_run=True)])
    losses = [float(train_step(batch)) for batch in batches]
    updates = {f"update of {path}": value - before[path] for path, value in values_of(model).items()}
    return {"loss": np.array(losses), **updates}


@functools.cache
def on_one_device(family, num_rows, *, in_run=False):
    return train_by_fit(OneDeviceStrategy("cpu:0"), family, num_rows, in_run=in_run)


def check(found, expected):
    differences = {}
    for name, value in found.items():
        scale = np.linalg.norm(expected[name])
        difference = np.linalg.norm(value - expected[name]) / max(scale, 1e-3)
        if not difference <= MOST:  # NaN neither
            differences[name] = float(difference)
    assert not differences
    assert len(found) > 1
