"""What is done next about machines: each rule by itself, and all of them over random histories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import (
    NodeRecord,
    NodeRequest,
    NodeState,
    Observation,
    Plan,
    parse_cluster,
    plan,
    stock_outs,
)

LAB = parse_cluster(
    {
        "name": "lab",
        "provider": {"type": "local"},
        "idleTimeout": "100s",
        "joinTimeout": "50s",
        "retryAfter": "30s",
        "nodeTypes": {
            "cpu": {"machineType": "n1-standard-4", "maxNodes": 2},
            "kept": {"machineType": "n1-standard-8", "maxNodes": 2, "minNodes": 1},
        },
    },
    source="lab",
    catalogue=load_catalogue(),
)
KEPT = NodeRecord(
    name="k", slot="kept-0", node_type="kept", asked_time_s=0.0, up_time_s=1.0, ready_time_s=2.0, idle_time_s=2.0
)
ASKED = NodeRecord(name="a", slot="cpu-0", node_type="cpu", asked_for="job", asked_time_s=1000.0)
UP = replace(ASKED, up_time_s=1005.0)
READY = replace(UP, ready_time_s=1010.0)
IDLE = replace(READY, idle_time_s=1020.0)
RELEASED = replace(IDLE, released_time_s=1120.0)
HELD = {"cpu-0": "job"}


def decide(
    *nodes: NodeRecord,
    held: Mapping[str, str] | None = None,
    machines: str = "",
    joined: str | None = "",
    now_s: float = 1030.0,
    seen_s: float | None = None,
    refused: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
    asking: str = "",
    last_seen_s: float | None = None,
) -> Plan:
    last_seen_s = now_s if last_seen_s is None else last_seen_s
    observation = Observation(
        time_s=now_s if seen_s is None else seen_s,
        machines=frozenset(machines + "k"),
        joined=None if joined is None else frozenset(joined + "k"),
        refused=refused or {},
        explanations=words or {},
        unanswered=frozenset(asking),
    )
    known = [replace(KEPT, seen_time_s=now_s), *(replace(node, seen_time_s=last_seen_s) for node in nodes)]
    return plan(known, definition=LAB, held=held or {}, observation=observation, now_s=now_s)


def changes(decided: Plan) -> dict[str, Any]:
    assert len(decided.record_changes) <= 1
    return dict(decided.record_changes[0].changes) if decided.record_changes else {}


def test_a_place_that_a_job_holds_gets_a_node() -> None:
    assert decide(held=HELD) == Plan(requests=(NodeRequest(slot="cpu-0", node_type="cpu", asked_for="job"),))


def test_a_place_that_is_kept_gets_a_node_that_nobody_asked_for() -> None:
    decided = plan(
        [],
        definition=LAB,
        held={},
        observation=Observation(time_s=1.0, machines=frozenset(), joined=frozenset(), refused={}),
        now_s=1.0,
    )
    assert decided.requests == (NodeRequest(slot="kept-0", node_type="kept", asked_for=None),)


@pytest.mark.parametrize("node", [ASKED, UP, READY, RELEASED], ids=lambda node: node.state.value)
def test_a_place_has_one_node_at_a_time(node: NodeRecord) -> None:
    seen = "" if node is ASKED else "a"
    assert decide(node, held=HELD, machines=seen, joined="a" if node is READY else "").requests == ()


def test_a_machine_costs_from_when_it_is_seen() -> None:
    assert changes(decide(ASKED, held=HELD, machines="a")) == {"up_time_s": 1030.0}
    assert changes(decide(ASKED, held=HELD)) == {}


def test_a_node_is_ready_when_it_has_joined() -> None:
    assert changes(decide(UP, held=HELD, machines="a", joined="a")) == {"ready_time_s": 1030.0}
    assert changes(decide(ASKED, held=HELD, joined="a")) == {"up_time_s": 1030.0, "ready_time_s": 1030.0}


@pytest.mark.parametrize(("node", "machines"), [(ASKED, ""), (UP, "a")], ids=["never up", "never joined"])
def test_a_machine_that_never_becomes_a_node_is_given_back(node: NodeRecord, machines: str) -> None:
    assert changes(decide(node, held=HELD, machines=machines, now_s=1050.0)) == {}
    found = changes(decide(node, held=HELD, machines=machines, now_s=1051.0))
    assert (found["failed_time_s"], found["released_time_s"]) == (1051.0, 1051.0)
    assert "within 50 s" in str(found["reason"])


def test_a_machine_has_not_failed_while_nobody_can_see_it() -> None:
    assert changes(decide(UP, held=HELD, machines="a", now_s=2000.0, seen_s=1040.0)) == {}, "the provider is silent"
    assert changes(decide(UP, held=HELD, machines="a", now_s=2000.0, joined=None)) == {}, "the engine is silent"


def test_why_a_machine_is_not_up_is_recorded_in_the_providers_words() -> None:
    found = changes(decide(UP, held=HELD, machines="a", now_s=1051.0, words={"a": "Unschedulable: no room"}))
    assert found["reason"] == "its node did not join within 50 s; Unschedulable: no room"


def test_a_refusal_is_recorded_in_the_providers_words() -> None:
    found = changes(decide(ASKED, held=HELD, refused={"a": "ZONE_RESOURCE_POOL_EXHAUSTED"}))
    assert found == {
        "failed_time_s": 1030.0,
        "released_time_s": 1030.0,
        "reason": "ZONE_RESOURCE_POOL_EXHAUSTED",
    }


def test_a_machine_that_came_up_although_it_was_refused_is_kept() -> None:
    assert changes(decide(ASKED, held=HELD, machines="a", refused={"a": "timed out"})) == {"up_time_s": 1030.0}


def test_a_machine_that_is_gone_before_its_provider_has_answered_is_waited_for_to_say_why() -> None:
    assert changes(decide(UP, held=HELD, asking="a")) == {}
    assert changes(decide(UP, held=HELD, refused={"a": "AllocationFailed"}))["reason"] == "AllocationFailed"
    overdue = changes(decide(UP, held=HELD, asking="a", now_s=1051.0))
    assert "within 50 s" in str(overdue["reason"])


def test_a_machine_that_is_gone_is_down() -> None:
    found = changes(decide(READY, held=HELD, joined="a"))
    assert (found["down_time_s"], found["reason"]) == (1030.0, "its machine is gone")


def test_a_node_that_left_the_engine_is_given_back() -> None:
    assert changes(decide(READY, held=HELD, machines="a"))["reason"] == "its node left the engine"
    assert changes(decide(READY, held=HELD, machines="a", joined=None)) == {}  # the engine did not answer


def test_a_node_is_kept_for_the_next_job_for_a_while() -> None:
    assert changes(decide(READY, machines="a", joined="a")) == {"idle_time_s": 1030.0}
    assert changes(decide(IDLE, machines="a", joined="a", now_s=1119.0)) == {}
    assert changes(decide(IDLE, machines="a", joined="a", held=HELD)) == {"idle_time_s": None}
    found = changes(decide(IDLE, machines="a", joined="a", now_s=1120.0))
    assert found == {"released_time_s": 1120.0, "reason": "idle for 100 s"}


def test_a_kept_node_stays() -> None:
    assert decide(now_s=10_000.0) == Plan()


@pytest.mark.parametrize(
    ("node", "last_seen_s", "down_s", "between"),
    [
        (READY, 29_990.0, 30_000.0, ""),
        (READY, 1_100.0, 1_100.0, ", between 1970-01-01T00:18:20+00:00 and 1970-01-01T08:20:00+00:00"),
        (READY, 1_008.0, 1_010.0, ", between 1970-01-01T00:16:50+00:00 and 1970-01-01T08:20:00+00:00"),
        (RELEASED, 29_990.0, 30_000.0, ""),
        (RELEASED, 1_125.0, 1_125.0, ", between 1970-01-01T00:18:45+00:00 and 1970-01-01T08:20:00+00:00"),
    ],
    ids=["just now", "in an outage", "noted as ready after it was last noted", "given back", "given back in an outage"],
)
def test_a_machine_that_went_while_nobody_looked_is_billed_to_when_it_was_last_seen(
    node: NodeRecord, last_seen_s: float, down_s: float, between: str
) -> None:
    found = changes(decide(node, held=HELD, now_s=30_000.0, last_seen_s=last_seen_s))
    assert found["down_time_s"] == down_s
    words = "" if node is RELEASED else "its machine is gone"
    assert found.get("reason", "") == words + between


def test_that_a_machine_is_there_is_noted_now_and_then_by_the_look_that_showed_it() -> None:
    def noted(*, seen_s: float) -> dict[str, Any]:
        return changes(
            decide(READY, held=HELD, machines="a", joined="a", last_seen_s=2_000.0, now_s=9_000.0, seen_s=seen_s)
        )

    assert noted(seen_s=2_009.0) == {}
    assert noted(seen_s=2_010.0) == {"seen_time_s": 2_010.0}, "not when it was asked, where the provider is silent"


@pytest.mark.parametrize(("node", "machines"), [(ASKED, ""), (UP, "a")], ids=["asked", "up"])
def test_a_node_that_nobody_waits_for_any_more_is_given_back_at_once(node: NodeRecord, machines: str) -> None:
    assert changes(decide(node, machines=machines))["reason"] == "no job waits for it any more"


def test_a_machine_is_down_when_it_is_seen_no_more_after_its_release() -> None:
    assert changes(decide(RELEASED, machines="a", now_s=1130.0)) == {}
    assert changes(decide(RELEASED, now_s=1130.0, seen_s=1119.0)) == {}  # looked before it was released
    assert changes(decide(RELEASED, now_s=1130.0)) == {"down_time_s": 1130.0}


def test_machines_that_nobody_knows_are_strays() -> None:
    down = replace(RELEASED, down_time_s=1125.0)
    assert decide(down, machines="ax", now_s=1130.0).strays == ("a", "x")


def test_a_type_that_could_not_be_had_is_left_alone_for_a_while() -> None:
    failed = replace(ASKED, failed_time_s=1010.0, released_time_s=1010.0, down_time_s=1011.0, reason="none left")
    found = stock_outs([failed], definition=LAB, now_s=1039.0)
    assert (found["cpu"].until_s, found["cpu"].reason) == (1040.0, "none left")
    assert stock_outs([failed], definition=LAB, now_s=1040.0) == {}
    assert decide(failed, held={"cpu-1": "job"}).requests == ()
    assert decide(failed, held={"cpu-1": "job"}, now_s=1040.0).requests != ()


def test_a_node_that_was_lost_is_no_stock_out() -> None:
    lost = replace(
        READY, failed_time_s=1020.0, released_time_s=1020.0, down_time_s=1020.0, reason="its machine is gone"
    )
    assert stock_outs([lost], definition=LAB, now_s=1021.0) == {}


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.heavy
def test_over_any_history_no_place_has_two_nodes_and_all_end_down(data: st.DataObject) -> None:
    nodes: dict[str, NodeRecord] = {}
    machines: set[str] = set()
    asked: set[str] = set()

    def go(
        held: Mapping[str, str],
        now_s: float,
        refused: Mapping[str, str],
        joined: frozenset[str],
        asking: frozenset[str] = frozenset(),
    ) -> None:
        observation = Observation(
            time_s=now_s, machines=frozenset(machines), joined=joined, refused=refused, unanswered=asking
        )
        decided = plan(list(nodes.values()), definition=LAB, held=held, observation=observation, now_s=now_s)
        for record_change in decided.record_changes:
            before = nodes[record_change.name]
            nodes[record_change.name] = replace(before, **record_change.changes)
            assert before.state is not NodeState.DOWN
        for request in decided.requests:
            name = f"n{len(nodes)}"
            nodes[name] = NodeRecord(name=name, slot=request.slot, node_type=request.node_type, asked_time_s=now_s)
            asked.add(name)
        active = [node.slot for node in nodes.values() if node.state is not NodeState.DOWN]
        assert len(active) == len(set(active))
        gone = {node.name for node in nodes.values() if node.state in (NodeState.RELEASED, NodeState.DOWN)}
        machines.difference_update(gone, decided.strays)

    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now_s += data.draw(st.sampled_from([0.5, 5.0, 40.0]))
        coming = sorted(name for name in asked if nodes[name].state is NodeState.ASKED)
        machines.update(data.draw(st.sets(st.sampled_from(coming))) if coming else ())
        machines.difference_update(data.draw(st.sets(st.sampled_from(sorted(machines)))) if machines else ())
        refused = {name: "none" for name in coming if name not in machines and data.draw(st.booleans())}
        joined = frozenset(data.draw(st.sets(st.sampled_from(sorted(machines)))) if machines else ())
        held = {slot: "job" for slot, _ in LAB.slots() if data.draw(st.booleans())}
        asking = frozenset(name for name in sorted(asked - refused.keys()) if data.draw(st.booleans()))
        go(held, now_s, refused, joined, asking)
    for _ in range(6):  # nobody needs anything: all but what is kept goes
        now_s += 120.0
        go({}, now_s, {}, frozenset(machines))
    left = [node for node in nodes.values() if node.state is not NodeState.DOWN]
    assert {node.slot for node in left} <= {"kept-0"}
    assert machines <= {node.name for node in left}
