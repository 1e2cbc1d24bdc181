"""Each argument of ``fit`` and its kin beside each kind of data: it does what plain Keras has it do, or is refused."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import grain
import keras
import numpy as np
import pytest

from lockstep.data import Batches, Dataset
from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy

NUM_ROWS, BATCH_SIZE, NUM_CLASSES = 22, 4, 3  # five batches of 4 rows and one of 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_ROWS, 5)).astype(np.float32)
Y = RNG.integers(0, NUM_CLASSES, NUM_ROWS)
OTHER_Y = (Y + 1) % NUM_CLASSES
WEIGHTS = np.linspace(0, 3, NUM_ROWS, dtype=np.float32)
CLASS_WEIGHTS = {0: 1, 1: 50, 2: 0.1}
BATCHES = [(X[start : start + BATCH_SIZE], Y[start : start + BATCH_SIZE]) for start in range(0, NUM_ROWS, BATCH_SIZE)]
STRATEGY = MirroredStrategy(["cpu:0", "cpu:1"])

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        return BATCHES[index]


def rows_of(numbers: Any) -> Any:
    return X[numbers], Y[numbers]


def make_batches() -> Batches:
    return Batches(range(NUM_ROWS), batch_size=BATCH_SIZE, transform=rows_of)


def generate() -> Iterator[Any]:
    return (batch for _ in range(9) for batch in BATCHES)


KINDS: dict[str, Callable[[], Any]] = {
    "Batches": make_batches,
    "repeated Batches": lambda: make_batches().repeat(),
    "Dataset": lambda: Dataset.from_tensor_slices((X, Y)).batch(BATCH_SIZE),
    "distributed list": lambda: STRATEGY.experimental_distribute_dataset(BATCHES),
    "distributed Batches": lambda: STRATEGY.experimental_distribute_dataset(make_batches()),
    "PyDataset": Rows,
    "MapDataset": lambda: grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(BATCH_SIZE),
    "IterDataset": lambda: grain.MapDataset.source(list(zip(X, Y, strict=True))).to_iter_dataset().batch(BATCH_SIZE),
    "generator": generate,
}
OURS = ("Batches", "repeated Batches", "Dataset", "distributed list", "distributed Batches")
ARRAYS = {"x": X, "y": Y, "batch_size": BATCH_SIZE}
VALIDATION = {"validation_data": (X[::-1], OTHER_Y)}


@functools.cache
def _built(*, is_distributed: bool) -> tuple[Any, list[np.ndarray]]:
    """Returns a model that is traced and compiled once for all tests, and its first weights."""
    with STRATEGY.scope() if is_distributed else nullcontext():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(NUM_CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, model.get_weights()


def make_model(*, is_distributed: bool) -> Any:
    model, weights = _built(is_distributed=is_distributed)
    model.set_weights(weights)
    model.reset_metrics()
    keras.utils.set_random_seed(1)
    return model


def call(method: str, arguments: dict[str, Any], *, is_distributed: bool) -> list[np.ndarray]:
    """Returns what a call gave, and the weights after it."""
    model = make_model(is_distributed=is_distributed)
    verbose = {} if method.endswith("_on_batch") else {"verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's: that it does not shuffle, and of data without a length
        found = getattr(model, method)(**arguments, **verbose)
    values = list(found.history.values()) if method == "fit" else [found]
    return [*(np.asarray(value, np.float64) for value in values), *model.get_weights()]


def differ(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    if [value.shape for value in one] != [value.shape for value in other]:
        return True
    return not all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True))


def arguments_of(method: str, kind: str) -> dict[str, Any]:
    """Returns a call's arguments before the one that is tried: two epochs of six steps."""
    found: dict[str, Any] = dict(ARRAYS) if kind == "arrays" else {"x": KINDS[kind]()}
    if method == "predict":
        found.pop("y", None)
    if method == "fit":
        found |= {"epochs": 2, **({"shuffle": False} if kind in ("arrays", "PyDataset") else {})}
    if kind == "generator":
        found["steps_per_epoch" if method == "fit" else "steps"] = len(BATCHES)
    return found


TRIED: dict[str, dict[str, dict[str, Any]]] = {
    "fit": {
        "y": {"y": OTHER_Y},
        "sample_weight": {"sample_weight": WEIGHTS},
        "batch_size": {"batch_size": 11},
        "class_weight": {"class_weight": CLASS_WEIGHTS},
        "shuffle": {"shuffle": True},
        "epochs": {"epochs": 3},
        "initial_epoch": {"initial_epoch": 1},
        "steps_per_epoch": {"steps_per_epoch": 3},
        "validation_split": {"validation_split": 0.3},
        "validation_data": VALIDATION,
        "validation_freq": {**VALIDATION, "validation_freq": 2},
        "validation_steps": {**VALIDATION, "validation_steps": 2, "validation_batch_size": 4},
        "validation_batch_size": {**VALIDATION, "validation_steps": 1, "validation_batch_size": 7},
    },
    "evaluate": {
        "y": {"y": OTHER_Y},
        "sample_weight": {"sample_weight": WEIGHTS},
        "batch_size": {"batch_size": 11, "steps": 1},
        "steps": {"steps": 2},
    },
    "predict": {"batch_size": {"batch_size": 11, "steps": 1}, "steps": {"steps": 2}},
}
REFUSED = {"y", "sample_weight", "batch_size", "validation_split"}
"""What describes rows, which data that comes in batches has in them."""


@functools.cache
def plain(method: str, kind: str, argument: str | None) -> list[np.ndarray]:
    """Returns what plain Keras gives on one device."""
    given = {} if argument is None else TRIED[method][argument]
    return call(method, {**arguments_of(method, kind), **given}, is_distributed=False)


@pytest.mark.parametrize(
    ("method", "argument", "kind"),
    [
        pytest.param(
            method, argument, kind, marks=() if method == "fit" or kind in ("arrays", *OURS) else pytest.mark.heavy
        )
        for method, tried in TRIED.items()
        for argument in tried
        for kind in ("arrays", *KINDS)
        if kind != "repeated Batches" or method == "fit"
    ],
)
def test_an_argument_does_what_plain_keras_says_or_is_refused_by_name(method: str, argument: str, kind: str) -> None:
    given = TRIED[method][argument]
    if (kind != "arrays" and argument in REFUSED) or (argument == "shuffle" and kind in OURS):
        with pytest.raises(InvalidInputError, match=f"was given {argument}[= ].*received"):
            call(method, {**arguments_of(method, kind), **given}, is_distributed=True)
        return
    # Keras takes Lockstep's data for no data that it knows; and of some others it takes no class weights.
    like = "arrays" if kind in OURS or (argument == "class_weight" and kind != "PyDataset") else kind
    expected = plain(method, like, argument)
    found = call(method, {**arguments_of(method, kind), **given}, is_distributed=True)
    assert not differ(found, expected)
    has_no_effect = argument == "shuffle" and kind not in ("arrays", "PyDataset")  # Keras warns of that
    assert differ(expected, plain(method, like, None)) != has_no_effect


@pytest.mark.parametrize(
    ("method", "given"),
    [
        *itertools.product(["train_on_batch", "test_on_batch"], [{"y": OTHER_Y}, {"sample_weight": WEIGHTS}]),
        ("train_on_batch", {"class_weight": CLASS_WEIGHTS}),
        ("train_on_batch", {"return_dict": True}),
        ("predict_on_batch", {"x": X[::-1]}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_argument_of_a_single_batch_does_what_plain_keras_says(method: str, given: dict[str, Any]) -> None:
    plain = {"x": X} if method == "predict_on_batch" else {"x": X, "y": Y}
    if "return_dict" in given:
        model = make_model(is_distributed=True)
        assert set(model.train_on_batch(**plain, **given)) == {"loss", "accuracy", "weighted_accuracy"}
        return
    expected = call(method, {**plain, **given}, is_distributed=False)
    assert not differ(call(method, {**plain, **given}, is_distributed=True), expected)
    assert differ(expected, call(method, plain, is_distributed=False))


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch", "predict_on_batch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_is_no_single_batch(method: str, kind: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{method} takes the arrays of one batch as x; received"):
        call(method, {"x": KINDS[kind]()}, is_distributed=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": Y}, "validation_data's y"),
        ({"y": None, "sample_weight": WEIGHTS}, "validation_data's sample_weight"),
        ({"batch_size": 3}, "validation_batch_size"),
    ],
    ids=["y", "sample_weight", "batch_size"],
)
def test_validation_data_in_batches_takes_nothing_beside_it(kind: str, given: dict[str, Any], said: str) -> None:
    data = KINDS[kind]()
    parts = (
        (data, given["y"], *([given["sample_weight"]] if "sample_weight" in given else [])) if "y" in given else data
    )
    options = {"validation_batch_size": given["batch_size"]} if "batch_size" in given else {}
    with pytest.raises(InvalidInputError, match=f"fit was given {said} beside data that comes in batches"):
        call("fit", {**ARRAYS, "validation_data": parts, **options}, is_distributed=True)


def test_the_batch_size_of_arrays_is_no_batch_size_of_validation_data_in_batches() -> None:
    expected = call("fit", {**ARRAYS, "shuffle": False, "validation_data": (X, Y)}, is_distributed=False)
    found = call("fit", {**ARRAYS, "shuffle": False, "validation_data": make_batches()}, is_distributed=True)
    assert not differ(found, expected)


@pytest.mark.parametrize("kind", ["Batches", "repeated Batches"])
def test_a_model_without_a_strategy_drops_nothing_beside_batches_either(kind: str) -> None:
    expected = call("fit", {**arguments_of("fit", "arrays"), "class_weight": CLASS_WEIGHTS}, is_distributed=False)
    found = call("fit", {**arguments_of("fit", kind), "class_weight": CLASS_WEIGHTS}, is_distributed=False)
    assert not differ(found, expected)
    for argument in ("y", "sample_weight", "batch_size"):
        for method in ("fit", "evaluate"):
            with pytest.raises(InvalidInputError, match=f"{method} was given {argument} beside data"):
                call(method, {"x": KINDS[kind](), **TRIED["fit"][argument]}, is_distributed=False)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((X, Y, WEIGHTS), "class_weight was given beside batches that hold weights"),
        ((X,), "class_weight, and no targets"),
        ((X, {"a": Y, "b": Y}), "class_weight is for models of one output"),
    ],
    ids=["weights", "no targets", "several targets"],
)
def test_batches_whose_classes_cannot_be_weighed(batch: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        call("fit", {"x": (batch for _ in range(3)), "class_weight": CLASS_WEIGHTS}, is_distributed=True)


def test_class_weights_of_arrays_without_targets_or_beside_weights() -> None:
    for given, said in (({"y": None}, "no targets"), ({"sample_weight": WEIGHTS}, "class_weight and sample_weight")):
        with pytest.raises(InvalidInputError, match=said):
            call("fit", {**ARRAYS, "class_weight": CLASS_WEIGHTS, **given}, is_distributed=True)
    with pytest.raises(InvalidInputError, match="no targets"):
        call("train_on_batch", {"x": X, "class_weight": CLASS_WEIGHTS}, is_distributed=True)
    with pytest.raises(InvalidInputError, match="class_weight; received 'list'"):
        call("fit", {"x": make_batches(), "class_weight": [1.0, 2.0]}, is_distributed=True)


@pytest.mark.parametrize("class_weight", [{"a": 3}, {0.5: 1}, {True: 2}, {0: float("nan")}, {0: "2"}], ids=str)
@pytest.mark.parametrize("kind", ["arrays", "Batches", "train_on_batch"])
def test_class_weights_that_would_weigh_nothing_are_refused(kind: str, class_weight: dict[Any, Any]) -> None:
    method, data = ("fit", {"x": make_batches()}) if kind == "Batches" else ("fit", {"x": X, "y": Y})
    method = "train_on_batch" if kind == "train_on_batch" else method
    with pytest.raises(InvalidInputError, match=r"^class_weight; received .* classes as whole numbers, as in y"):
        call(method, {**data, "class_weight": class_weight}, is_distributed=True)


@pytest.mark.parametrize(
    "method", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
)
def test_a_batch_that_is_laid_over_replicas_is_no_whole_one(method: str) -> None:
    inputs, targets = next(iter(STRATEGY.experimental_distribute_dataset(BATCHES)))
    laid = {"x": inputs} if method.startswith("predict") else {"x": inputs, "y": targets}
    with pytest.raises(
        InvalidInputError, match=f"{method} takes whole batches, not batches that are divided over replicas"
    ):
        call(method, laid, is_distributed=True)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: grain.MapDataset.source([]).batch(4),
        lambda: Dataset.from_tensor_slices((X[:0], Y[:0])).batch(4),
        lambda: STRATEGY.experimental_distribute_dataset([]),
    ],
    ids=["MapDataset", "Dataset", "distributed list"],
)
def test_data_without_a_batch_is_said(method: str, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{method} was given data without a batch; received"):
        call(method, {"x": make()}, is_distributed=True)
