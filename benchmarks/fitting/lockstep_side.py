"""Lockstep, in each of its ways to train: ``python -m fitting.lockstep_side ORDER``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.protocol import own_peak_bytes, read_order, say, serve_rounds

BEGUN = time.perf_counter()

import numpy as np  # noqa: E402

import lockstep  # noqa: E402
from fitting.cases import CASES, NUM_CHECKED_STEPS, make_examples  # noqa: E402
from fitting.keras_models import make_model  # noqa: E402
from fitting.keras_side import fit_rounds  # noqa: E402

# isort: split
import jax  # noqa: E402
import keras  # noqa: E402

STRATEGIES = {
    "one-device": lockstep.strategies.OneDeviceStrategy,
    "mirrored": lockstep.strategies.MirroredStrategy,
    "multi-worker": lockstep.strategies.MultiWorkerMirroredStrategy,
}


def shuffled(inputs: Any, labels: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    order = np.random.default_rng().permutation(len(inputs))
    for start in range(0, len(inputs), batch_size):
        rows = order[start : start + batch_size]
        yield inputs[rows], labels[rows]


def make_loop(strategy: Any, model: Any) -> Callable[[Any], Any]:
    """Returns a function that takes a step of a loop of one's own: `lockstep.function` around ``strategy.run``."""
    per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = model.optimizer

    def replica_step(inputs: Any, labels: Any) -> Any:
        variables = model.trainable_variables
        loss, gradients = lockstep.value_and_grad(
            lambda: lockstep.compute_average_loss(per_row(labels, model(inputs, training=True))), variables
        )
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @lockstep.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    return step


def make_pure_loop(strategy: Any, model: Any) -> Callable[[Any], Any]:
    """Returns a function that takes a step of ``strategy.compile``. It keeps the state between calls."""
    loss_of, optimizer = model.loss, model.optimizer

    def loss_fn(trained: Any, others: Any, inputs: Any, labels: Any) -> Any:
        outputs, others = model.stateless_call(trained, others, inputs, training=True)
        return loss_of(labels, outputs), others

    def pure_step(state: Any, batch: Any) -> Any:
        trained, others, optimized = state
        (loss, others), gradients = jax.value_and_grad(loss_fn, has_aux=True)(trained, others, *batch)
        trained, optimized = optimizer.stateless_apply(optimized, gradients, trained)
        return (trained, others, optimized), loss

    optimizer.build(model.trainable_variables)
    groups = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = strategy.replicate(tuple([variable.numpy() for variable in group] for group in groups))
    compiled = strategy.compile(pure_step)

    def step(batch: Any) -> Any:
        nonlocal state
        state, loss = compiled(state, batch)
        return loss

    return step


def loop_rounds(order: dict[str, Any], strategy: Any, model: Any) -> None:
    """Takes the first steps of a loop, then rounds of an epoch each."""
    case, batch_size = CASES[order["case"]], order["batch_size"]
    inputs, labels = make_examples(case, batch_size)
    num_parameters = sum(int(np.prod(one.shape)) for one in model.trainable_variables)
    step = (make_loop if order["way"] == "loop" else make_pure_loop)(strategy, model)

    def train(batches: Any) -> float:
        loss: Any = None
        for batch in batches if order["way"] == "pure" else strategy.experimental_distribute_dataset(batches):
            loss = step(batch)
        return float(loss)

    first = [(inputs[:batch_size], labels[:batch_size])]
    started = time.perf_counter()
    losses = [train(first)]
    ended = time.perf_counter()
    if case.is_checked:
        losses += [train(first) for _ in range(NUM_CHECKED_STEPS - 1)]
    say(
        {
            "first_step_s": ended - started,
            "start_s": ended - BEGUN,
            "losses": losses,
            "num_parameters": num_parameters,
        }
    )
    serve_rounds(lambda: {"loss": train(shuffled(inputs, labels, batch_size)), "peak_bytes": own_peak_bytes()})


if __name__ == "__main__":
    asked = read_order()
    chosen = STRATEGIES[asked["strategy"]]()
    with chosen.scope():
        made = make_model(asked["case"])
    if asked["way"] == "fit":
        fit_rounds(asked, made, begun=BEGUN)
    else:
        loop_rounds(asked, chosen, made)
