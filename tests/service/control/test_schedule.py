"""The queue as the scheduler sees it: in step with the database, through restarts, with quotas."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.jobs.scheduling import NodeSpec, Quota
from lockstep.service.control.controller import Controller
from lockstep.service.control.schedule import Schedule
from lockstep.service.store import JobStore, Lease, ModelStore, open_database
from lockstep.testing.bench import Bench
from lockstep.testing.local_cluster import LocalCluster
from lockstep.testing.scripted_cluster import AttemptScript, ScriptedCluster
from lockstep.testing.served import Served

WAIT = "import time; time.sleep(600)"
V100 = {
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-8",
    "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
}


def rebuild(bench: Bench, *, cluster: LocalCluster | None = None, **settings: object) -> None:
    """Starts the service anew, with other settings or on another engine."""
    bench.settings = replace(bench.settings, **settings)  # type: ignore[arg-type]
    if cluster is not None:
        bench.cluster = cluster
    bench.restart()


def reason(bench: Bench, job_id: str) -> str:
    return bench.controller.schedule.explain(bench.job(job_id)).reason


def test_a_new_service_counts_what_runs_already(bench: Bench) -> None:
    for name in ("first", "second", "third"):
        bench.create(name, WAIT)
    bench.step_until_state("second", JobState.RUNNING)
    bench.restart()
    bench.controller.step()
    assert bench.job("third").state is JobState.QUEUED
    assert reason(bench, "third") == "0 of 1 job slots of this service's 2 are free"
    bench.store.advance(bench.job("first").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_state("third", JobState.RUNNING)


def test_fewer_slots_than_jobs_that_run_hold_the_others_back_until_enough_have_ended(bench: Bench) -> None:
    for name in ("first", "second"):
        bench.create(name, WAIT)
    bench.step_until_state("second", JobState.RUNNING)
    rebuild(bench, max_running_jobs=1)
    bench.create("third", WAIT)
    bench.store.advance(bench.job("first").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_over("first")
    bench.controller.step()
    assert bench.job("third").state is JobState.QUEUED
    bench.store.advance(bench.job("second").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_state("third", JobState.RUNNING)


def test_a_job_that_was_cancelled_in_the_queue_is_out_of_the_line(bench: Bench) -> None:
    for name in ("first", "second", "third", "fourth"):
        bench.create(name, WAIT)
    bench.step_until_state("second", JobState.RUNNING)
    assert bench.controller.schedule.explain(bench.job("fourth")).position == 2
    bench.store.advance(bench.job("third").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_over("third")
    assert bench.controller.schedule.explain(bench.job("fourth")).position == 1


def make_schedule(bench: Bench) -> Schedule:
    """Returns another schedule of the same jobs, as another service has it."""
    return Schedule(store=bench.store, cluster=bench.cluster, catalogue=load_catalogue(), settings=bench.settings)


def test_what_another_service_has_started_counts_at_once(bench: Bench) -> None:
    rebuild(bench, max_running_jobs=1)
    bench.create("first", WAIT)
    bench.create("second", WAIT)
    other = make_schedule(bench)
    other.refresh()
    bench.step_until_state("first", JobState.RUNNING)
    other.refresh()
    assert other.explain(bench.job("second")).reason == "0 of 1 job slots of this service's 1 are free"


def test_a_preview_does_not_put_back_what_a_pass_has_started_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("first", WAIT)
    schedule, read = make_schedule(bench), bench.store.active_uids
    schedule.refresh()
    passes: list[threading.Thread] = []
    readers: list[threading.Thread] = []

    def read_before_a_pass() -> dict[JobState, set[str]]:
        readers.append(threading.current_thread())
        uids = read()
        if not passes:
            passes.append(threading.Thread(target=schedule.decide))
            passes[0].start()
            passes[0].join(0.5)
            assert readers == [threading.current_thread()], "the pass read while a preview had read and not applied"
        return uids

    monkeypatch.setattr(bench.store, "active_uids", read_before_a_pass)
    schedule.preview(replace(bench.job("first"), uid="new", job_id="new"))
    passes[0].join(30)
    assert readers[1:] == passes


def test_a_start_that_nobody_recorded_is_decided_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create("job", "pass")
    schedule = bench.controller.schedule
    starts, _ = schedule.decide()
    assert [job.job_id for job, _ in starts] == ["job"]
    again, _ = schedule.decide()
    assert [job.job_id for job, _ in again] == ["job"], "the database says that it waits"


def test_a_quota_holds_its_project_back_and_says_by_whom_it_is_used(bench: Bench) -> None:
    rebuild(bench, quotas={"local": Quota(accelerators={"NVIDIA_TESLA_V100": 3})})
    for name in ("user", "held"):
        bench.create(name, WAIT, **V100)
    bench.create("free", WAIT)
    bench.step_until_state("user", JobState.RUNNING)
    bench.step_until_state("free", JobState.RUNNING)
    assert bench.job("held").state is JobState.QUEUED
    assert reason(bench, "held") == "quota of project local: 2 of 3 NVIDIA_TESLA_V100 in use by job user"
    bench.store.advance(bench.job("user").uid, JobEvent.CANCEL_REQUESTED, detail="test")
    bench.step_until_state("held", JobState.RUNNING)


def test_real_accelerators_are_reserved_and_simulated_ones_are_not(bench: Bench) -> None:
    rebuild(bench, cluster=LocalCluster(gpus={"NVIDIA_TESLA_V100": 3}), max_running_jobs=5)
    bench.create("first", WAIT, **V100)
    bench.create("second", WAIT, **V100)
    bench.create("simulated", WAIT, scaleTier="BASIC_GPU")  # a K80, which is not there
    bench.step_until_state("first", JobState.RUNNING)
    bench.step_until_state("simulated", JobState.RUNNING)
    assert bench.job("second").state is JobState.QUEUED
    assert reason(bench, "second") == "0 of 1 2 x NVIDIA_TESLA_V100 are free"
    bench.cluster.shut_down()


def test_on_nodes_with_sizes_each_replica_takes_the_size_of_its_machine(bench: Bench) -> None:
    class Sized(LocalCluster):  # type: ignore[misc]  # final for users: only its nodes are other ones here
        def nodes(self) -> tuple[NodeSpec, ...]:
            size = {"vcpus": 16, "memory_mib": 60 * 1024}
            return tuple(NodeSpec(name=f"box-{n}", node_type="box", resources=size) for n in range(2))

    schedule = Schedule(store=bench.store, cluster=Sized(), catalogue=load_catalogue(), settings=bench.settings)

    def never(machine_type: str, num_workers: int) -> str | None:
        document = {"scaleTier": "CUSTOM", "masterType": machine_type, "pythonModule": "program"}
        if num_workers:
            document |= {"workerType": machine_type, "workerCount": str(num_workers)}
        asked = parse_training_input({"trainingInput": document}, source="test")
        return schedule.why_unplaceable(project="p", gang=resolve(asked, catalogue=load_catalogue()), region=None)

    assert never("n1-standard-8", 3) is None
    assert never("n1-standard-8", 4) == "5 n1-standard-8 asked for: the cluster's maximum is 4"
    assert never("n1-standard-32", 0) == "1 n1-standard-32 asked for: the cluster's maximum is 0"
    bench.create(
        "wide", WAIT, scaleTier="CUSTOM", masterType="n1-standard-8", workerType="n1-standard-8", workerCount="3"
    )
    bench.create("next", WAIT, scaleTier="CUSTOM", masterType="n1-standard-4")
    starts, _ = schedule.decide()
    assert [(job.job_id, nodes) for job, nodes in starts] == [("wide", ("box-0", "box-0", "box-1", "box-1"))]
    assert schedule.explain(bench.job("next")).reason == "0 of 1 n1-standard-4 are free"


class TwoBoxes(ScriptedCluster):  # type: ignore[misc]  # final for users: only its nodes are other ones here
    """Gangs on two nodes, each with room for one."""

    def nodes(self) -> tuple[NodeSpec, ...]:
        size = {"vcpus": 4, "memory_mib": 16 * 1024}
        return tuple(NodeSpec(name=f"box-{n}", node_type="box", resources=size) for n in range(2))


def test_who_takes_over_looks_where_jobs_are_by_now(bench: Bench, tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{bench.home.database}")
    cluster = TwoBoxes(tmp_path / "engine", script=[AttemptScript.RUNS])
    leases = [Lease(database, home=name, is_exclusive=False) for name in ("first", "second")]
    first, second = (
        Controller(
            store=JobStore(database, guard=lease.check),
            models=ModelStore(database),
            lease=lease,
            vault=bench.vault,
            cluster=cluster,
            catalogue=load_catalogue(),
            settings=bench.settings,
            problems=bench.problems,
        )
        for lease in leases
    )

    def node_of(job_id: str) -> str:
        order = bench.job(job_id).gang_order
        assert order is not None
        return order["replicas"][0]["node"]

    bench.create("moves", scaleTier="CUSTOM", masterType="n1-standard-4")
    first.step()
    second.step()
    assert (leases[1].generation, node_of("moves")) == (None, "box-0")
    job = bench.job("moves")
    assert job.gang_order is not None
    bench.store.advance(job.uid, JobEvent.RESTARTED, detail="test", attempt=1, num_restarts=1)
    replicas = [{**replica, "node": "box-1"} for replica in job.gang_order["replicas"]]
    order = {**job.gang_order, "gang_id": f"{job.uid}-1", "replicas": replicas}
    bench.store.advance(job.uid, JobEvent.PREPARING, detail="test", gang_order=order)
    second.step()
    leases[0].release()
    bench.create("next", scaleTier="CUSTOM", masterType="n1-standard-4")
    second.step()
    assert (leases[1].generation, node_of("moves"), node_of("next")) == (2, "box-1", "box-0")
    database.dispose()


def test_a_job_behind_one_that_may_run_for_ever_can_still_be_shown(bench: Bench) -> None:
    rebuild(bench, max_running_jobs=1)
    bench.create("first", WAIT, scheduling={"maxRunningTime": "999999999999s"})
    bench.step_until_state("first", JobState.RUNNING)
    bench.create("second", WAIT)
    bench.controller.step()
    with contextlib.closing(Served(bench)) as served:
        answer = served.http.get("/v1/projects/local/jobs/second")
    assert answer.status_code == 200, answer.text
    assert answer.json()["lockstep"]["waitingFor"].endswith("job slots of this service's 1 are free")


def test_what_others_use_of_a_node_is_not_free_and_is_said(bench: Bench) -> None:
    box = NodeSpec(name="box", node_type="box", resources={"vcpus": 8, "memory_mib": 32 * 1024})
    bench.cluster.set_nodes((box,), in_use={"box": {"vcpus": 5, "memory_mib": 100}})
    bench.create("wide", WAIT, scaleTier="CUSTOM", masterType="n1-standard-8")
    bench.controller.step()
    assert bench.job("wide").state is JobState.QUEUED
    said = "0 of 1 n1-standard-8 are free; others use 5 of 8 vCPUs, 100 of 32,768 MiB of memory"
    assert reason(bench, "wide") == said
    assert bench.controller.schedule.explain(bench.job("wide")).start_by_s is None, "nobody knows when they go"
    bench.cluster.set_nodes((box,), in_use={"box": {"vcpus": 0, "memory_mib": 0}})
    bench.step_until_state("wide", JobState.RUNNING)
    bench.cluster.set_nodes((box,), in_use={"box": {"vcpus": 8, "memory_mib": 30 * 1024}})
    bench.create("next", WAIT, scaleTier="CUSTOM", masterType="n1-standard-4")
    bench.controller.step()
    assert reason(bench, "next") == "0 of 1 n1-standard-4 are free", "it is this service's own"
