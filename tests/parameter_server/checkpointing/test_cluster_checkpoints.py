"""Checkpoints of a cluster: consistent, written meanwhile, for any number of servers and any strategy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.checkpointing import saving_process
from tests.parameter_server.checkpointing.model import (
    NUM_COLUMNS,
    NUM_ROWS,
    TABLE,
    make_model,
    make_setup,
    position,
    push,
)
from tests.parameter_server.serving import Serving, connect, serving

from lockstep.checkpoints import CheckpointDirectory, TrainingState
from lockstep.errors import CorruptDataError, InvalidInputError, StorageWriteError, UnavailableError
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.parameter_server.checkpointing.cluster_state import ClusterCut, read_dense
from lockstep.parameter_server.protocol import Setup
from lockstep.parameter_server.row_optimizers import RowOptimizer, RowwiseAdagrad
from lockstep.parameter_server.server.ledger import CLOSURES_OF_A_RUN
from lockstep.parameter_server.servers import Servers
from lockstep.parameter_server.whole_state import WholeState
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

ALL_IDS = np.arange(NUM_ROWS, dtype=np.int64)


class ClusterOfTest:
    """Servers, the coordinator's model, a worker that pushes, and checkpoints."""

    def __init__(
        self,
        running: Serving,
        directory: Path,
        *,
        optimizer: Any = None,
        rows: RowOptimizer | None = None,
        **options: Any,
    ) -> None:
        self.running = running
        self.addresses = list(running.addresses)
        num_servers = len(self.addresses)
        self.model = make_model(0, keras.optimizers.Adam(0.01))
        self.setup = make_setup(self.model, num_servers=num_servers, rows=rows)
        self.servers = Servers(running.connect("worker 0"))
        self.next_closure = 0
        given = {"watching": lambda _: lambda: self.next_closure, **options}
        self.checkpoints = ClusterCheckpoints(directory, setup=self.setup, connect=self.reach, **given)
        self.servers.set_up(self.setup)

    def reach(self, server: int) -> Any:
        return connect(self.addresses[server], "coordinator")

    def push(self, *closures: int) -> None:
        for closure in closures:
            push(self.servers, self.setup, closure)
            self.next_closure = max(self.next_closure, closure + 1)

    def rows(self) -> np.ndarray[Any, Any]:
        return self.servers.pull(wanted={TABLE: ALL_IDS}).rows[TABLE].copy()

    def dense(self, closure: int) -> WholeState:
        links = self.running.connect("reader")
        return read_dense(links, self.setup, closure=closure)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, directory: Path, num_servers: int, **options: Any) -> ClusterOfTest:
    cluster = ClusterOfTest(stack.enter_context(serving(num_servers)), directory, **options)
    stack.callback(cluster.checkpoints.close)
    return cluster


def assert_same(found: WholeState, expected: WholeState) -> None:
    for a, b in zip(found.values, expected.values, strict=True):
        np.testing.assert_array_equal(a, b)
    for mine, theirs in zip(found.slots, expected.slots, strict=True):
        assert mine.keys() == theirs.keys()
        for slot, value in mine.items():
            np.testing.assert_array_equal(value, theirs[slot], err_msg=str(slot))


@pytest.mark.parametrize(
    "num_servers", [1, pytest.param(2, marks=pytest.mark.heavy), pytest.param(3, marks=pytest.mark.heavy)]
)
def test_training_goes_on_from_a_checkpoint_over_other_servers(
    stack: ExitStack, tmp_path: Path, num_servers: int
) -> None:
    first = start(stack, tmp_path, 2, part_bytes=300)
    first.push(0, 1, 2)
    first.checkpoints.begin(3, model=first.model, position=position(3))
    dense, rows = first.dense(3), first.rows()
    first.push(3)  # goes on meanwhile
    first.checkpoints.wait()
    assert not first.checkpoints.is_running

    other = start(stack, tmp_path, num_servers)
    other.push(7)  # what there was before is gone
    restored = other.checkpoints.restore(other.model)
    assert restored is not None
    assert (restored.position, restored.closure) == (position(3), 3)
    assert restored.first_closure == CLOSURES_OF_A_RUN
    assert_same(other.dense(restored.first_closure), dense)
    np.testing.assert_array_equal(other.rows(), rows)
    kernel = next(v for v in other.model.trainable_variables if v.path == "model/first/kernel")
    np.testing.assert_array_equal(np.asarray(kernel.value), dense.values[0])

    other.push(restored.first_closure)
    push(first.servers, first.setup, restored.first_closure)
    after = other.dense(restored.first_closure + 1)
    other.push(1)  # a worker of before is still there
    assert_same(other.dense(restored.first_closure + 1), after)


def whole_model(strategy: Any) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        return make_model(NUM_ROWS, keras.optimizers.Adam(0.01))


def steps(model: Any, num_steps: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(num_steps):
        model.train_on_batch(random.standard_normal((8, 3)), random.standard_normal((8, 1)))


DEVICES = ["cpu:0", "cpu:1"]
STRATEGIES = {
    "one device": OneDeviceStrategy,
    "mirrored": lambda: MirroredStrategy(DEVICES),
    "central": lambda: CentralStorageStrategy(DEVICES),
    "sharded": lambda: ShardedStrategy(DEVICES, min_shard_elements=1),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "sharded" else pytest.mark.heavy) for name in STRATEGIES],
)
def test_checkpoints_go_to_other_strategies_and_back(stack: ExitStack, tmp_path: Path, name: str) -> None:
    before = whole_model(STRATEGIES[name]())
    steps(before, 2)
    with CheckpointDirectory(tmp_path) as directory:
        directory.save(TrainingState.capture(before, position=position(2)))

    cluster = start(stack, tmp_path, 2)
    restored = cluster.checkpoints.restore(cluster.model)
    assert restored is not None
    assert restored.position == position(2)
    embeddings = next(v for v in before.trainable_variables if v.path.endswith("embeddings"))
    np.testing.assert_array_equal(cluster.rows(), np.asarray(embeddings.value))
    closure = restored.first_closure
    cluster.push(closure)
    rows = cluster.rows()
    cluster.checkpoints.begin(closure + 1, model=cluster.model, position=position(3))
    cluster.checkpoints.wait()

    after = whole_model(STRATEGIES[name]())
    with CheckpointDirectory(tmp_path) as directory:
        state = directory.restore()
    assert state is not None
    state.apply(after)
    dense = cluster.dense(closure + 1)
    for variable in [*after.trainable_variables, *after.non_trainable_variables]:
        places = {spec.path: n for n, spec in enumerate(cluster.setup.placement.variables)}
        if variable.path in places:
            np.testing.assert_array_equal(np.asarray(variable.value), dense.values[places[variable.path]])
    embeddings = next(v for v in after.trainable_variables if v.path.endswith("embeddings"))
    np.testing.assert_array_equal(np.asarray(embeddings.value), rows)
    momentum = {v.name: np.asarray(v.value) for v in after.optimizer.variables}["model_users_embeddings_momentum"]
    assert np.abs(momentum).min(axis=1).max() > 0
    assert int(np.asarray(after.optimizer.iterations.value)) == 3
    steps(after, 1)


def test_rows_that_were_never_met_begin_as_on_a_server(stack: ExitStack, tmp_path: Path, caplog: Any) -> None:
    cluster = start(stack, tmp_path, 2, rows=RowwiseAdagrad())
    cluster.push(0)
    cluster.checkpoints.begin(1, model=cluster.model, position=position(1))
    cluster.checkpoints.wait()
    model = whole_model(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path) as directory:
        state = directory.restore()
    assert state is not None
    state.apply(model)
    assert "a different optimizer state for table rows" in caplog.text
    assert "model_users_embeddings_momentum" in caplog.text
    embeddings = next(v for v in model.trainable_variables if v.path.endswith("embeddings"))
    found = np.asarray(embeddings.value)
    np.testing.assert_array_equal(found, cluster.rows())
    assert found.shape == (NUM_ROWS, NUM_COLUMNS)


@pytest.mark.heavy
def test_a_lost_server_is_given_its_part_back(stack: ExitStack, tmp_path: Path) -> None:
    cluster = start(stack, tmp_path, 3)
    cluster.push(0, 1)
    assert cluster.checkpoints.restore_server(1, model=cluster.model) is None
    cluster.checkpoints.begin(2, model=cluster.model, position=position(2))
    cluster.checkpoints.wait()
    before = cluster.servers.pull(wanted={TABLE: ALL_IDS})
    before_dense = [{k: v.copy() for k, v in own.items()} for own in before.dense]
    rows = before.rows[TABLE].copy()
    cluster.push(2, 3)
    live = [{k: v.copy() for k, v in own.items()} for own in cluster.servers.pull().dense]

    successor = stack.enter_context(serving(1))
    cluster.addresses[1] = successor.addresses[0]
    links = cluster.running.connect("worker 0")
    links[1:2] = successor.connect("worker 0")
    cluster.servers = Servers(links)
    restored = cluster.checkpoints.restore_server(1, model=cluster.model)
    assert restored is not None
    assert restored.closure == 2
    after = cluster.servers.pull(wanted={TABLE: ALL_IDS})
    for server, own in enumerate(after.dense):
        expected = before_dense if server == 1 else live
        np.testing.assert_array_equal(own["float32"], expected[server]["float32"])
    np.testing.assert_array_equal(after.rows[TABLE][1::3], rows[1::3])
    assert [state.version for state in after.states] == [4, 2, 4]
    cluster.push(4)
    cluster.checkpoints.begin(5, model=cluster.model, position=position(5))
    cluster.checkpoints.wait()


@pytest.mark.heavy
def test_what_no_checkpoint_names_is_removed(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "tables" / "1-abc").mkdir(parents=True)
    cluster = start(stack, tmp_path, 1, keep=2)
    for step in range(4):
        cluster.push(step)
        cluster.checkpoints.begin(step + 1, model=cluster.model, position=position(step + 1))
        cluster.checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4", "tables"]
    assert sorted(path.name[:2] for path in (tmp_path / "tables").iterdir()) == ["3-", "4-"]
    part = next((tmp_path / "tables").glob("4-*/*.rows"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(
        CorruptDataError, match=r"has changed since it was written; received .* delete that checkpoint's folder"
    ):
        cluster.checkpoints.restore(cluster.model)


def test_a_checkpoint_whose_closures_do_not_end_is_given_up(stack: ExitStack, tmp_path: Path) -> None:
    cluster = start(stack, tmp_path, 1, watching=lambda _: lambda: 1, patience_s=0.1)
    cluster.push(0)
    cluster.checkpoints.begin(2, model=cluster.model, position=position(2))
    assert cluster.checkpoints.is_running
    with pytest.raises(UnavailableError, match="not all closures before it have ended"):
        cluster.checkpoints.close()
    assert not list(tmp_path.glob("tables/*"))
    cluster.push(1)


def test_a_checkpoint_is_whole_although_a_server_goes_just_after_it_was_written(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(stack, tmp_path, 1)

    def end(_cut: ClusterCut) -> None:
        raise UnavailableError("the server has gone")

    monkeypatch.setattr(ClusterCut, "end", end)
    cluster.push(0)
    cluster.checkpoints.begin(1, model=cluster.model, position=position(1))
    cluster.checkpoints.wait()  # raises nothing
    assert cluster.checkpoints.last_whole == 1
    monkeypatch.undo()
    restored = cluster.checkpoints.restore(cluster.model)
    assert restored is not None
    assert restored.closure == 1


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    model = make_model(0, keras.optimizers.SGD())
    setup = make_setup(model, num_servers=1)
    twice = Setup(placement=setup.placement, groups=(setup.groups[0], setup.groups[0]))
    with pytest.raises(InvalidInputError, match="received '2 optimizers on the parameter servers'; allowed: one"):
        ClusterCheckpoints(
            tmp_path, setup=twice, connect=lambda _: pytest.fail("too early"), watching=lambda _: lambda: 0
        )


@pytest.mark.heavy
def test_a_killed_writer_leaves_one_of_the_steps_whole(tmp_path: Path) -> None:
    """Its successor goes on from there, and is killed as well."""
    random = np.random.default_rng(0)
    last = 0
    for _ in range(10):
        command = [sys.executable, "-m", saving_process.__name__, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"from {last}\n"
            written = 0
            for _ in range(random.integers(0, 4)):
                written = int(process.stdout.readline())
            time.sleep(random.uniform(0.0, 0.5))  # somewhere within the next one
            process.kill()
            written = max([written, *map(int, process.stdout.read().split())])
        with CheckpointDirectory(tmp_path) as directory:
            state = directory.restore()
        step = 0 if state is None else state.position.step
        assert step >= max(last, written)
        last = step
        if state is not None:
            saving_process.check(state)
    assert last > 10


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted, which root may")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of what Orbax was writing when it ended
def test_training_goes_on_where_the_disk_is_full(stack: ExitStack, tmp_path: Path, caplog: Any) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=True)
    stack.callback(subprocess.run, ["umount", disk], check=True)
    cluster = start(stack, disk, 1)
    ballast = disk / "ballast"
    for num_bytes in range(0, 600 << 10, 24 << 10):  # the disk is full at another moment each time
        ballast.write_bytes(b"x" * ((600 << 10) - num_bytes - (8 << 10)))
        step = 1 + num_bytes
        cluster.push(step)
        cluster.checkpoints.begin(step + 1, model=cluster.model, position=position(step))
        cluster.push(step + 1)
        try:
            cluster.checkpoints.wait()
        except StorageWriteError as error:
            assert "a checkpoint cannot be written to" in str(error)  # noqa: PT017
            assert not list(disk.glob("tables/*"))
        else:
            break
        finally:
            ballast.unlink()
    else:
        pytest.fail("there was room at the end")
    assert num_bytes > 0
    assert "training goes on" in caplog.text
    restored = cluster.checkpoints.restore(cluster.model)
    assert restored is not None
    assert restored.closure == step + 1
