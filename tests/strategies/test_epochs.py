"""How many steps the epochs of ``fit`` have, and on which batches: whatever the length of the data is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import grain
import keras
import numpy as np
import pytest

from lockstep.data import Batches
from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_BATCHES, BATCH_SIZE = 10, 4
NUMBERS = np.arange(NUM_BATCHES * BATCH_SIZE, dtype=np.float32)[:, None]
BATCHES = [(NUMBERS[at : at + BATCH_SIZE],) * 2 for at in range(0, len(NUMBERS), BATCH_SIZE)]
STRATEGY = MirroredStrategy(["cpu:0", "cpu:1"])


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> Any:
        return BATCHES[index]


def pairs(records: Any) -> Any:
    return (NUMBERS[records],) * 2


def source() -> Any:
    return grain.MapDataset.source([(number, number) for number in NUMBERS])


class Again(grain.sources.RandomAccessDataSource):
    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> Any:
        return NUMBERS[index], NUMBERS[index]


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"x": NUMBERS, "y": NUMBERS, "batch_size": BATCH_SIZE, "shuffle": False},
    "Batches": lambda: {"x": Batches(range(len(NUMBERS)), batch_size=BATCH_SIZE, transform=pairs)},
    "repeated Batches": lambda: {"x": Batches(range(len(NUMBERS)), batch_size=BATCH_SIZE, transform=pairs).repeat()},
    "PyDataset": lambda: {"x": Rows(), "shuffle": False},
    "MapDataset": lambda: {"x": source().batch(BATCH_SIZE)},
    "repeated MapDataset": lambda: {"x": source().repeat().batch(BATCH_SIZE)},
    "IterDataset": lambda: {"x": source().to_iter_dataset().batch(BATCH_SIZE)},
    "DataLoader": lambda: {
        "x": grain.DataLoader(
            data_source=Again(),
            sampler=grain.samplers.IndexSampler(len(NUMBERS), num_epochs=1),
            operations=[grain.transforms.Batch(BATCH_SIZE)],
        )
    },
    "distributed": lambda: {"x": STRATEGY.experimental_distribute_dataset(BATCHES)},
}


class Recording(keras.Sequential):
    """Writes down the batch of each step; run eagerly, a step sees the values. Only if told, it also trains."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__([keras.Input((1,)), keras.layers.Dense(1)])
        self.seen: list[int] = []
        self._trains = trains

    def train_step(self, state: Any, data: Any) -> Any:
        self.seen.append(int(np.asarray(data[0])[0, 0]) // BATCH_SIZE)
        return super().train_step(state, data) if self._trains else ({"loss": 0.0}, state)

    def test_step(self, state: Any, data: Any) -> Any:
        self.seen.append(-int(np.asarray(data[0])[0, 0]) // BATCH_SIZE)
        return super().test_step(state, data) if self._trains else ({"loss": 0.0}, state)


def make_model(*, trains: bool = False, **options: Any) -> Recording:
    with STRATEGY.scope():
        model = Recording(trains=trains)
        model.compile(keras.optimizers.SGD(1e-6), "mse", run_eagerly=True, **options)
    return model


def fit(model: Recording, data: dict[str, Any], **options: Any) -> list[int]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        warnings.filterwarnings("ignore", "`shuffle=True` was passed")
        model.fit(**data, verbose=0, **options)
    return model.seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("steps_per_epoch", "steps_per_execution"), [(10, 1), (4, 1), (13, 1), (7, 3), (10, 4)], ids=str
)
def test_every_epoch_has_all_its_steps(kind: str, steps_per_epoch: int, steps_per_execution: int) -> None:
    num_epochs = 3
    seen = fit(
        make_model(steps_per_execution=steps_per_execution),
        KINDS[kind](),
        steps_per_epoch=steps_per_epoch,
        epochs=num_epochs,
    )
    assert seen == [step % NUM_BATCHES for step in range(num_epochs * steps_per_epoch)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "repeated MapDataset"])
def test_without_a_number_of_steps_an_epoch_is_a_pass(kind: str) -> None:
    assert fit(make_model(), KINDS[kind](), epochs=3) == list(range(NUM_BATCHES)) * 3


def generate(num_batches: int) -> Iterator[Any]:
    return (BATCHES[number % NUM_BATCHES] for number in range(num_batches))


@pytest.mark.parametrize(
    ("num_batches", "steps_per_epoch", "num_taken"),
    [(10, 5, 10), (12, 5, 12), (9, 10, 9), (10, 10, 10), (10, None, 10)],
)
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_generator_that_runs_out_is_an_error_and_leaves_the_model_whole(
    num_batches: int, steps_per_epoch: int | None, num_taken: int, steps_per_execution: int
) -> None:
    model = make_model(trains=True, steps_per_execution=steps_per_execution)
    with pytest.raises(InvalidInputError, match="the data ran out before the last step; received 'a generator"):
        fit(model, {"x": generate(num_batches)}, steps_per_epoch=steps_per_epoch, epochs=3)
    assert model.seen == [number % NUM_BATCHES for number in range(num_taken)]
    assert int(model.optimizer.iterations) == num_taken
    assert np.isfinite(model.get_weights()[0]).all()
    assert len(fit(model, KINDS["arrays"]())) == num_taken + NUM_BATCHES


def test_a_generator_of_as_many_batches_as_there_are_steps_is_enough() -> None:
    assert len(fit(make_model(), {"x": generate(15)}, steps_per_epoch=5, epochs=3)) == 15


def test_validation_by_a_generator_that_runs_out_is_an_error() -> None:
    validation = {"validation_data": generate(6), "validation_steps": 4}
    with pytest.raises(InvalidInputError, match="the data ran out before the last step"):
        fit(make_model(), KINDS["arrays"](), epochs=3, **validation)
    model = make_model(trains=True)
    with pytest.raises(InvalidInputError, match="the data ran out before the last step"):
        model.evaluate(generate(3), steps=4, verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


def test_grain_shuffles_each_pass_alike_and_repeated_anew() -> None:
    shuffled = grain.MapDataset.source([(row, row) for row in NUMBERS[::BATCH_SIZE]]).shuffle(seed=0)
    alike = fit(make_model(), {"x": shuffled.batch(1)}, epochs=2)
    assert alike[:NUM_BATCHES] == alike[NUM_BATCHES:]
    anew = fit(make_model(), {"x": shuffled.batch(1).repeat()}, epochs=2, steps_per_epoch=NUM_BATCHES)
    assert anew[:NUM_BATCHES] != anew[NUM_BATCHES:]
    assert sorted(anew) == sorted([*range(NUM_BATCHES)] * 2)
