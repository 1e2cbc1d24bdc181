"""A process that trains and writes checkpoints without end: every value says how many steps are in it."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
from tests.parameter_server.checkpointing.model import NUM_ROWS, make_model, make_setup, position, push
from tests.parameter_server.serving import connect, serving

from lockstep.checkpoints import TrainingState
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.parameter_server.row_optimizers import RowSGD
from lockstep.parameter_server.servers import Servers
from lockstep.strategies.table_rows import Draw, RowValues


def train(directory: str) -> None:
    """Prints the step that it goes on from, and then each step that is written."""
    model = make_model(0, keras.optimizers.SGD(1.0))
    values = RowValues(draw=Draw.CONSTANT)
    setup = make_setup(model, num_servers=2, rows=RowSGD(learning_rate=1.0), values=values)
    with serving(2) as running:
        closure = 0
        checkpoints = ClusterCheckpoints(
            directory,
            setup=setup,
            connect=lambda server: connect(running.addresses[server], "coordinator"),
            watching=lambda _: lambda: closure,
            part_bytes=200,
        )
        restored = checkpoints.restore(model)
        step = 0
        servers = Servers(running.connect("worker 0"))
        if restored is None:
            servers.set_up(setup)  # all values are 0
        else:
            closure, step = restored.first_closure, restored.position.step
        print(f"from {step}", flush=True)
        while True:
            checkpoints.begin(closure, model=model, position=position(step))
            written = step
            while True:
                push(servers, setup, closure, make=lambda shape: np.ones(shape, np.float32), num_ids=NUM_ROWS)
                closure, step = closure + 1, step + 1
                if not checkpoints.is_running:
                    break
            checkpoints.wait()
            print(written, flush=True)


def check(state: TrainingState) -> None:
    """Checks that a state is that of its step, all of it."""
    step = state.position.step
    arrays = {name: {key: np.asarray(value) for key, value in group.items()} for name, group in state.arrays.items()}
    trained = {number: array for number, array in arrays["trainable"].items() if array.size}
    assert len(trained) == len(state.paths["trainable"]) - 1
    moving = [arrays["non_trainable"][str(n)] for n, path in enumerate(state.paths["non_trainable"]) if "norm" in path]
    assert len(moving) == 2
    steps: list[Any] = [*(-array for array in trained.values()), *moving]
    values, _ = state.tables[0].whole([])
    steps.append(-values)
    for array in steps:
        np.testing.assert_array_equal(array, np.full_like(array, step))
    assert int(arrays["optimizer"]["0"]) == step
    assert state.cluster is not None
    assert [server["num_applied"] for server in state.cluster["servers"]] == [step, step]


if __name__ == "__main__":
    train(sys.argv[1])
