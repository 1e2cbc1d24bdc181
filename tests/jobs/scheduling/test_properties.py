"""What holds for all nodes, queues and times: everything is counted a second time, slowly, at each step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.jobs.scheduling.simulated import (
    ACCELERATORS,
    OTHERS,
    TYPES,
    Simulation,
    can_fit,
    demand,
    job,
    make_scheduler,
    node,
)

from lockstep.jobs.scheduling import Demand, NodeSpec, QueuedJob, Quota

PROJECTS = ("p", "q", "free")


def parts(
    *types: str, most: int = 5, vcpus: tuple[int, ...], gib: tuple[int, ...] = (0,), **accelerators: tuple[int, ...]
) -> st.SearchStrategy[Demand]:
    amounts = {name: st.sampled_from(choices) for name, choices in accelerators.items()}
    return st.builds(
        lambda count, found: demand(count, *types, **found),
        st.integers(1, most),
        st.fixed_dictionaries({**amounts, "vcpus": st.sampled_from(vcpus), "gib": st.sampled_from(gib)}),
    )


DEMANDS = st.one_of(
    parts(vcpus=(1, 2, 4), gib=(1, 2, 8)),
    parts(vcpus=(8, 16), gib=(8, 32), most=3),
    parts(vcpus=(2, 4), V100=(1, 2, 4), most=3),
    parts(vcpus=(4,), gib=(16,), H100=(1, 2), most=2),
    parts("small", vcpus=(2, 4), gib=(2, 8)),
    parts("big", "v100-box", vcpus=(4, 16), gib=(4, 16), most=3),
)
GANGS = st.one_of(st.tuples(DEMANDS), st.tuples(DEMANDS), st.lists(DEMANDS, min_size=2, max_size=3).map(tuple))
NODES = st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=9)
QUOTAS = st.dictionaries(
    st.sampled_from(PROJECTS[:2]),
    st.builds(
        Quota,
        machines=st.sampled_from([None, 0, 2, 5, 9]),
        accelerators=st.sampled_from([{}, {"V100": 2}, {"V100": 8, "H100": 1}]),
    ),
)
JOBS = st.builds(
    lambda gang, **others: job("", *gang, **others),
    GANGS,
    priority=st.sampled_from([0, 0, 0, 5, 9]),
    hold_s=st.sampled_from([10.0, 30.0, 100.0, 250.0, 1000.0]),
    project=st.sampled_from(PROJECTS),
)
SHARES = st.sampled_from([1.0, 1.0, 1.0, 0.4])
"""How much of the time for which they may hold their machines jobs do; all of it is what puts promises to the test."""


def numbered(kinds: list[str]) -> list[NodeSpec]:
    return [node(f"{kind}-{number}", node_type=kind) for number, kind in enumerate(kinds)]


def drain(simulation: Simulation) -> None:
    """Lets all end, and checks that everybody has run who could, and that nothing is left of them."""
    simulation.set_quotas({})
    simulation.decide()
    simulation.check()
    while simulation.advance():
        simulation.check()
    for uid, waiting in list(simulation.queue.items()):
        assert simulation.scheduler.why_unplaceable(waiting) is not None, "it could run, and never did"
        simulation.withdraw(uid)
    simulation.decide()
    simulation.check_no_trace()


class Anything(RuleBasedStateMachine):
    """Whatever may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation(make_scheduler())
        self.number = 0

    @initialize(kinds=NODES, quotas=QUOTAS)
    def begin(self, kinds: list[str], quotas: dict[str, Quota]) -> None:
        self.simulation.set_quotas(quotas)
        for spec in numbered(kinds):
            self.simulation.add_node(spec)

    def pick(self, data: st.DataObject, names: object) -> str:
        return data.draw(st.sampled_from(sorted(names)))  # type: ignore[call-overload]

    def decide(self, share: float = 1.0) -> None:
        self.simulation.decide(share=share)
        self.simulation.check()

    @rule(jobs=st.lists(JOBS, min_size=1, max_size=3), share=SHARES)
    def arrive(self, jobs: list[QueuedJob], share: float) -> None:
        for new in jobs:
            self.number += 1
            uid = f"{self.number:03d}"
            self.simulation.enqueue(replace(new, uid=uid, name=f"job_{uid}", create_time_s=self.simulation.now_s))
        self.decide(share)

    @rule(share=SHARES, times=st.integers(1, 3))
    def advance(self, share: float, times: int) -> None:
        for _ in range(times):
            self.simulation.advance(share=share)
            self.simulation.check()

    @precondition(lambda self: self.simulation.queue)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.simulation.withdraw(self.pick(data, self.simulation.queue))
        self.decide()

    @precondition(lambda self: self.simulation.running)
    @rule(data=st.data(), is_retried=st.booleans())
    def end_early(self, data: st.DataObject, is_retried: bool) -> None:
        uid = self.pick(data, self.simulation.running)
        ended = self.simulation.running[uid].job
        self.simulation.end(uid)
        if is_retried:
            self.simulation.enqueue(ended)
        self.decide()

    @precondition(lambda self: self.simulation.running)
    @rule(data=st.data())
    def overrun(self, data: st.DataObject) -> None:
        self.simulation.running[self.pick(data, self.simulation.running)].ends_s += 500.0

    @rule(number=st.integers(0, 9), kind=st.sampled_from(sorted(TYPES)), is_up=st.booleans(), is_odd=st.booleans())
    def see_node(self, number: int, kind: str, is_up: bool, is_odd: bool) -> None:
        resources = {"vcpus": 7, "gib": 20} if is_odd else None
        spec = node(f"{kind}-{number}", node_type=kind, is_up=is_up, resources=resources)
        if spec.name in self.simulation.specs:
            self.simulation.replace_node(spec)
        else:
            self.simulation.add_node(spec)
        self.decide()

    @precondition(lambda self: self.simulation.specs)
    @rule(data=st.data())
    def lose_node(self, data: st.DataObject) -> None:
        self.simulation.remove_node(self.pick(data, self.simulation.specs))
        self.decide()

    @rule(quotas=QUOTAS)
    def set_quotas(self, quotas: dict[str, Quota]) -> None:
        self.simulation.set_quotas(quotas)
        self.decide()

    @rule()
    def restart(self) -> None:
        self.simulation.restart()
        self.decide()

    def teardown(self) -> None:
        drain(self.simulation)


TestAnything = Anything.TestCase
TestAnything.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


@settings(deadline=None, max_examples=60)
@given(
    kinds=NODES,
    quotas=QUOTAS,
    arrivals=st.lists(st.tuples(st.lists(JOBS, min_size=1, max_size=4), SHARES), min_size=4, max_size=20),
)
@pytest.mark.heavy
def test_promises_are_kept(
    kinds: list[str], quotas: dict[str, Quota], arrivals: list[tuple[list[QueuedJob], float]]
) -> None:
    simulation = Simulation(make_scheduler(*numbered(kinds), quotas=quotas), quotas=quotas)
    simulation.specs = {spec.name: spec for spec in numbered(kinds)}
    number = 0
    for jobs, share in arrivals:  # nobody comes who is ahead of those that are there
        for new in jobs:
            number += 1
            made = replace(new, uid=f"{number:03d}", priority=0, create_time_s=simulation.now_s)
            if simulation.scheduler.why_unplaceable(made) is None:
                simulation.enqueue(made)
        simulation.decide(share=share)
        simulation.check()
        simulation.advance(share=share)
        simulation.check()
    drain(simulation)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.heavy
def test_hundreds_go_past_and_no_promise_is_put_off(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [kind for kind in ("small", "big", "v100-box") for _ in range(10)]
    simulation = Simulation(make_scheduler())
    for spec in numbered(kinds):
        simulation.add_node(spec)
    small_parts = [demand(1, vcpus=1, gib=1), demand(2, vcpus=2, gib=8), demand(1, V100=1, vcpus=4)]
    heads = [demand(9, "small", vcpus=4), demand(10, "big", vcpus=12), demand(16, V100=2), demand(20, vcpus=4, gib=8)]
    number = num_past = 0
    while simulation.num_started < 250:
        for part in (*rng.choices(small_parts, k=6), *rng.choices(heads, k=rng.choice([0, 0, 1]))):
            number += 1
            hold_s = rng.choice([20.0, 60.0, 200.0, 700.0])
            simulation.enqueue(job(f"{number:04d}", part, create_time_s=simulation.now_s, hold_s=hold_s))
        before = min(simulation.queue)
        num_past += sum(uid > before for uid in simulation.decide(share=rng.choice([1.0, 1.0, 0.2])))
        simulation.advance(share=1.0)
        simulation.check_promises()
    assert num_past > 50
    assert simulation.num_promised > 3
    drain(simulation)


@settings(deadline=None, max_examples=50)
@given(
    kinds=NODES,
    quotas=QUOTAS,
    batches=st.lists(st.lists(JOBS, min_size=1, max_size=6), min_size=1, max_size=6),
    rng=st.randoms(use_true_random=False),
)
def test_neither_the_order_of_arrival_at_one_instant_nor_another_run_changes_anything(
    kinds: list[str], quotas: dict[str, Quota], batches: list[list[QueuedJob]], rng: random.Random
) -> None:
    pair = [Simulation(make_scheduler(quotas=quotas), quotas=quotas) for _ in range(2)]
    for simulation in pair:
        for spec in numbered(kinds):
            simulation.add_node(spec)
    number = 0
    for batch in batches:
        jobs: list[QueuedJob] = []
        for new in batch:
            number += 1
            jobs.append(replace(new, uid=f"{number:03d}", create_time_s=pair[0].now_s))
        for simulation in pair:
            simulation.enqueue(*jobs)
            rng.shuffle(jobs)
        for simulation in pair:
            simulation.decide()
            simulation.advance()
        first, second = (
            (
                simulation.now_s,
                {uid: (held.nodes, held.until_s) for uid, held in simulation.running.items()},
                {uid: simulation.scheduler.explain(uid) for uid in simulation.queue},
            )
            for simulation in pair
        )
        assert first == second


@settings(deadline=None, max_examples=30)
@given(kinds=NODES, jobs=st.lists(JOBS, min_size=1, max_size=8), rng=st.randoms(use_true_random=False))
def test_where_no_limit_binds_all_start_in_the_order_of_the_queue(
    kinds: list[str], jobs: list[QueuedJob], rng: random.Random
) -> None:
    room = Simulation(make_scheduler(quotas={"p": Quota(machines=99)}))
    for spec in numbered([*kinds, *sorted(TYPES) * 40]):
        room.add_node(spec)
    made = [replace(new, uid=str(number), create_time_s=float(rng.randrange(3))) for number, new in enumerate(jobs)]
    room.enqueue(*made)
    room.now_s = 5.0
    in_order = sorted(made, key=lambda new: (-new.priority, new.create_time_s, new.uid))
    assert room.decide() == [new.uid for new in in_order]


@settings(deadline=None, max_examples=200)
@given(kinds=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4), gang=GANGS, quotas=QUOTAS)
def test_refused_is_what_could_never_run_and_nothing_else(
    kinds: list[str], gang: tuple[Demand, ...], quotas: dict[str, Quota]
) -> None:
    alone = Simulation(make_scheduler(quotas=quotas), quotas=quotas)
    for spec in numbered(kinds):
        alone.add_node(spec)
    new = job("x", *gang, project="p")
    never = alone.scheduler.why_unplaceable(new)
    if alone.is_over_quota(new):
        assert never is not None
        assert never.startswith("quota of project p: ")
        return
    if new.num_machines <= 8:  # all ways to place more are too many to try
        free = {
            name: dict.fromkeys((*ACCELERATORS, *OTHERS), 0) | dict(spec.resources)
            for name, spec in alone.specs.items()
        }
        assert (never is None) == can_fit(gang, specs=alone.specs, free=free)
    alone.enqueue(new)
    assert alone.decide() == (["x"] if never is None else [])
