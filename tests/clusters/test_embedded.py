"""The embedded Ray: the conformance suite, and what is its alone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from lockstep.clusters import AbstractCluster, EngineChoice, open_cluster
from lockstep.clusters.choice import ATTACHED
from lockstep.clusters.ray import base
from lockstep.clusters.ray.driver import Driver
from lockstep.clusters.ray.driver_process import DRIVER_VARIABLE
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.clusters.ray.reserve import REFILL_AFTER_S
from lockstep.errors import EngineError, InvalidInputError
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.orders import GANG_ORDER, NO_ROOM, GangEnd, GangOrder, GangOutcome, GangPhase
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.processes.ports import reserve_again
from lockstep.spools import segments_of
from lockstep.testing.clusters import (
    WAIT,
    AbstractClusterConformance,
    await_life,
    check_lives,
    log_lines,
    make_gang,
    make_served_gang,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings(
    # Ray 2.60 leaves a socket and a pipe of its own start-up to the garbage collector.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(scope="module")
def embedded(home: Home) -> Iterator[AbstractCluster]:
    cluster = open_cluster(EngineChoice(), home=home, catalogue=load_catalogue())
    cluster.start()
    yield cluster
    cluster.shut_down()
    assert EmbeddedHead(home).find() is None


@pytest.fixture
def connected(embedded: AbstractCluster, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process a driver of the engine's Ray, as the engine's own is."""
    head = EmbeddedHead(home)
    embedded.start()
    record = head.find()
    assert record is not None
    for name, value in head.environment().items():
        monkeypatch.setenv(name, value)
    Driver().connect(address=record.address)
    yield
    ray.shutdown()


class TestEmbeddedRay(AbstractClusterConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, embedded: AbstractCluster) -> None:
        self._made = embedded

    def cluster(self) -> AbstractCluster:
        return self._made


def test_gangs_outlive_the_process_that_placed_them(embedded: AbstractCluster, home: Home, tmp_path: Path) -> None:
    order = make_gang(tmp_path, "orphan", "master", script=WAIT)
    script = (
        "import os, sys; from pathlib import Path; from lockstep.clusters import EngineChoice, open_cluster;"
        "from lockstep.jobs.machines.catalogue import load_catalogue;"
        "from lockstep.home import Home; from lockstep.jobs.running.orders import GANG_ORDER;"
        "cluster = open_cluster(EngineChoice(), home=Home(path=Path(sys.argv[1])), catalogue=load_catalogue());"
        "cluster.start();"
        "cluster.place(GANG_ORDER.validate_json(sys.argv[2])); os.kill(os.getpid(), 9)"
    )
    text = GANG_ORDER.dump_json(order).decode()
    placed = subprocess.run([sys.executable, "-c", script, str(home.path), text], timeout=60, check=False)
    assert placed.returncode == -signal.SIGKILL
    status = wait_until(embedded, "orphan", lambda status: status.phase is GangPhase.RUNNING)
    assert status.replicas[0].pid is not None
    assert psutil.pid_exists(status.replicas[0].pid)
    embedded.forget("orphan")


@pytest.mark.heavy
def test_a_worker_whose_launcher_is_killed_is_launched_again_at_its_address(
    embedded: AbstractCluster, tmp_path: Path
) -> None:
    order = make_served_gang(tmp_path, "launcher")
    embedded.place(order)
    first = await_life(embedded, order, life=0, num_restarts=0)
    pid = first.replicas[1].pid
    assert pid is not None
    launcher = psutil.Process(pid).parents()[1]
    assert "Launcher" in " ".join(launcher.cmdline())
    launcher.kill()
    second = await_life(embedded, order, life=1, num_restarts=1)
    others = [[status.replicas[number].pid for number in (0, 2, 3)] for status in (first, second)]
    assert others[0] == others[1]
    status = check_lives(embedded, order, num_lives=2)
    assert [restart.reason for restart in status.replicas[1].restarts] == ["NODE_LOST(worker-0)"]
    embedded.forget("launcher")


@pytest.mark.heavy
def test_a_worker_that_may_move_takes_another_address_where_its_own_is_taken(
    embedded: AbstractCluster, tmp_path: Path
) -> None:
    order = replace(make_served_gang(tmp_path, "address"), move_within_s=600.0)
    embedded.place(order)
    first = await_life(embedded, order, life=0, num_restarts=0)
    pid = first.replicas[1].pid
    assert pid is not None
    address = log_lines(order.replicas[1])[0].rpartition(" ")[2]
    psutil.Process(pid).parents()[1].kill()
    taken = reserve_again(address, timeout_s=10.0)
    second = await_life(embedded, order, life=1, num_restarts=1)
    assert [status.replicas[2].pid for status in (first, second)] == [first.replicas[2].pid] * 2
    said = [line for line in log_lines(order.replicas[1]) if line.startswith("life 1")]
    assert {line.rpartition(" ")[2] for line in said}.isdisjoint({address})
    (tmp_path / "go").touch()
    status = wait_until(embedded, "address", lambda status: status.end is not None)
    assert status.end == GangEnd(outcome=GangOutcome.SUCCEEDED)
    taken.close()
    embedded.forget("address")


@pytest.mark.heavy
def test_what_a_bucket_refuses_is_said_and_stays_where_it_is(embedded: AbstractCluster, tmp_path: Path) -> None:
    order = make_gang(tmp_path, "refused", "master", "worker", script="print('kept')")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the bucket's folder should be")
    replicas = tuple(replace(each, log_url=str(blocked / each.name)) for each in order.replicas)
    order = replace(order, replicas=replicas)
    embedded.place(order)
    status = wait_until(embedded, "refused", lambda status: status.phase is GangPhase.ENDED)
    assert status.end == GangEnd(outcome=GangOutcome.SUCCEEDED), status
    assert status.has_leftovers
    left = {replica.name: segments_of(Path(replica.spool)) for replica in replicas}
    assert all(left.values()), left
    assert embedded.collect_leftovers(order)
    assert {replica.name: segments_of(Path(replica.spool)) for replica in replicas} == left
    embedded.forget("refused")
    assert embedded.collect_leftovers(order), "of what it does not know, there is nothing"


def test_starting_again_finds_the_same_engine(embedded: AbstractCluster, home: Home) -> None:
    before = EmbeddedHead(home).find()
    embedded.start()
    assert EmbeddedHead(home).find() == before


def test_processes_that_gangs_took_are_replaced_by_ready_ones(
    embedded: AbstractCluster, home: Home, tmp_path: Path
) -> None:
    _take_workers(embedded, tmp_path, gang_id="taker")
    _await_ready(embedded, home)


@pytest.mark.heavy
def test_a_control_store_that_hangs_while_processes_are_replaced_keeps_no_pass(
    embedded: AbstractCluster, home: Home, tmp_path: Path
) -> None:
    (store,) = (process for process in _processes(home) if process.name() == "gcs_server")
    _take_workers(embedded, tmp_path, gang_id="hanging-taker")
    asked_s = time.monotonic() + REFILL_AFTER_S + 1.0
    driver = _driver(home)
    store.suspend()
    try:
        while time.monotonic() < asked_s:
            embedded.start()  # as each pass of the controller does
            time.sleep(0.05)
        assert time.monotonic() < asked_s + 5.0
    finally:
        store.resume()
    _await_ready(embedded, home)
    assert _driver(home) == driver


def _driver(home: Home) -> ProcessIdentity:
    """The process that is connected to Ray."""
    mark = os.path.realpath(home.engine)
    (found,) = find_marked(DRIVER_VARIABLE, accept=lambda value: value == mark)
    return found


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGABRT,
        signal.SIGTERM,
        signal.SIGSTOP,  # which hangs for as long as Ray may take
    ],
)
@pytest.mark.heavy
def test_a_driver_that_dies_or_hangs_is_replaced_and_gangs_run_on(
    embedded: AbstractCluster, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(base, "MARGIN_S", 0.5)
    gang_id = f"beside-{number.name}"
    embedded.place(make_gang(tmp_path, gang_id, "master", script=WAIT))
    before = wait_until(embedded, gang_id, lambda status: status.phase is GangPhase.RUNNING)
    head, driver = EmbeddedHead(home).find(), _driver(home)
    driver.send(number)
    with pytest.raises(EngineError, match="driver"):
        _observe_for(embedded, gang_id, seconds=30.0)
    embedded.start()
    assert _driver(home) != driver
    assert not driver.is_alive
    after = embedded.observe(gang_id)
    assert after is not None
    assert after.replicas[0].pid == before.replicas[0].pid
    assert EmbeddedHead(home).find() == head
    embedded.forget(gang_id)


def _observe_for(cluster: AbstractCluster, gang_id: str, *, seconds: float) -> None:
    """Asks until an error is raised."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        cluster.observe(gang_id)


def test_ray_is_loaded_by_no_process_that_opens_an_engine(home: Home, embedded: AbstractCluster) -> None:
    script = (
        "import sys; from pathlib import Path; from lockstep.clusters import EngineChoice, open_cluster;"
        "from lockstep.jobs.machines.catalogue import load_catalogue; from lockstep.home import Home;"
        "cluster = open_cluster(EngineChoice(), home=Home(path=Path(sys.argv[1])), catalogue=load_catalogue());"
        "cluster.start(); cluster.observe('nobody'); cluster.close();"
        "import lockstep.service.__main__;"
        "assert 'ray' not in sys.modules; assert '_raylet' not in Path('/proc/self/maps').read_text()"
    )
    subprocess.run([sys.executable, "-c", script, str(home.path)], timeout=90, check=True)


def _take_workers(cluster: AbstractCluster, folder: Path, *, gang_id: str) -> None:
    cluster.place(make_gang(folder, gang_id, "master", script="pass"))
    wait_until(cluster, gang_id, lambda status: status.phase is GangPhase.ENDED)
    cluster.forget(gang_id)


def _await_ready(cluster: AbstractCluster, home: Home) -> None:
    deadline = time.monotonic() + 60
    while sum(_is_ready(process) for process in _processes(home)) < 2:
        assert time.monotonic() < deadline
        cluster.start()  # as each pass of the controller does
        time.sleep(0.05)


def _processes(home: Home) -> list[psutil.Process]:
    record = EmbeddedHead(home).find()
    assert record is not None
    return psutil.Process(record.pid).children(recursive=True)


def _is_ready(process: psutil.Process) -> bool:
    """Whether it is one of Ray's workers that has nothing to do and has imported what it will need."""
    try:
        is_idle = any(part.startswith("ray::IDLE") for part in process.cmdline())
        return is_idle and any("pydantic_core" in mapped.path for mapped in process.memory_maps())
    except psutil.Error:
        return False


def test_accelerators_that_are_not_there_are_simulated(embedded: AbstractCluster) -> None:
    assert embedded.simulates("NVIDIA_TESLA_K80", count=2)


def test_the_engines_token_is_its_owners_alone(embedded: AbstractCluster, home: Home) -> None:
    assert stat.S_IMODE((home.engine / "ray-token").stat().st_mode) == 0o600


def test_on_an_engine_that_others_use_what_a_replica_has_is_seen_and_kept(
    embedded: AbstractCluster, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = EmbeddedHead(home).find()
    assert record is not None
    for name, value in EmbeddedHead(home).environment().items():
        monkeypatch.setenv(name, value)
    choice = EngineChoice(name=ATTACHED, address=record.address)
    attached = open_cluster(choice, home=home, catalogue=load_catalogue())
    attached.start()
    (node,) = attached.nodes()
    num_vcpus = node.resources["vcpus"]
    assert attached.in_use() == {node.name: {"vcpus": 0, "memory_mib": 0}}

    def gang(name: str, **changes: Any) -> GangOrder:
        order = make_gang(tmp_path, name, "master", script=WAIT)
        size = {"node": node.name, "vcpus": num_vcpus, "memory_mib": 100}
        return replace(order, replicas=(replace(order.replicas[0], **size),), **changes)

    attached.place(gang("theirs"))
    wait_until(attached, "theirs", lambda status: status.phase is GangPhase.RUNNING)
    attached.place(gang("ours", owner="us", place_within_s=0.3))
    status = wait_until(attached, "ours", lambda status: status.phase is GangPhase.ENDED)
    assert (status.end, status.replicas) == (NO_ROOM, ())
    seen = attached.in_use()
    assert seen is not None
    assert seen[node.name] == {"vcpus": num_vcpus, "memory_mib": 100}
    for name in ("ours", "theirs"):
        attached.forget(name)
    attached.close()


@pytest.mark.heavy
def test_a_lost_engine_is_said_and_a_new_one_started(tmp_path: Path, home: Home, embedded: AbstractCluster) -> None:
    record = EmbeddedHead(home).find()
    assert record is not None
    family = psutil.Process(record.pid).children(recursive=True)
    os.kill(record.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(record.pid)] if psutil.pid_exists(record.pid) else [], timeout=10)
    with pytest.raises(EngineError, match="not running"):
        embedded.observe("any")
    embedded.start()
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    order = make_gang(tmp_path, "after", "master", script="print('again')")
    embedded.place(order)
    wait_until(embedded, "after", lambda status: status.phase is GangPhase.ENDED)
    embedded.forget("after")


def test_an_unknown_engine_is_refused_by_name(home: Home) -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'embedded'"):
        open_cluster(EngineChoice(name="embeded"), home=home, catalogue=load_catalogue())


def test_what_ray_keeps_on_the_disk_is_open_to_nobody_else(embedded: AbstractCluster, home: Home) -> None:
    record = EmbeddedHead(home).find()
    assert record is not None
    assert (Path(record.folder) / "r" / "session_latest").exists()
    assert stat.S_IMODE(Path(record.folder).stat().st_mode) == 0o700


def test_its_processes_import_nothing_from_the_services_folder(connected: None) -> None:
    def look() -> list[str]:
        return sys.path

    found: list[str] = ray.get(ray.remote(look).options(num_cpus=0).remote())
    assert found
    assert str(Path.cwd()) not in found


@pytest.mark.heavy
def test_busy_programs_do_not_slow_down_the_processes_that_look_after_them(
    connected: None, embedded: AbstractCluster, tmp_path: Path
) -> None:
    order = make_gang(tmp_path, "priority", "master", script="import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
    embedded.place(order)
    wait_until(embedded, "priority", lambda status: status.phase is GangPhase.ENDED)

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert ray.get(ray.remote(priority).options(num_cpus=0).remote()) == os.getpriority(os.PRIO_PROCESS, 0), (
        "an actor has the priority of the service"
    )
    assert [int(line) for line in log_lines(order.replicas[0])] == [os.getpriority(os.PRIO_PROCESS, 0)]
    embedded.forget("priority")
