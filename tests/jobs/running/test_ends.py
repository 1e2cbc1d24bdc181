"""Why a job ended, and whether it is worth another try."""

from __future__ import annotations

import pytest

from lockstep.jobs.running.ends import EndKind, EndReason, end_reason_of, should_restart
from lockstep.jobs.running.orders import (
    Fault,
    GangEnd,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ProgramUsage,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.running.restarts import RestartCondition, RestartPolicy


def gang(end: ProgramEnd, *, peak_bytes: int = 0) -> GangStatus:
    replicas = (
        ReplicaStatus(
            name="master-replica-0", phase=ReplicaPhase.ENDED, end=ProgramEnd(signal="SIGTERM", stopped=True)
        ),
        ReplicaStatus(
            name="worker-replica-2",
            phase=ReplicaPhase.ENDED,
            end=end,
            usage=ProgramUsage(peak_memory_bytes=peak_bytes),
        ),
    )
    failed = GangEnd(outcome=GangOutcome.FAILED, reason="", culprit="worker-replica-2")
    return GangStatus(gang_id="g", phase=GangPhase.ENDED, replicas=replicas, end=failed)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ProgramEnd(exit_code=3), "USER_ERROR(exit 3, worker-2)"),
        (ProgramEnd(exit_code=1), "USER_ERROR(exit 1, worker-2)"),
        (ProgramEnd(exit_code=139), "USER_ERROR(exit 139, worker-2)"),
        (ProgramEnd(signal="SIGSEGV"), "USER_ERROR(SIGSEGV, worker-2)"),
        (ProgramEnd(problem="could not run the program: no module"), "USER_ERROR(worker-2)"),
        (ProgramEnd(exit_code=138), "MACHINE_ERROR(exit 138, worker-2)"),
        (ProgramEnd(exit_code=143), "MACHINE_ERROR(exit 143, worker-2)"),
        (ProgramEnd(exit_code=19), "MACHINE_ERROR(exit 19, worker-2)"),
        (ProgramEnd(signal="SIGKILL"), "MACHINE_ERROR(SIGKILL, worker-2)"),
        (ProgramEnd(problem="its runner ended too soon", fault=Fault.MACHINE), "MACHINE_ERROR(worker-2)"),
        (
            ProgramEnd(signal="SIGABRT", problem="600 s without a heartbeat or a line", fault=Fault.STUCK),
            "STUCK(worker-2, 600 s without a heartbeat or a line)",
        ),
        (ProgramEnd(problem="its node is gone", fault=Fault.NODE), "NODE_LOST(worker-2)"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_happened_is_said_in_a_word(end: ProgramEnd, text: str) -> None:
    assert str(end_reason_of(gang(end))) == text


def test_want_of_memory_is_said_in_gib() -> None:
    end = ProgramEnd(signal="SIGKILL", fault=Fault.MEMORY, memory_limit_bytes=16 << 30)
    reason = end_reason_of(gang(end, peak_bytes=int(15.9 * 2**30)))
    assert str(reason) == "OUT_OF_MEMORY(worker-2, 15.9 of 16.0 GiB)"
    assert end.describe() == "killed by the system: out of memory"


def test_a_supervisor_that_failed_is_the_machines_error() -> None:
    status = GangStatus(
        gang_id="g", phase=GangPhase.ENDED, end=GangEnd(outcome=GangOutcome.FAILED, reason="gang supervisor: x")
    )
    assert str(end_reason_of(status)) == "MACHINE_ERROR"


@pytest.mark.parametrize("kind", EndKind)
@pytest.mark.parametrize("condition", RestartCondition)
def test_what_is_worth_another_try(kind: EndKind, condition: RestartCondition) -> None:
    policy = RestartPolicy(condition=condition, max_restarts=2)
    tries = [should_restart(EndReason(kind=kind), policy=policy, num_restarts=n) for n in range(4)]
    machine = kind in (EndKind.MACHINE_ERROR, EndKind.STUCK, EndKind.NODE_LOST, EndKind.PREEMPTED)
    own = kind in (EndKind.USER_ERROR, EndKind.OUT_OF_MEMORY)
    expected = {
        RestartCondition.NEVER: False,
        RestartCondition.ON_MACHINE_ERROR: machine,
        RestartCondition.ON_FAILURE: machine or own,
    }[condition]
    assert tries == [expected, expected, False, False]
