"""Machines that come and go with the queue: the real controller and ledger, fake machines, real programs."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import pytest
from tests.service.lab import ONE, SIX, Lab, accounts

from lockstep.jobs.billing.node_costs import NodeShare
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeRecord, NodeState
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import NodeSpec
from lockstep.service.api.billing.nodes import node_costs_form
from lockstep.service.billing.usages import job_usage
from lockstep.service.control import provisioner as provisioner_module
from lockstep.service.control.job_inputs import training_input_of
from lockstep.service.control.provisioner import release_all
from lockstep.service.problems import Part
from lockstep.testing.served import Served

WAIT = "import time; time.sleep(600)"


@pytest.mark.heavy
def test_a_gang_of_six_gets_six_nodes_that_are_kept_for_the_next(lab: Lab) -> None:
    lab.bench.create("six", **SIX)
    job = lab.bench.step_until_over("six")
    assert job.state is JobState.SUCCEEDED
    assert lab.machines.num_created == {"cpu": 4, "mem": 2}
    assert {node.slot for node in lab.ledger} == {"cpu-0", "cpu-1", "cpu-2", "cpu-3", "mem-0", "mem-1"}
    assert {node.asked_for for node in lab.ledger} == {job.uid}
    assert job.gang_order is not None
    machines = {replica["machine"] for replica in job.gang_order["replicas"]}
    assert machines == {node.name for node in lab.ledger}
    lab.bench.create("next", **SIX)
    assert lab.bench.step_until_over("next").state is JobState.SUCCEEDED
    assert lab.machines.num_created == {"cpu": 4, "mem": 2}  # the same ones
    check_all_are_given_back(lab)


def check_all_are_given_back(lab: Lab) -> None:
    """Ends the service, as far as the six nodes that it has are concerned."""
    said: list[str] = []
    release_all(lab.store, lab.provisioning, is_own=True, progress=said.append)
    assert lab.machines.names() == frozenset()
    assert said == ["releasing 6 machines"]
    assert {(node.state, node.reason) for node in lab.ledger} == {(NodeState.DOWN, "the service was ended")}


def test_a_job_that_is_cancelled_while_its_machines_come_up_gives_them_back(lab: Lab) -> None:
    lab.machines.hold = {"mem"}
    lab.bench.create("six", **SIX)
    lab.step_until(lambda: len(lab.machines.names()) == 6)
    job = lab.bench.job("six")
    assert job.state is JobState.PREPARING
    assert job.gang_order is not None
    assert lab.bench.provisioner is not None
    lab.step_until(lambda: len(lab.bench.provisioner.ready()) == 4)  # type: ignore[union-attr]
    coming = lab.bench.provisioner.describe_missing([replica["node"] for replica in job.gang_order["replicas"]])
    assert coming == "4 of 6 machines are ready; 2 x n1-highmem-2 pending"
    with closing(Served(lab.bench)) as service:
        (listed,) = service.http.get("/v1/projects/local/jobs").json()["jobs"]
        assert listed["lockstep"]["waitingFor"] == coming
    lab.bench.store.advance(lab.bench.job("six").uid, _cancel(), detail="test")
    assert lab.bench.step_until_over("six").state is JobState.CANCELLED
    lab.step_until(lambda: not any(kind == "mem" for kind in _kinds(lab)))
    assert {node.reason for node in lab.ledger if node.node_type == "mem"} == {"no job waits for it any more"}


@pytest.mark.heavy
def test_idle_nodes_go_after_their_time_and_what_they_cost_stands_beside_a_jobs_bill(lab: Lab) -> None:
    lab.define(idleTimeout="0.2s")
    lab.bench.create("six", **SIX)
    job = lab.bench.step_until_over("six")
    lab.step_until(lambda: all(node.state is NodeState.DOWN for node in lab.ledger))
    assert lab.machines.names() == frozenset()
    for node in lab.ledger:
        assert node.reason == "idle for 0 s"
        times = (node.asked_time_s, node.up_time_s, node.ready_time_s, node.released_time_s, node.down_time_s)
        assert list(times) == sorted(time_s for time_s in times if time_s is not None)
    assert {len(attempt.machines) for attempt in lab.bench.store.attempts(job.uid)} == {6}
    assert {(node.machine, node.usd_per_hour, node.price_source) for node in lab.ledger} == {
        ("n1-standard-4, spot", None, ""),  # no list says what spot costs
        ("n1-highmem-2", "0.118400", "AI Platform Training's list of 2021"),
    }
    now_s = time.time()
    report = accounts(lab).report(project="local", by="job", since_s=0.0, until_s=now_s, now_s=now_s)
    [row] = report.rows
    lasted_s = sum((node.down_time_s or 0.0) - (node.up_time_s or 0.0) for node in lab.ledger)
    shares = {share: float(amount.length_s) for share, amount in row.nodes.items()}
    assert sum(shares.values()) == pytest.approx(lasted_s, abs=0.003)
    assert min(shares[share] for share in (NodeShare.PROVISIONING, NodeShare.USED, NodeShare.IDLE)) >= 0.0
    assert row.unpriced == ("node n1-standard-4, spot",)
    assert row.owed_usd == 0  # simulated machines
    costs = accounts(lab).nodes_of(job, now_s=now_s)
    assert costs is not None
    assert node_costs_form(costs)["note"] == "AI Platform Training's list of 2021; simulated, nothing owed"
    by_type = accounts(lab).report(project=None, by="node-type", since_s=0.0, until_s=now_s, now_s=now_s)
    assert [row.name for row in by_type.rows] == ["cpu", "mem"]
    elsewhere = accounts(lab).report(project="other", by="job", since_s=0.0, until_s=now_s, now_s=now_s)
    assert elsewhere.rows == ()


def test_a_job_that_never_ran_is_charged_for_the_machines_that_came_up_for_it(lab: Lab) -> None:
    lab.machines.hold = {"cpu"}
    uid = lab.bench.create("job", **ONE, lockstep={"provisioningTimeout": "0.5s"}).uid
    lab.bench.step_until_over("job")
    now_s = time.time()
    row = accounts(lab).report(project="local", by="job", since_s=0.0, until_s=now_s, now_s=now_s).rows[0]
    assert (row.name, row.machine_hours) == ("job", 0)
    assert lab.ledger[0].asked_for == uid


def test_a_stock_out_falls_to_the_next_candidate(lab: Lab) -> None:
    lab.machines.refusals = {"cpu": "ZONE_RESOURCE_POOL_EXHAUSTED"}
    candidates = {"candidates": [{"masterType": "n1-highmem-2"}]}
    lab.bench.create("job", **ONE, lockstep=candidates)
    job = lab.bench.step_until_over("job")
    assert (job.state, job.candidate) == (JobState.SUCCEEDED, 1)
    assert lab.events("job")[:5] == ["enqueued", "preparing", "requeued", "preparing", "started"]
    requeued = lab.bench.store.events(job.uid)[2]
    assert requeued.detail == "currently unavailable: cpu: ZONE_RESOURCE_POOL_EXHAUSTED"
    assert lab.machines.num_created == {"mem": 1}
    [master] = resolve(training_input_of(job), catalogue=load_catalogue())
    assert master.machine_type == "n1-highmem-2"
    assert [attempt.candidate for attempt in lab.bench.store.attempts(job.uid)] == [1]


def test_a_stock_out_is_one_even_where_the_machine_was_seen_for_a_moment(lab: Lab) -> None:
    lab.machines.withdrawn = {"cpu": "AllocationFailed: no room"}
    lab.bench.create("job", **ONE, lockstep={"candidates": [{"masterType": "n1-highmem-2"}]})
    job = lab.bench.step_until_over("job")
    assert (job.state, job.candidate) == (JobState.SUCCEEDED, 1)
    requeued = lab.bench.store.events(job.uid)[2]
    assert requeued.detail == "currently unavailable: cpu: AllocationFailed: no room"


def test_a_candidate_may_be_another_region(lab: Lab) -> None:
    lab.machines.refusals = {"cpu": "none left"}
    candidates = {"candidates": [{"masterType": "n1-standard-16", "region": "europe-west4"}]}
    lab.bench.create("job", **ONE, lockstep=candidates)
    job = lab.bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED
    assert lab.machines.num_created == {"big": 1}
    attempts = lab.bench.store.attempts(job.uid)
    [usage] = job_usage(job, attempts=attempts, catalogue=load_catalogue(), now_s=time.time()).usages
    assert (usage.machine_type, usage.region) == ("n1-standard-16", "europe-west4")  # whose price applies


def test_a_job_waits_where_nothing_can_be_had_and_says_so(lab: Lab) -> None:
    lab.define(retryAfter="1s")
    lab.machines.refusals = {"cpu": "none left"}
    lab.bench.create("job", **ONE)
    lab.step_until(lambda: "requeued" in lab.events("job"))
    lab.bench.step()
    waits = lab.bench.controller.schedule.explain(lab.bench.job("job"))
    assert "cpu is unavailable: none left" in waits.reason
    lab.machines.refusals = {}
    assert lab.bench.step_until_over("job").state is JobState.SUCCEEDED


@pytest.mark.parametrize("what", ["refused", "held"])
def test_machines_that_never_come_end_the_job(lab: Lab, what: str) -> None:
    if what == "refused":
        lab.machines.refusals = {"cpu": "quota CPUS exceeded"}
    else:
        lab.machines.hold = {"cpu"}
    lab.bench.create("job", **ONE, lockstep={"provisioningTimeout": "0.5s"})
    job = lab.bench.step_until_over("job")
    assert (job.state, job.end_reason) == (JobState.FAILED, "PROVISIONING_TIMEOUT(0 s)")
    assert job.error_message is not None
    assert ("quota CPUS exceeded" in job.error_message) == (what == "refused")
    assert job.bill is not None
    assert job.bill.cost_usd == 0  # it never ran
    lab.step_until(lambda: not lab.machines.names())


def test_why_a_machine_does_not_come_up_is_said_as_its_provider_does(lab: Lab) -> None:
    lab.machines.hold = {"cpu"}
    lab.bench.create("job", **ONE)
    lab.step_until(lambda: len(lab.machines.names()) == 1)
    lab.machines.troubles = dict.fromkeys(lab.machines.names(), "Unschedulable: no room")
    lab.define(joinTimeout="0.1s")
    lab.step_until(lambda: any("Unschedulable: no room" in node.reason for node in lab.ledger))


def test_a_spot_machine_that_is_taken_back_is_a_preemption(lab: Lab) -> None:
    lab.bench.create("job", WAIT, **ONE)
    job = lab.bench.step_until_state("job", JobState.RUNNING)
    assert job.gang_order is not None
    first = job.gang_order["replicas"][0]["machine"]
    lab.machines.lose(first)
    lab.cluster.lose_node(f"{job.uid}-0")
    again = lab.bench.step_until("job", lambda job: job.state is JobState.RUNNING and job.attempt == 1)
    assert again.gang_order is not None
    assert again.gang_order["replicas"][0]["machine"] != first
    assert [attempt.end_reason for attempt in lab.bench.store.attempts(job.uid)] == ["PREEMPTED(master-0)"]
    gone = next(node for node in lab.ledger if node.name == first)
    assert (gone.state, gone.reason) == (NodeState.DOWN, "its machine is gone")


def test_machines_that_nobody_knows_are_removed(lab: Lab) -> None:
    lab.machines.create("lab-cpu-3-ffffff", node_type="cpu")
    lab.bench.step()
    lab.step_until(lambda: not lab.machines.names())
    assert lab.ledger == []


def test_a_service_that_starts_anew_adopts_what_comes_up(lab: Lab) -> None:
    lab.machines.hold = {"cpu"}
    lab.bench.create("job", **ONE)
    lab.step_until(lambda: len(lab.machines.names()) == 1)
    lab.bench.restart()
    lab.machines.hold = set()
    assert lab.bench.step_until_over("job").state is JobState.SUCCEEDED
    assert lab.machines.num_created == {"cpu": 1}


def test_a_machine_that_was_recorded_and_never_asked_for_is_asked_for_by_the_next_service(lab: Lab) -> None:
    uid = lab.bench.create("job", **ONE).uid
    lab.machines.is_unreachable = True
    asked = NodeRecord(name="lab-cpu-0-aaaaaa", slot="cpu-0", node_type="cpu", asked_for=uid, asked_time_s=time.time())
    lab.store.record(asked=[asked])
    lab.bench.restart()
    lab.machines.is_unreachable = False
    assert lab.bench.step_until_over("job").state is JobState.SUCCEEDED
    assert [node.name for node in lab.ledger] == ["lab-cpu-0-aaaaaa"]


def test_a_provider_that_does_not_answer_is_said_and_asked_again(lab: Lab) -> None:
    lab.machines.is_unreachable = True
    lab.bench.create("job", **ONE)
    lab.bench.step()
    [problem] = lab.bench.problems.all()
    assert problem.text == "the provider of machines does not answer: the provider does not answer"
    lab.machines.is_unreachable = False
    assert lab.bench.step_until_over("job").state is JobState.SUCCEEDED
    assert not lab.bench.problems.has(Part.MACHINES)


def test_a_job_that_no_node_holds_is_refused_in_words(lab: Lab) -> None:
    lab.bench.step()
    asked = lab.bench.create("job", scaleTier="CUSTOM", masterType="n1-standard-32")
    gang = resolve(training_input_of(asked), catalogue=load_catalogue())
    never = lab.bench.controller.schedule.why_unplaceable(project="local", gang=gang, region=None)
    assert never == (
        "no node of the cluster holds n1-standard-32: it has n1-standard-4, spot, n1-highmem-2, n1-standard-16"
    )


def test_machines_that_take_their_time_to_go_are_said_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioner_module, "RELEASE_PAUSE_S", 0.01)
    lab.machines.create("lab-cpu-0-aaaaaa", node_type="cpu")
    lab.machines.linger = 3
    said: list[str] = []
    release_all(lab.store, lab.provisioning, is_own=True, progress=said.append)
    assert said == ["releasing 1 machine"]
    assert lab.machines.names() == frozenset()


def test_what_another_service_has_by_now_is_left_to_it(lab: Lab) -> None:
    asked = NodeRecord(name="lab-cpu-0-aaaaaa", slot="cpu-0", node_type="cpu", asked_time_s=time.time())
    lab.store.record(asked=[asked])
    for name in ("lab-cpu-0-aaaaaa", "lab-cpu-1-bbbbbb"):
        lab.machines.create(name, node_type="cpu")
    release_all(lab.store, lab.provisioning, is_own=False, progress=lambda _: None)
    assert lab.machines.names() == {"lab-cpu-0-aaaaaa"}
    assert lab.ledger == [asked]


def test_a_machine_that_came_up_although_it_was_refused_is_given_back(lab: Lab) -> None:
    lab.define(idleTimeout="0.2s")
    lab.machines.lost_answers = {"cpu"}
    lab.bench.create("job", **ONE)
    assert lab.bench.step_until_over("job").state is JobState.SUCCEEDED
    assert lab.machines.num_created == {"cpu": 1}
    lab.step_until(lambda: all(node.state is NodeState.DOWN for node in lab.ledger))
    assert lab.machines.names() == frozenset()


def test_a_machine_that_cannot_be_given_back_is_said_until_it_is_gone(lab: Lab) -> None:
    lab.machines.create("lab-cpu-3-ffffff", node_type="cpu")
    lab.machines.kept = {"lab-cpu-3-ffffff": "a lock is on it"}
    text = "machine lab-cpu-3-ffffff cannot be released: a lock is on it"
    lab.step_until(lambda: [problem.text for problem in lab.bench.problems.all()] == [text])
    assert lab.bench.provisioner is not None
    lab.bench.provisioner.refresh()
    assert [problem.text for problem in lab.bench.problems.all()] == [text], "the provider answers all the same"
    lab.machines.kept = {}
    lab.step_until(lambda: not lab.machines.names() and not lab.bench.problems.has(Part.MACHINES))


@pytest.mark.heavy
def test_a_look_that_fails_is_not_the_last_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioner_module, "REFRESH_INTERVAL_S", 0.01)
    num_looks = 0
    looked_again = threading.Event()

    def nodes() -> tuple[NodeSpec, ...]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            raise RuntimeError("what no engine should raise")
        looked_again.set()
        return ()

    monkeypatch.setattr(lab.cluster, "nodes", nodes)
    assert lab.bench.provisioner is not None
    stop = threading.Event()
    looking = threading.Thread(target=lab.bench.provisioner.run, args=(stop,))
    looking.start()
    assert looked_again.wait(10)
    stop.set()
    looking.join()


def _cancel() -> Any:
    from lockstep.jobs.running.states import JobEvent

    return JobEvent.CANCEL_REQUESTED


def _kinds(lab: Lab) -> list[str]:
    return [lab_name.split("-")[1] for lab_name in lab.machines.names()]
