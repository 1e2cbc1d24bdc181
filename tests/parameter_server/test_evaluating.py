"""The evaluator beside a training: each checkpoint once, the last one too, and the training knows nothing of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event
from tests.waiting import wait_until

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.checkpoints.tables import RowsWriter, SavedTable, StoredTable
from lockstep.data import read_records
from lockstep.errors import InvalidInputError
from lockstep.parameter_server import Embedding
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.remote_values import Closure
from lockstep.parameter_server.evaluating import (
    Evaluator,
    StoredRows,
    checkpoint_directory,
    watch_coordinator,
)
from lockstep.parameter_server.links import Listener
from lockstep.strategies.table_rows import Rows
from lockstep.testing.script_cluster import ScriptCluster
from lockstep.topology import Outputs, Task, Topology
from lockstep.training import BackupAndRestore, TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

TOKEN = b"t" * 32
TIMEOUT_S = 30.0
INPUTS = np.ones((4, 2), np.float32)
TARGETS = np.zeros((4, 1), np.float32)


def make_model() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse", metrics=["mae"])
    model._symbolic_build(data_batch=(INPUTS, TARGETS, None))  # as fit does in each role
    return model


def save(directory: CheckpointDirectory, *, step: int, tables: tuple[StoredTable, ...] = ()) -> None:
    """Saves a model that gives its step for each row."""
    model = make_model()
    model.set_weights([np.full((2, 1), step / 2)])
    state = TrainingState.capture(model, position=Position(epoch=step, batch=0, step=step))
    directory.save(replace(state, tables=tables))
    directory.wait()


class Noting(keras.callbacks.Callback):
    """Notes evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, dict[str, float]]] = []

    def on_checkpoint_evaluated(self, step: int, logs: Any) -> None:
        self.noted.append((step, dict(logs)))


def test_each_checkpoint_is_evaluated_and_the_last_one_after_the_end(tmp_path: Path) -> None:
    callback, ended = Noting(), threading.Event()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    arguments = {
        "validation_data": (INPUTS, TARGETS),
        "validation_batch_size": 2,
        "validation_steps": 1,
        "callbacks": [keras.callbacks.Callback(), callback],
    }
    evaluator = Evaluator(make_model(), arguments, directory=str(tmp_path), rows=StoredRows(), print_line=lines.put)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(evaluator.run(ended)), daemon=True)
    with CheckpointDirectory(tmp_path) as directory:
        save(directory, step=2)
        thread.start()
        assert lines.get(timeout=TIMEOUT_S) == "checkpoint of step 2: loss 4, mae 2"
        save(directory, step=3)
        assert lines.get(timeout=TIMEOUT_S) == "checkpoint of step 3: loss 9, mae 3"
        save(directory, step=4)
        ended.set()
        assert lines.get(timeout=TIMEOUT_S) == "checkpoint of step 4: loss 16, mae 4"
        thread.join(TIMEOUT_S)
    assert found == [3]
    assert callback.noted == [(step, {"loss": step**2.0, "mae": step}) for step in (2, 3, 4)]


def test_that_there_was_no_checkpoint_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    ended.set()
    arguments = {"validation_data": (INPUTS, TARGETS)}
    evaluator = Evaluator(make_model(), arguments, directory=str(tmp_path / "none"), rows=StoredRows())
    assert evaluator.run(ended) == 0
    assert "no checkpoint of it was in" in caplog.text


def test_an_evaluator_needs_data_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="validation_data"):
        Evaluator(make_model(), {}, directory=str(tmp_path), rows=StoredRows())
    nowhere = Topology(task=Task(role="evaluator"))
    with pytest.raises(InvalidInputError, match="BackupAndRestore"):
        checkpoint_directory({"callbacks": [TensorBoard(tmp_path)]}, nowhere)
    job = replace(nowhere, outputs=Outputs(checkpoint_dir="gs://bucket/job"))
    assert checkpoint_directory({}, job) == "gs://bucket/job"
    assert checkpoint_directory({"callbacks": BackupAndRestore(tmp_path)}, job) == str(tmp_path)


def test_rows_of_tables_are_the_checkpoints(tmp_path: Path) -> None:
    layer = Embedding(100, 2, seed=3, name="users")
    layer.build()
    assert layer.path
    writer = RowsWriter(epath.Path(tmp_path), name="1", part_bytes=1)
    met = {7: 1.0, 3: 2.0, 50: 3.0}
    for ids in ([7, 50], [3]):
        values = np.array([[met[number]] * 2 for number in ids], np.float32)
        writer.add(layer.path, Rows(ids=np.array(ids), values=values, state={}, num_pushes=1))
    parts, num_pushes = writer.finish()[layer.path]
    saved = SavedTable(
        name=layer.path,
        group="trainable",
        number=0,
        num_rows=100,
        num_columns=2,
        first_values=layer.first_values(),
        widths={},
        num_pushes=num_pushes,
        parts=parts,
    )
    rows, ids = StoredRows(), np.array([0, 3, 7, 50, 99])
    first = layer.first_values().of(ids, num_columns=2, dtype=np.dtype(np.float32))
    np.testing.assert_array_equal(rows.read(layer, ids), first)
    rows.take([StoredTable(saved=saved, folder=epath.Path(tmp_path))])
    np.testing.assert_array_equal(rows.read(layer, ids)[1:4], [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]])
    np.testing.assert_array_equal(rows.read(layer, ids)[[0, 4]], first[[0, 4]])
    rows.take([])
    np.testing.assert_array_equal(rows.read(layer, ids), first)


def test_a_checkpoint_whose_rows_are_gone_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = RowsWriter(epath.Path(tmp_path / "tables"), name="1")
    writer.add("users", Rows(ids=np.array([1]), values=np.ones((1, 2), np.float32), state={}, num_pushes=1))
    parts, _ = writer.finish()["users"]
    values = Embedding(9, 2, seed=0).first_values()
    saved = SavedTable(
        name="users",
        group="trainable",
        number=0,
        num_rows=9,
        num_columns=2,
        first_values=values,
        widths={},
        num_pushes=1,
        parts=parts,
    )
    ended, lines = threading.Event(), list[str]()
    ended.set()
    with CheckpointDirectory(tmp_path) as directory:
        save(directory, step=2, tables=(StoredTable(saved=saved, folder=directory.tables),))
        (directory.tables / parts[0].path).unlink()
        arguments = {"validation_data": (INPUTS, TARGETS)}
        evaluator = Evaluator(
            make_model(), arguments, directory=str(tmp_path), rows=StoredRows(), print_line=lines.append
        )
        assert evaluator.run(ended) == 0
    assert lines == []
    assert "step 2 is skipped" in caplog.text


@pytest.fixture
def coordinator() -> Iterator[tuple[Dispatcher, Cluster]]:
    listener = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=4.0)
    topology = Topology(
        cluster={"chief": (listener.address,), "worker": ("127.0.0.1:1",), "ps": ("127.0.0.1:2",)},
        task=Task(role="evaluator"),
    )
    made = Dispatcher(listener)
    yield made, Cluster(topology=topology, token=TOKEN, silence_s=4.0, start_within_s=TIMEOUT_S)
    made.close()


def test_a_coordinator_is_watched_to_its_end_and_does_not_take_that_for_a_worker(
    coordinator: tuple[Dispatcher, Cluster],
) -> None:
    dispatcher, cluster = coordinator
    ended = watch_coordinator(cluster)
    wait_until(lambda: dispatcher.num_onlookers)
    value = dispatcher.schedule(Closure(function="fit"))
    assert dispatcher.workers == []
    assert not value.is_ended
    assert not ended.is_set()
    dispatcher.close()
    assert ended.wait(TIMEOUT_S)


def test_two_evaluators_of_one_name_both_hear_of_the_end(coordinator: tuple[Dispatcher, Cluster]) -> None:
    dispatcher, cluster = coordinator
    ended = [watch_coordinator(cluster) for _ in range(2)]
    wait_until(lambda: dispatcher.num_onlookers == 2)
    dispatcher.close()
    assert all(one.wait(TIMEOUT_S / 3) for one in ended)


def test_a_coordinator_that_is_lost_is_waited_for(
    coordinator: tuple[Dispatcher, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    _, cluster = coordinator
    lost = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=4.0)
    address = lost.address
    elsewhere = replace(cluster.topology, cluster={**cluster.topology.cluster, "chief": (address,)})
    seen: list[str] = []
    ended = watch_coordinator(replace(cluster, topology=elsewhere))
    while not seen:
        lost.step(lambda request: seen.append(request.message.kind), timeout_s=0.1)
    lost.close()  # without a word
    wait_until(lambda: "lost the coordinator" in caplog.text)
    assert not ended.is_set()
    successor = Dispatcher(Listener(address, name="chief 0", token=TOKEN, silence_s=4.0))
    wait_until(lambda: successor.num_onlookers)
    successor.close()
    assert ended.wait(TIMEOUT_S)


def test_a_coordinator_that_never_comes_counts_as_ended(coordinator: tuple[Dispatcher, Cluster]) -> None:
    _, cluster = coordinator
    free = Listener("127.0.0.1:0", name="chief 0", token=TOKEN, silence_s=4.0)
    free.close()
    elsewhere = replace(cluster.topology, cluster={**cluster.topology.cluster, "chief": (free.address,)})
    ended = watch_coordinator(replace(cluster, topology=elsewhere, start_within_s=0.5))
    assert ended.wait(TIMEOUT_S)


SCRIPT = """
import sys
from lockstep.parameter_server import Embedding, LocalProcesses, ParameterServerStrategy
strategy = ParameterServerStrategy(LocalProcesses())
import keras
import numpy as np
from lockstep.training import BackupAndRestore, TensorBoard
keras.utils.set_random_seed(1)
with strategy.scope():
    ids, numbers = keras.Input((3,), dtype="int32"), keras.Input((4,))
    rows = keras.layers.Flatten()(Embedding(50, 4)(ids))
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()([rows, numbers]))
    model = keras.Model([ids, numbers], outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
random = np.random.default_rng(0)
x = [random.integers(0, 40, (600, 3)), random.normal(size=(600, 4)).astype("float32")]
y = x[1][:, :3].argmax(1)
x, y, validation = [one[:400] for one in x], y[:400], ([one[400:] for one in x], y[400:])
callbacks = [BackupAndRestore("run"), TensorBoard("board")]
model.fit(x, y, batch_size=16, steps_per_epoch=25, epochs=4, validation_data=validation, callbacks=callbacks, verbose=0)
results = model.evaluate(*validation, verbose=0, return_dict=True)
print("chief:", ", ".join(f"{name} {value:.4g}" for name, value in results.items()), flush=True)
"""


@pytest.mark.heavy
def test_a_script_is_evaluated_beside_its_training(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with ScriptCluster([script], folder=tmp_path, num_workers=1, num_servers=2, evaluator=True) as cluster:
        assert cluster.end(timeout_s=150.0) == 0
        cluster.wait_until(
            lambda: "evaluator 0" not in cluster.processes or not cluster.processes["evaluator 0"].is_alive
        )
        chief, evaluator = cluster.text("chief").splitlines(), cluster.text("evaluator").splitlines()
    (last,) = [line for line in chief if line.startswith("chief: ")]
    lines = [line for line in evaluator if line.startswith("checkpoint of step ")]
    records = [one for path in (tmp_path / "board" / "validation").iterdir() for one in read_records(str(path))]
    scalars = [(value.tag, event.step) for event in map(Event.FromString, records) for value in event.summary.value]
    written = [f"checkpoint of step {step}" for tag, step in scalars if tag == "evaluation_loss_vs_iterations"]
    assert written == [line.split(":")[0] for line in lines]
    assert lines
    assert lines[-1] == last.replace("chief:", "checkpoint of step 100:"), "the last one, with the rows of its table"
    assert len(set(written)) == len(lines)
