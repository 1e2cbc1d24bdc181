"""How many servers a version should have, by a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.service.prediction.loads import ServerLoad
from lockstep.service.prediction.scaling import Decision, Observation, ScalingHistory, decide
from lockstep.service.store import ScalingPolicy

POLICY = ScalingPolicy(min_servers=1, max_servers=10, requests_per_server=4)


def observe(*loads: float | ServerLoad, num_waiting: int = 0, has_requests: bool = False) -> Observation:
    found = [load if isinstance(load, ServerLoad) else ServerLoad(num_open=load) for load in loads]
    return Observation(loads=found, num_waiting=num_waiting, has_requests=has_requests)


def busy(share: float, *, num_open: float = 1.0) -> ServerLoad:
    return ServerLoad(num_open=num_open, cpu_share=share)


class Scaler:
    """Decides again and again, as the loop does."""

    def __init__(self, policy: ScalingPolicy = POLICY, *, current: int = 1) -> None:
        self.policy = policy
        self.current = current
        self.now_s = 1000.0
        self.history = ScalingHistory.begin(current=current, now_s=self.now_s)

    def decide(self, observed: Observation, *, after_s: float = 1.0) -> Decision:
        self.now_s += after_s
        decision = decide(self.policy, current=self.current, observed=observed, history=self.history, now_s=self.now_s)
        self.current, self.history = decision.wanted, decision.history
        return decision

    def wanted(self, observed: Observation, *, after_s: float = 1.0) -> int:
        return self.decide(observed, after_s=after_s).wanted


@pytest.mark.parametrize(
    ("num_open", "current", "wanted"),
    [
        (4.0, 1, 1),
        (4.4, 1, 1),  # within the tolerance
        (4.5, 1, 2),
        (16.0, 1, 4),
        (17.7, 4, 5),
        (1000.0, 1, 10),
    ],
)
def test_the_number_is_that_of_the_horizontal_pod_autoscaler(num_open: float, current: int, wanted: int) -> None:
    decision = Scaler(current=current).decide(observe(*[num_open / current] * current))
    assert decision.wanted == wanted
    assert decision.reason.startswith(f"{num_open:.1f} open requests on {current} server")


def test_of_two_metrics_the_one_that_wants_more_counts_and_is_named() -> None:
    decision = Scaler(current=2).decide(observe(busy(0.9), busy(0.6)))
    assert (decision.wanted, decision.reason) == (3, "CPU usage of 75% on 2 servers, for 60%")
    assert Scaler(current=2).wanted(observe(busy(0.9, num_open=20), busy(0.9, num_open=20))) == 10
    gpu = ServerLoad(num_open=0.1, gpu_share=1.0)
    assert Scaler(replace(POLICY, gpu_percent=50)).wanted(observe(gpu)) == 2
    assert Scaler(POLICY).wanted(observe(gpu)) == 1, "it is not asked for"


def test_servers_that_start_are_not_doubled_by_the_use_of_those_that_run() -> None:
    scaler = Scaler()
    assert scaler.wanted(observe(busy(1.0))) == 2
    for _ in range(100):
        assert scaler.wanted(observe(busy(1.0))) == 2, "the second one is not ready yet"
    assert scaler.wanted(observe(busy(1.0), busy(1.0))) == 4


def test_a_lost_report_does_not_end_servers() -> None:
    policy = replace(POLICY, stabilization_window_s=0)
    unknown = ServerLoad(num_open=2.0)
    assert Scaler(policy, current=3).wanted(observe(busy(0.5), unknown, unknown)) == 3
    assert Scaler(policy, current=3).wanted(observe(busy(0.05), busy(0.05), busy(0.05))) == 1


def test_it_goes_up_at_once_and_down_by_the_highest_of_the_window() -> None:
    scaler = Scaler()
    assert scaler.wanted(observe(16.0)) == 4
    assert scaler.wanted(observe(0.0, 0.0, 0.0, 0.0), after_s=59.0) == 4
    assert scaler.wanted(observe(2.0, 2.0, 2.0, 2.0), after_s=0.5) == 4
    assert scaler.wanted(observe(0.0, 0.0, 0.0, 0.0), after_s=0.5) == 2, "the 4 are 60 s old, the 2 are not"
    assert scaler.wanted(observe(0.0, 0.0), after_s=59.6) == 1


def test_a_service_that_takes_over_keeps_the_number_for_the_window() -> None:
    scaler = Scaler(current=4)
    assert scaler.wanted(observe(0.0, 0.0, 0.0, 0.0), after_s=59.0) == 4
    assert scaler.wanted(observe(0.0, 0.0, 0.0, 0.0), after_s=1.0) == 1


ZERO = replace(POLICY, min_servers=0, idle_timeout_s=300.0)


def test_an_idle_version_goes_to_none_and_a_waiting_request_starts_one() -> None:
    scaler = Scaler(ZERO)
    assert scaler.wanted(observe(0.0, has_requests=True), after_s=10.0) == 1
    assert scaler.wanted(observe(0.0), after_s=299.0) == 1
    decision = scaler.decide(observe(0.0), after_s=1.0)
    assert (decision.wanted, decision.reason) == (0, "no request for 300 s")
    assert scaler.wanted(observe(), after_s=10_000.0) == 0
    assert scaler.wanted(observe(num_waiting=1)) == 1
    assert scaler.wanted(observe(), after_s=299.0) == 1, "it has just been asked for"
    assert scaler.wanted(observe(num_waiting=9)) == 3
    assert Scaler(ZERO, current=0).wanted(observe()) == 0, "a service that takes over starts none"


def test_more_servers_go_before_the_last_one() -> None:
    scaler = Scaler(ZERO, current=3)
    assert scaler.wanted(observe(0.0, 0.0, 0.0), after_s=61.0) == 1
    assert scaler.wanted(observe(0.0), after_s=238.0) == 1
    assert scaler.wanted(observe(0.0), after_s=1.0) == 0


def test_a_minimum_that_was_raised_holds_for_a_version_without_servers() -> None:
    scaler = Scaler(ZERO, current=0)
    scaler.policy = replace(ZERO, min_servers=2)
    assert scaler.wanted(observe()) == 2


def test_a_clock_that_is_set_back_neither_starts_nor_ends_servers() -> None:
    scaler = Scaler(ZERO, current=2)
    assert scaler.wanted(observe(4.0, 4.0)) == 2
    assert scaler.wanted(observe(4.0, 4.0), after_s=-3600.0) == 2
    assert scaler.wanted(observe(0.0, 0.0), after_s=1.0) == 2


LOADS = st.builds(
    ServerLoad,
    num_open=st.floats(0, 1000),
    cpu_share=st.none() | st.floats(0, 2),
    gpu_share=st.none() | st.floats(0, 1),
)
POLICIES = st.builds(
    lambda least, more, **options: ScalingPolicy(min_servers=least, max_servers=max(1, least) + more, **options),
    st.integers(0, 20),
    st.integers(0, 80),
    cpu_percent=st.none() | st.integers(1, 100),
    gpu_percent=st.none() | st.integers(1, 100),
    requests_per_server=st.floats(0.1, 256),
    idle_timeout_s=st.floats(0, 1000),
    stabilization_window_s=st.floats(0, 1000),
)
OBSERVATIONS = st.builds(
    Observation, loads=st.lists(LOADS, max_size=8), num_waiting=st.integers(0, 500), has_requests=st.booleans()
)
STEPS = st.lists(st.tuples(st.floats(-10, 500), OBSERVATIONS), max_size=12)


def played(policy: ScalingPolicy, current: int, steps: list[tuple[float, Observation]]) -> Scaler:
    scaler = Scaler(policy, current=min(current, policy.max_servers))
    for after_s, observed in steps:
        before = scaler.current
        number = scaler.wanted(observed, after_s=after_s)
        assert policy.min_servers <= number <= policy.max_servers
        assert number > 0 or before == 0 or not (observed.num_waiting or observed.has_requests)
        assert len(scaler.history.recommendations) <= len(steps) + 1
    return scaler


@given(policy=POLICIES, current=st.integers(0, 100), steps=STEPS)
def test_it_is_never_outside_its_bounds(
    policy: ScalingPolicy, current: int, steps: list[tuple[float, Observation]]
) -> None:
    played(policy, current, steps)


@given(
    policy=POLICIES,
    current=st.integers(0, 100),
    steps=STEPS,
    observed=OBSERVATIONS,
    more=st.tuples(st.floats(0, 500), st.floats(0, 1), st.integers(0, 50)),
)
def test_more_load_never_wants_fewer_servers(
    policy: ScalingPolicy,
    current: int,
    steps: list[tuple[float, Observation]],
    observed: Observation,
    more: tuple[float, float, int],
) -> None:
    num_open, share, num_waiting = more
    heavier = Observation(
        loads=[
            replace(
                load,
                num_open=load.num_open + num_open,
                cpu_share=None if load.cpu_share is None else load.cpu_share + share,
                gpu_share=None if load.gpu_share is None else load.gpu_share + share,
            )
            for load in observed.loads
        ],
        num_waiting=observed.num_waiting + num_waiting,
        has_requests=observed.has_requests,
    )
    light, heavy = played(policy, current, steps), played(policy, current, steps)
    assert heavy.wanted(heavier) >= light.wanted(observed)


@pytest.mark.parametrize(("last_request_s", "wanted"), [(None, 1), (500.0, 0), (900.0, 1), (5000.0, 1)])
@pytest.mark.heavy
def test_a_service_that_takes_over_goes_on_from_the_recorded_last_use(
    last_request_s: float | None, wanted: int
) -> None:
    scaler = Scaler(replace(POLICY, min_servers=0, idle_timeout_s=300.0))
    scaler.history = ScalingHistory.begin(current=1, now_s=scaler.now_s, last_request_s=last_request_s)
    assert scaler.wanted(observe(0.0)) == wanted
