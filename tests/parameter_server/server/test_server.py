"""A server with workers: what they push is applied once, as it arrives or a step at a time, and all get the values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.every_optimizer import describe_built

from lockstep.parameter_server.links import Link, Listener, Message, Request
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import (
    Expected,
    Group,
    Mode,
    Part,
    Push,
    Pushed,
    Setup,
    TableSpec,
    from_fields,
    to_fields,
)
from lockstep.parameter_server.row_optimizers import RowSGD
from lockstep.parameter_server.server.server import ParameterServer
from lockstep.strategies.table_rows import Draw, RowValues

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

TOKEN = b"t" * 32
TIMEOUT_S = 30.0
SIZE = 6


def make_setup(mode: Mode = Mode.ASYNCHRONOUS, *, learning_rate: float = 1.0, optimizer: Any = None) -> Setup:
    variable = keras.Variable(np.zeros(SIZE), dtype="float32", name="w")
    placement = place([VariableSpec(path="w", shape=(SIZE,), dtype="float32")], num_servers=1)
    group = Group(
        variables=(0,), optimizer=describe_built(optimizer or keras.optimizers.SGD(learning_rate), [variable])
    )
    table = TableSpec(
        name="users",
        num_rows=100,
        num_columns=2,
        values=RowValues(draw=Draw.CONSTANT),
        optimizer=RowSGD(learning_rate=1.0),
    )
    return Setup(placement=placement, groups=(group,), tables=(table,), mode=mode)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1:0", name="ps 0", token=TOKEN, silence_s=5.0)
    yield listener
    listener.close()


@pytest.fixture
def server(listener: Listener) -> Iterator[ParameterServer]:
    server = ParameterServer(listener)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    if not server.is_done:
        link = connect(listener.address, "end")
        link.request(Message(kind="done"))
        link.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.fixture
def links() -> Iterator[list[Link]]:
    made: list[Link] = []
    yield made
    for link in made:
        link.close()


def connect(address: str, name: str) -> Link:
    return Link(address, peer_name="ps 0", token=TOKEN, name=name, silence_s=5.0, connect_s=TIMEOUT_S)


@pytest.fixture
def worker(server: ParameterServer, listener: Listener, links: list[Link]) -> Callable[..., Link]:
    del server  # it serves there

    def make(name: str) -> Link:
        links.append(connect(listener.address, name))
        return links[-1]

    return make


def push(link: Link, closure: int, *, gradient: float = 1.0, **changes: Any) -> tuple[Pushed, np.ndarray[Any, Any]]:
    header = to_fields(Push(closure=closure, **{"parts": (Part(),), **changes}))
    arrays = {"gradient.0:float32": np.full(SIZE, gradient, np.float32)}
    answer = link.request(Message(kind="push", fields=header, arrays=arrays), timeout_s=TIMEOUT_S)
    return from_fields(Pushed, answer.fields), answer.arrays["dense:float32"].copy()


def start(worker: Callable[..., Link], setup: Setup) -> Link:
    chief = worker("coordinator")
    chief.request(Message(kind="setup", fields=to_fields(setup)))
    chief.request(Message(kind="write", arrays={"dense:float32": np.zeros(SIZE, np.float32)}))
    return chief


def test_a_push_is_applied_as_it_arrives_and_once(worker: Callable[..., Link]) -> None:
    start(worker, make_setup())
    first, second = worker("worker 0"), worker("worker 1")
    state, values = push(first, 0)
    assert (state.version, state.is_applied, state.staleness) == (1, True, 0)
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0))
    state, values = push(second, 0, gradient=5.0)
    assert not state.is_applied, "the closure was run again, by another worker"
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0))
    state, values = push(second, 1)
    assert (state.version, state.staleness) == (2, 1), "it had pulled before the first push"
    state, _ = push(first, 2, pulled_version=2, watermark=2)
    assert state.staleness == 0
    assert not push(first, 1)[0].is_applied, "closures below the watermark have ended"


def test_rows_come_and_go_with_the_same_exchange(worker: Callable[..., Link]) -> None:
    start(worker, make_setup())
    link = worker("worker 0")
    arrays = {
        "ids:users": np.array([3, 5], np.int64),
        "rows:users": np.array([[1, 2], [3, 4]], np.float32),
        "wanted:users": np.array([3, 4, 5], np.int64),
    }
    header = to_fields(Push(closure=0, is_answered_by_values=False))
    answer = link.request(Message(kind="push", fields=header, arrays=arrays))
    assert list(answer.arrays) == ["rows:users"]
    np.testing.assert_array_equal(answer.arrays["rows:users"], [[-1, -2], [0, 0], [-3, -4]])


def test_requests_are_counted_by_their_kinds() -> None:
    listener = Listener("127.0.0.1:0", name="ps 0", token=TOKEN, silence_s=5.0)
    server = ParameterServer(listener)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    link = connect(listener.address, "worker 0")
    start(lambda _name: link, make_setup())
    for closure in (0, 0, 1):
        push(link, closure)
    link.request(Message(kind="done"))
    thread.join(TIMEOUT_S)
    link.close()
    listener.close()
    assert server.num_requests == {"setup": 1, "write": 1, "push": 3, "done": 1}
    assert server.num_applied == 2


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda number=number, call=call: found.setdefault(number, call()), daemon=True)
        for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return [found[number] for number in range(len(calls))]


def test_a_synchronous_step_is_the_mean_of_all_workers_pushes(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    workers = [worker(f"worker {number}") for number in range(3)]
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=3))))
    for step in range(3):
        answers = in_threads(
            *(
                lambda number=number, step=step: push(
                    workers[number], 3 * step + number, gradient=float(number), step=step
                )
                for number in range(3)
            )
        )
        for state, values in answers:
            assert (state.step, state.is_applied) == (step + 1, True)
            np.testing.assert_allclose(values, np.full(SIZE, -(step + 1.0)))


@pytest.fixture
def waiting(worker: Callable[..., Link], server: ParameterServer) -> tuple[Link, Link]:
    """The coordinator's link, and one of a worker whose push waits for another one."""
    chief, first = start(worker, make_setup(Mode.SYNCHRONOUS)), worker("worker 0")
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    begin_push(first, 0, server=server)
    return chief, first


def begin_push(link: Link, closure: int, *, server: ParameterServer) -> None:
    before = server.num_requests["push"]
    arrays = {"gradient.0:float32": np.ones(SIZE, np.float32)}
    link.begin(Message(kind="push", fields=to_fields(Push(closure=closure, parts=(Part(),))), arrays=arrays))
    deadline = time.monotonic() + TIMEOUT_S
    while server.num_requests["push"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_who_pushes_again_what_waits_for_its_step_waits_as_well(
    worker: Callable[..., Link], server: ParameterServer, waiting: tuple[Link, Link]
) -> None:
    _, first = waiting
    second = worker("worker 1")
    begin_push(second, 0, server=server)
    state, values = push(worker("worker 2"), 1)
    assert (state.step, state.is_applied) == (1, True)
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0), err_msg="the mean of two")
    found = [from_fields(Pushed, link.end(timeout_s=TIMEOUT_S).fields) for link in (first, second)]
    assert [(one.step, one.is_applied, one.was_applied) for one in found] == [(1, True, False), (1, False, True)]
    state, _ = push(second, 1)
    assert (state.is_applied, state.was_applied) == (False, True), "when another one ran the closure"
    state, _ = push(second, 2)
    assert (state.is_applied, state.was_applied) == (False, False), "too late for its step"


@keras.saving.register_keras_serializable(package="tests_of_servers")
class Broken(keras.optimizers.SGD):
    """An optimizer that does not update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        raise ZeroDivisionError("this optimizer is broken")


def test_all_who_wait_for_a_step_hear_that_it_cannot_be_applied(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS, optimizer=Broken(1.0)))
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    first, second = worker("worker 0"), worker("worker 1")
    errors: list[str] = []

    def wait(link: Link, closure: int, *, step: int) -> None:
        with pytest.raises(RemoteError, match="this optimizer is broken"):
            push(link, closure, step=step)
        errors.append(f"{closure}")

    for step in range(2):
        in_threads(*(partial(wait, link, 2 * step + n, step=step) for n, link in enumerate((first, second))))
    assert sorted(errors) == ["0", "1", "2", "3"]


def test_an_answer_that_cannot_be_made_is_one_workers_alone(
    worker: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    make_answer = ParameterServer._answer

    def answer(server: ParameterServer, request: Request, *args: Any) -> Message:
        if request.peer.name == "worker 0":
            raise MemoryError("no room for an answer")
        return make_answer(server, request, *args)

    monkeypatch.setattr(ParameterServer, "_answer", answer)

    def wait(link: Link) -> None:
        with pytest.raises(RemoteError, match="no room for an answer"):
            push(link, 0)

    first, second = worker("worker 0"), worker("worker 1")
    _, (state, values) = in_threads(partial(wait, first), partial(push, second, 1))
    assert (state.step, state.is_applied) == (1, True)
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0))


def test_rows_that_are_not_there_are_refused_before_a_push_counts(worker: Callable[..., Link]) -> None:
    start(worker, make_setup())
    link = worker("worker 0")
    arrays = {"gradient.0:float32": np.ones(SIZE, np.float32), "wanted:users": np.array([-1], np.int64)}
    with pytest.raises(RemoteError, match="ids of table users"):
        link.request(Message(kind="push", fields=to_fields(Push(closure=0, parts=(Part(),))), arrays=arrays))
    assert push(link, 0)[0].is_applied


def test_a_server_goes_on_with_the_coordinators_step(worker: Callable[..., Link], waiting: tuple[Link, Link]) -> None:
    chief, first = waiting
    answer = chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=1, step=3))))
    assert answer.fields == {"num_skipped_steps": 3}
    state = from_fields(Pushed, first.end(timeout_s=TIMEOUT_S).fields)
    assert (state.step, state.is_applied, state.was_applied) == (3, False, False)
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=5, step=2))))
    state, values = push(first, 0, step=3)
    assert (state.step, state.is_applied) == (4, True), "of a step that has ended nothing is expected, nor remembered"
    assert state.version == 1
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0))


def test_who_waits_for_a_step_is_answered_when_another_coordinator_begins(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    left = worker("worker 0")
    chief.request(Message(kind="begin"))
    chief.request(Message(kind="write", arrays={"dense:float32": np.zeros(SIZE, np.float32)}))
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(push(left, 0, step=0)), daemon=True)
    thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while thread.is_alive():  # it may begin before the push has come
        assert time.monotonic() < deadline
        begun = worker("successor").request(Message(kind="begin"))
        thread.join(0.2)
        chief.request(Message(kind="write", arrays={"dense:float32": np.zeros(SIZE, np.float32)}))
    assert not found[0][0].is_applied
    assert begun.fields["first_closure"] > 0


def test_a_coordinator_that_begins_finds_nothing_of_the_one_before(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup())
    assert chief.request(Message(kind="begin")).fields == {"first_closure": 0}
    chief.request(Message(kind="write", arrays={"dense:float32": np.zeros(SIZE, np.float32)}))
    late = worker("worker 0")
    push(late, 0)
    successor = worker("successor")
    first = successor.request(Message(kind="begin")).fields["first_closure"]
    with pytest.raises(RemoteError, match="has no values yet"):
        late.request(Message(kind="join", fields={"signature": make_setup().signature}))
    successor.request(Message(kind="write", arrays={"dense:float32": np.ones(SIZE, np.float32)}))
    state, values = push(late, 1)
    assert not state.is_applied, "of the one before"
    np.testing.assert_array_equal(values, np.ones(SIZE))
    state, values = push(late, first)
    assert (state.is_applied, state.version) == (True, 1)
    np.testing.assert_array_equal(values, np.zeros(SIZE))


def test_the_slowest_is_left_out_where_there_is_a_backup(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    workers = [worker(f"worker {number}") for number in range(3)]
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    in_threads(*(lambda number=number: push(workers[number], number, step=0) for number in (0, 2)))
    state, values = push(workers[1], 1, gradient=9.0, step=0)
    assert (state.is_applied, state.step) == (False, 1)
    np.testing.assert_array_equal(values, np.full(SIZE, -1.0))


def test_a_worker_that_is_lost_holds_nobody_up_once_fewer_are_expected(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    left = worker("worker 0")
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))
    waiting = threading.Event()
    found: list[Any] = []

    def wait() -> None:
        waiting.set()
        found.append(push(left, 0, step=0))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waiting.wait(TIMEOUT_S)
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=1))))
    thread.join(TIMEOUT_S)
    assert found[0][0].step == 1


def test_synchronous_rows_are_summed_by_their_ids(worker: Callable[..., Link]) -> None:
    chief = start(worker, make_setup(Mode.SYNCHRONOUS))
    workers = [worker("worker 0"), worker("worker 1")]
    chief.request(Message(kind="expect", fields=to_fields(Expected(num_pushes=2))))

    def go(number: int, ids: list[int]) -> Any:
        arrays = {
            "ids:users": np.array(ids, np.int64),
            "rows:users": np.full((len(ids), 2), 2.0, np.float32),
            "wanted:users": np.array([1, 2, 3], np.int64),
        }
        header = to_fields(Push(closure=number, is_answered_by_values=False))
        return workers[number].request(Message(kind="push", fields=header, arrays=arrays)).arrays["rows:users"].copy()

    for rows in in_threads(lambda: go(0, [1, 2]), lambda: go(1, [2, 3])):
        np.testing.assert_array_equal(rows, [[-1, -1], [-2, -2], [-1, -1]])


def test_a_worker_with_another_model_is_refused(worker: Callable[..., Link]) -> None:
    start(worker, make_setup())
    link = worker("worker 0")
    link.request(Message(kind="join", fields={"signature": make_setup().signature}))
    with pytest.raises(RemoteError, match="worker 0 has another model, optimizer or partitioner than the coordinator"):
        link.request(Message(kind="join", fields={"signature": make_setup(learning_rate=0.5).signature}))


def test_who_watches_hears_of_the_end_and_of_nothing_before_there_are_values(worker: Callable[..., Link]) -> None:
    watcher, chief = worker("watcher"), worker("coordinator")
    with pytest.raises(RemoteError, match="has not been set up yet"):
        watcher.request(Message(kind="watch"))
    chief.request(Message(kind="setup", fields=to_fields(make_setup())))
    with pytest.raises(RemoteError, match="has no values yet"):
        watcher.request(Message(kind="watch"))
    chief.request(Message(kind="write", arrays={"dense:float32": np.zeros(SIZE, np.float32)}))
    watcher.begin(Message(kind="watch"))
    push(worker("worker 0"), 0)
    chief.request(Message(kind="done"))
    assert watcher.end(timeout_s=TIMEOUT_S).kind == "ok"


def test_a_server_is_set_up_once(worker: Callable[..., Link]) -> None:
    chief = worker("coordinator")
    with pytest.raises(RemoteError, match="has not been set up yet"):
        chief.request(Message(kind="pull"))
    start(worker, make_setup())
    chief.request(Message(kind="setup", fields=to_fields(make_setup())))
    with pytest.raises(RemoteError, match="keeps another model already"):
        chief.request(Message(kind="setup", fields=to_fields(make_setup(Mode.SYNCHRONOUS))))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(
            Message(kind="fly"),
            "no such request; received 'fly'; allowed: begin, clear, cut, done, end, expect",
            id="kind",
        ),
        pytest.param(Message(kind="push", fields={"closure": "x"}), "a Push with a wrong closure", id="form"),
        pytest.param(
            Message(
                kind="push",
                fields={"closure": 0},
                arrays={"ids:items": np.zeros(1, np.int64), "rows:items": np.zeros((1, 2), np.float32)},
            ),
            "there is no such table; received 'items'; allowed: users",
            id="table",
        ),
        pytest.param(
            Message(kind="push", fields={"closure": 0, "parts": [{}]}, arrays={"gradient.0:float64": np.zeros(SIZE)}),
            "not those of this server's variables",
            id="dtype",
        ),
        pytest.param(Message(kind="expect", fields={"num_pushes": 0}), "number of pushes in a step", id="none"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    worker: Callable[..., Link], message: Message, said: str
) -> None:
    start(worker, make_setup())
    link = worker("worker 0")
    with pytest.raises(RemoteError, match=said):
        link.request(message)
    assert from_fields(Pushed, link.request(Message(kind="pull")).fields).version == 0
