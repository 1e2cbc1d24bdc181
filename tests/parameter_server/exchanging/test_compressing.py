"""Pushes that are made smaller, with what they leave out added to the next ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.parameter_server.every_optimizer import describe_built
from tests.parameter_server.threads import make_layout, read_values, run_steps, served, write_values

from lockstep.errors import InvalidInputError
from lockstep.parameter_server import TopK
from lockstep.parameter_server.compression import Compression, check_compression
from lockstep.parameter_server.coordination.working import Call
from lockstep.parameter_server.embedding.lookups import Wanted
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback, PushCompressor, Residuals
from lockstep.parameter_server.fitting.data import ArrayBatches
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.model_setup import describe_model
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Mode, Packing, Part, Push, Pushed, Setup
from lockstep.parameter_server.server.expansion import expand
from lockstep.parameter_server.server.shards import DenseShards

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NAME = "gradient.0:float32"
INDICES = "index.0:float32"
NO_ROWS = Wanted(ids={}, indices=[])
BF16: Any = jnp.dtype("bfloat16")
NUM_STEPS = 60
BATCH_SIZE = 32


def make_setup(*sizes: int, dtype: str = "float32", learning_rate: float = 1.0) -> Setup:
    variables = [keras.Variable(np.zeros(size), dtype=dtype, name=f"v{size}") for size in sizes]
    specs = [VariableSpec(path=f"v{place}", shape=(size,), dtype=dtype) for place, size in enumerate(sizes)]
    optimizer = describe_built(keras.optimizers.SGD(learning_rate), variables)
    group = Group(variables=tuple(range(len(sizes))), optimizer=optimizer)
    return Setup(placement=place(specs, num_servers=1), groups=(group,))


def push_all(
    setup: Setup, compression: Compression, gradients: np.ndarray[Any, Any], *, forgets: bool = False
) -> tuple[list[dict[str, np.ndarray[Any, Any]]], np.ndarray[Any, Any], Residuals]:
    """Pushes one gradient after the other to a server.

    Returns:
        What travelled, the server's values, and what is left.
    """
    compressor = PushCompressor(setup, compression)
    dense = DenseShards(setup.placement, server=0, groups=setup.groups)
    sent: list[dict[str, np.ndarray[Any, Any]]] = []
    parts: list[tuple[Part, ...]] = []

    def trace(arrays: Any, residuals: Residuals) -> tuple[Any, Residuals]:
        found, parts[:], left = compressor.compress(arrays, [(Part(),)], residuals)
        return found, left

    compress = jax.jit(trace)
    residuals = compressor.first_residuals()
    for gradient in gradients:
        arrays, residuals = compress([{NAME: gradient}], residuals)
        residuals = compressor.first_residuals() if forgets else residuals
        sent.append({name: np.asarray(array) for name, array in arrays[0].items()})
        _, whole = expand(Push(closure=0, parts=parts[0]), sent[-1], dense=dense, groups=setup.groups)
        dense.apply({"float32": whole[NAME]}, group=0)
    return sent, dense.read()["float32"], residuals


def test_bfloat16_over_values_in_float32_is_what_a_hand_computes() -> None:
    gradients = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    sent, values, residuals = push_all(make_setup(50), "bfloat16", gradients)
    rest, expected = np.zeros(50, np.float32), np.zeros(50, np.float32)
    for gradient, own in zip(gradients, sent, strict=True):
        total = gradient + rest
        rounded = total.astype(BF16)
        rest = total - rounded.astype(np.float32)
        expected -= rounded.astype(np.float32)
        assert own.keys() == {NAME}
        assert own[NAME].dtype == BF16
        assert own[NAME].tobytes() == rounded.tobytes()
    assert np.abs(rest).max() > 0
    np.testing.assert_array_equal(np.asarray(residuals[0][NAME]), rest)
    np.testing.assert_array_equal(values, expected)


def test_the_largest_travel_with_their_places_and_all_others_wait() -> None:
    gradients = np.array([[1.0, -5.0, 2.0, 0.5], [1.0, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.5]], np.float32)
    sent, values, residuals = push_all(make_setup(4), TopK(0.4), gradients)
    assert [own[INDICES].tolist() for own in sent] == [[1, 2], [0, 3], [0, 3]]
    assert [own[NAME].tolist() for own in sent] == [[-5.0, 2.0], [2.0, 1.0], [1.0, 0.5]]
    assert sent[0][INDICES].dtype == np.int32
    assert np.asarray(residuals[0][NAME]).tolist() == [0.0] * 4
    assert values.tolist() == (-gradients.sum(axis=0)).tolist()


@pytest.mark.parametrize("compression", ["bfloat16", TopK(0.1)], ids=["bfloat16", "top"])
def test_nothing_is_lost_but_what_waits(compression: Compression) -> None:
    gradients = np.random.default_rng(1).normal(size=(30, 80)).astype(np.float32)
    _, values, residuals = push_all(make_setup(50, 30), compression, gradients)
    np.testing.assert_allclose(np.asarray(residuals[0][NAME]) - values, gradients.sum(axis=0), atol=1e-4)


def test_a_small_steady_gradient_would_never_travel_without_what_waits() -> None:
    random = np.random.default_rng(2)
    changing = random.choice([-1.0, 1.0], size=(200, 4)) * random.uniform(0.5, 1.5, size=(200, 4))
    gradients = np.concatenate([changing, np.full((200, 16), 0.1)], axis=1).astype(np.float32)
    setup = make_setup(20)
    _, values, _ = push_all(setup, TopK(0.1), gradients)
    _, forgotten, _ = push_all(setup, TopK(0.1), gradients, forgets=True)
    assert forgotten[4:].tolist() == [0.0] * 16, "each one is smaller than two of the others, always"
    np.testing.assert_allclose(values[4:], -20.0, atol=5.0)


def test_what_bfloat16_cannot_hold_adds_up() -> None:
    gradients = np.full((512, 1), 1.0 + 2.0**-9, np.float32)  # bfloat16 has 1.0, and 1.0 + 2**-7
    setup = make_setup(1)
    _, values, _ = push_all(setup, "bfloat16", gradients)
    _, forgotten, _ = push_all(setup, "bfloat16", gradients, forgets=True)
    assert forgotten.tolist() == [-512.0]
    assert values.tolist() == [-513.0]


def test_what_is_no_number_travels_and_does_not_wait() -> None:
    gradients = np.array([[np.inf, 1.0], [0.25, 1.0]], np.float32)
    sent, _, residuals = push_all(make_setup(2), "bfloat16", gradients)
    assert sent[0][NAME].astype(np.float32).tolist() == [np.inf, 1.0]
    assert sent[1][NAME].astype(np.float32).tolist() == [0.25, 1.0]
    assert np.isfinite(np.asarray(residuals[0][NAME])).all()


def test_a_variable_without_a_gradient_keeps_what_waits() -> None:
    compressor = PushCompressor(make_setup(3, 2), TopK(0.3))
    shards = make_setup(3, 2).placement.by_server[0]
    assert [shard.variable for shard in shards] == [0, 1]
    residuals: Residuals = [{NAME: jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])}]
    part = Part(has_gradient=(False, True))
    arrays, parts, left = compressor.compress([{NAME: jnp.array([1.0, 1.0])}], [(part,)], residuals)
    assert parts == [(Part(has_gradient=(False, True), packing=Packing.TOP),)]
    assert np.asarray(arrays[0][INDICES]).tolist() == [1]
    assert np.asarray(arrays[0][NAME]).tolist() == [6.0]
    assert np.asarray(left[0][NAME]).tolist() == [1.0, 2.0, 3.0, 5.0, 0.0]


def test_what_waits_of_a_variable_in_bfloat16_is_kept_in_float32() -> None:
    compressor = PushCompressor(make_setup(4, dtype="bfloat16"), TopK(0.25))
    name = "gradient.0:bfloat16"
    gradient = jnp.array([1.0, 256.0, 0.5, 0.25], "bfloat16")
    residuals: Residuals = [{name: jnp.array([0.0, 1.0, 2.0**-12, 0.0], "float32")}]
    compress = jax.jit(lambda own: compressor.compress([own], [(Part(),)], residuals)[::2])
    (found,), (rest,) = compress({name: gradient})
    assert found[name].dtype == BF16
    assert np.asarray(found[name]).astype(np.float32).tolist() == [256.0], "257 cannot be said"
    assert np.asarray(rest[name]).tolist() == [1.0, 1.0, 0.5 + 2.0**-12, 0.25]


def make_pushes() -> Callable[..., list[float]]:
    """Returns what pushes closure 7 where 2 and 1 are left of others, and returns what is left then."""
    feedback = ErrorFeedback(make_setup(2), TopK(0.4), put_on_devices=lambda residuals: residuals)
    feedback.residuals = [{NAME: jnp.array([2.0, 1.0])}]

    def push(*gradient: float, outcome: Pushed | None, number: int = 0) -> list[float]:
        before = feedback.residuals
        after = feedback.compress([{NAME: jnp.array(gradient)}], [(Part(),)], before)[2]
        feedback.residuals = after
        feedback.settle(Push(closure=7, number=number), before=before, after=after, outcomes=[outcome])
        return np.asarray(feedback.residuals[0][NAME]).tolist()

    return push


def test_what_was_not_answered_is_lost_until_the_server_takes_it_anew() -> None:
    push = make_pushes()
    assert push(3.0, 3.0, outcome=None) == [2.0, 1.0]
    assert push(8.0, 7.0, outcome=Pushed(version=1)) == [0.0, 8.0]


def test_what_was_not_answered_had_counted_where_the_server_says_so_later() -> None:
    push = make_pushes()
    had_counted = Pushed(version=1, is_applied=False, was_applied=True)
    assert push(3.0, 3.0, outcome=None) == [2.0, 1.0]
    assert push(8.0, 7.0, outcome=had_counted) == [0.0, 4.0], "what the first one had left"
    assert push(8.0, 7.0, outcome=had_counted) == [0.0, 4.0]


def test_it_is_remembered_while_the_closures_pushes_before_it_come_again() -> None:
    push = make_pushes()
    had_counted = Pushed(version=1, is_applied=False, was_applied=True)
    assert push(3.0, 3.0, outcome=None, number=1) == [2.0, 1.0]
    assert push(9.0, 9.0, outcome=had_counted, number=0) == [2.0, 1.0]
    assert push(8.0, 7.0, outcome=had_counted, number=1) == [0.0, 4.0]


def test_what_was_not_answered_and_came_too_late_for_its_step_is_lost() -> None:
    push = make_pushes()
    too_late = Pushed(version=1, is_applied=False)
    assert push(3.0, 3.0, outcome=None) == [2.0, 1.0]
    assert push(8.0, 7.0, outcome=too_late) == [2.0, 1.0]


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0, float("nan")])
def test_a_share_is_one_that_gains_something(share: float) -> None:
    with pytest.raises(InvalidInputError, match=r"TopK's share.*less than 0\.5"):
        TopK(share)


def test_compression_is_one_that_there_is() -> None:
    assert check_compression(None) is None
    assert check_compression("bfloat16") == "bfloat16"
    assert check_compression(TopK(0.1)) == TopK(0.1)
    for wrong in ("float16", 0.1, True):
        with pytest.raises(InvalidInputError, match="compression"):
            check_compression(wrong)


def make_model() -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss, metrics=["accuracy"])
    return model


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inputs = np.random.default_rng(0).normal(size=(NUM_STEPS * BATCH_SIZE, 16)).astype(np.float32)
    return inputs, inputs[:, :4].argmax(1).astype(np.int32)


class Training:
    """A model of which a worker's steps are run in the test, within its layout's scope."""

    def __init__(
        self, cluster: Any, *, layout: Any, num_servers: int, compression: Compression | None, holds: bool
    ) -> None:
        self.cluster = cluster
        self.model = make_model()
        self.batches = ArrayBatches((*make_rows(), None), batch_size=BATCH_SIZE, shuffle=False)
        self.model._symbolic_build(data_batch=self.batches.example())
        self.served = describe_model(
            self.model.variables,
            optimizers=[self.model.optimizer],
            num_servers=num_servers,
            partitioner=FixedShardsPartitioner(2),
            mode=Mode.ASYNCHRONOUS,
        )
        write_values(cluster, self.served)
        self.step = FitStep(self.model, self.served, layout=layout, compression=compression)
        self.holds = holds
        self.function = self.make_function()

    def make_function(self) -> FitFunction:
        """Makes what runs the steps, as for a coordinator that has just come."""
        return FitFunction(
            self.cluster,
            setup=self.served.setup,
            step=self.step,
            batches=self.batches,
            overlaps=False,
            holds=self.holds,
        )

    @property
    def residuals(self) -> list[np.ndarray[Any, Any]]:
        """What has not travelled yet."""
        return [np.array(rest) for own in self.step.feedback.residuals for rest in own.values()]


@contextmanager
def training(compression: Compression | None, *, num_servers: int, holds: bool = False) -> Iterator[Training]:
    layout = make_layout()
    with layout.scope(), served(num_servers) as cluster:
        made = Training(cluster, layout=layout, num_servers=num_servers, compression=compression, holds=holds)
        try:
            yield made
        finally:
            made.function.close()


def train(compression: Compression | None) -> tuple[dict[str, np.ndarray[Any, Any]], list[float]]:
    """Returns the values after all steps, and each step's loss."""
    with training(compression, num_servers=2) as made:
        results = run_steps(made.function, range(NUM_STEPS))
        values = read_values(made.cluster, made.served)
    place = [variable.path for variable in made.model.metrics_variables].index("loss/total")
    return values, [float(result["metrics"]["float32"][place]) / BATCH_SIZE for result in results]


@pytest.mark.heavy
def test_training_comes_as_far() -> None:
    """By bfloat16 as by all digits; by a tenth of the gradients nearly so, which arrive some steps later."""
    whole_values, whole = train(None)
    values, bfloat16 = train("bfloat16")
    _, top = train(TopK(0.1))
    begun, ended = np.mean(whole[:3]), np.mean(whole[-10:])
    assert ended < 0.5 * begun
    # 60 steps of gradients that are each off by 2**-9 at the most, and made good by the next one.
    assert abs(np.mean(bfloat16[-10:]) - ended) < 0.01 * begun
    for path, value in whole_values.items():
        error = np.linalg.norm(values[path] - value) / np.linalg.norm(value)
        assert 0 < error < 0.01, path
    # What waits for ten steps at the mean is ten steps late at the mean: no further back than ten steps before.
    assert np.mean(top[-10:]) < np.mean(whole[-25:-15]) + 0.05 * begun


def test_a_push_has_so_many_bytes() -> None:
    bytes_of: dict[str, int] = {}
    sizes: list[int] = []
    for name, compression in {"bfloat16": "bfloat16", "top": TopK(0.01)}.items():
        with training(check_compression(compression), num_servers=2) as made:
            servers = made.cluster.reach_servers()
            pushed = made.step.run(
                servers.pull().dense, made.batches.example(), wanted=NO_ROWS, rows={}
            ).gradients.to_host()
            servers.close()
        bytes_of[name] = sum(array.nbytes for own in pushed for kind, array in own.items() if ".0:" in kind)
        untrained = sum(array.nbytes for own in pushed for kind, array in own.items() if ".1:" in kind)
        assert untrained == 2 * 64 * 4, "moving statistics travel whole"
        sizes = sizes or [own[NAME].size for own in pushed]
    num_values = 16 * 64 + 64 + 2 * 64 + 64 * 4 + 4
    assert sum(sizes) == num_values
    assert 2 * bytes_of["bfloat16"] == 4 * num_values
    assert bytes_of["top"] == 8 * sum(TopK(0.01).count(size) for size in sizes)
    assert 45 * bytes_of["top"] < 4 * num_values, "1 / (2 * share) is 50; of so small buffers a little less"


@pytest.mark.parametrize("num_servers", [2])
def test_what_a_push_had_left_comes_back_where_it_did_not_count(num_servers: int) -> None:
    with training(TopK(0.05), num_servers=num_servers) as made:
        run_steps(made.function, [0, 1])
        before = made.residuals
        run_steps(made.function, [1])  # was pushed already
        for rest, expected in zip(made.residuals, before, strict=True):
            np.testing.assert_allclose(rest, expected, atol=1e-6)
        (result,) = run_steps(made.function, [2])
        assert result["is_applied"]
        assert any(np.abs(rest - former).max() > 1e-4 for rest, former in zip(made.residuals, before, strict=True))


def make_call(number: int, *, batches: list[int], num_restores: int = 0) -> Call:
    options = {"seed": 0, "round": number, "num_writes": 0, "num_restores": num_restores}
    return Call(number=number, watermark=number, args=(options,), kwargs={}, chosen={"batches": batches})


@pytest.mark.parametrize("is_new_coordinator", [False, True])
def test_what_is_left_of_pushes_is_not_of_another_state(is_new_coordinator: bool) -> None:
    with training(TopK(0.05), num_servers=2) as made:
        run_steps(made.function, [0])
        assert all(np.abs(rest).max() > 1e-4 for rest in made.residuals)
        if is_new_coordinator:
            made.function.close()
            made.function = made.make_function()
        else:
            made.function.begin(make_call(1, batches=[], num_restores=1))
        assert all(np.abs(rest).max() == 0.0 for rest in made.residuals)


def test_what_was_never_pushed_leaves_nothing_behind() -> None:
    with training(TopK(0.05), num_servers=2, holds=True) as made:
        run_steps(made.function, [0])
        before = made.residuals
        assert made.function.begin(make_call(1, batches=[1])) == []
        assert any(np.abs(rest - former).max() > 1e-4 for rest, former in zip(made.residuals, before, strict=True))
        assert made.function.forget() == []  # as if a server had been lost
        made.function.recover(lambda: None)
        for rest, expected in zip(made.residuals, before, strict=True):
            np.testing.assert_allclose(rest, expected, atol=1e-6)
