"""What a worker does while its push is under way: it computes the next step, and reads the batch after that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import RoleThreads

from lockstep.parameter_server import ParameterServerStrategy
from lockstep.parameter_server.fitting.data import ArrayBatches
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.servers import Servers
from lockstep.topology import Task, Topology

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

STEPS = 12


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a worker has done, one after the other."""
    noted: list[str] = []

    def note(owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def noting(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread().name == "worker 0":
                noted.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, noting)

    for owner, name in ((ArrayBatches, "batch"), (FitStep, "run"), (Servers, "begin_push"), (Servers, "end_push")):
        note(owner, name)
    return noted


def train(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=6)
    rows = np.ones((16, 4), np.float32)
    model.fit(rows, rows[:, :1], batch_size=4, steps_per_epoch=STEPS, epochs=1, verbose=0)


def pushes(done: list[str]) -> list[set[str]]:
    """Returns what was done between the beginning and the end of each push."""
    starts = [place for place, one in enumerate(done) if one == "begin_push"]
    return [set(done[start + 1 : done.index("end_push", start)]) for start in starts]


def test_a_step_is_computed_and_the_next_batch_read_while_a_push_is_under_way(
    run_roles: RoleThreads, done: list[str]
) -> None:
    run_roles(train)
    meanwhile = pushes(done)
    assert len(meanwhile) == STEPS
    assert sum("run" in what for what in meanwhile) >= STEPS - 2, "all but the last one of all"
    assert sum("batch" in what for what in meanwhile) >= STEPS // 2, "but for those of another closure"


def test_without_overlapping_nothing_is_computed_by_values_that_are_older(
    run_roles: RoleThreads, done: list[str]
) -> None:
    run_roles(train, overlaps=False)
    meanwhile = pushes(done)
    assert len(meanwhile) == STEPS
    assert not any("run" in what for what in meanwhile)
    assert sum("batch" in what for what in meanwhile) >= STEPS // 2, "which needs no values"


@pytest.mark.parametrize(
    ("num_workers", "options", "overlaps"),
    [
        (2, {}, True),
        (3, {}, False),
        (3, {"overlaps": True}, True),
        (2, {"max_staleness": 1}, True),
        (2, {"max_staleness": 0}, False),
        (2, {"num_backup_workers": 0}, False),
    ],
    ids=str,
)
def test_with_more_than_two_workers_steps_overlap_where_somebody_says_so(
    num_workers: int, options: dict[str, Any], overlaps: bool
) -> None:
    cluster = {
        "chief": ("127.0.0.1:1",),
        "worker": tuple(f"127.0.0.1:{10 + number}" for number in range(num_workers)),
        "ps": ("127.0.0.1:3",),
    }
    strategy = ParameterServerStrategy(Topology(cluster=cluster, task=Task(role="chief")), **options)
    assert strategy.member.options.overlaps is overlaps
