"""When, and on which nodes, the first job without room has room at the latest."""

from __future__ import annotations

from collections import Counter

from tests.jobs.scheduling.simulated import ACCELERATORS, OTHERS, demand, job, node

from lockstep.jobs.scheduling import Demand, NodeSpec
from lockstep.jobs.scheduling.nodes import Allocation, Nodes, Vector, minus
from lockstep.jobs.scheduling.promises import MAX_STEPS, PlacedDemand, Promise, Release, make_promise, orders, place


class Cluster:
    """Nodes, and jobs that hold all of some of them until they end."""

    def __init__(self, *specs: NodeSpec) -> None:
        self.nodes = Nodes((*ACCELERATORS, *OTHERS), num_accelerators=len(ACCELERATORS))
        for spec in specs:
            self.nodes.add(spec)
        self.releases: list[Release] = []

    def busy(self, until_s: float, *names: str, number: int = 1, **amounts: int) -> None:
        allocations: list[Allocation] = []
        for name in names:
            taken = self.nodes.vector(amounts.items()) if amounts else self.nodes[name].free
            allocations.append(Allocation(name, 0, number, taken))
        self.nodes.take(allocations)
        self.releases.append(Release(until_s, allocations))

    def needs(self, *demands: Demand) -> list[PlacedDemand]:
        found: list[PlacedDemand] = []
        for position, part in enumerate(demands):
            amount = self.nodes.vector(part.resources)
            found.append(PlacedDemand(part.count, amount, self.nodes.types(part, amount), position))
        return found

    def promise(self, *demands: Demand, now_s: float = 0.0) -> Promise | None:
        needs = self.needs(*demands)
        return make_promise(
            job("g", *demands),
            needs=needs,
            types=frozenset[str]().union(*(need.types for need in needs)),
            nodes=self.nodes,
            releases=sorted(self.releases),
            now_s=now_s,
        )


def smalls(number: int) -> list[NodeSpec]:
    return [node(f"s{position}") for position in range(number)]


def test_the_promise_is_the_first_time_at_which_enough_is_free() -> None:
    cluster = Cluster(*smalls(4))
    for until_s in (100.0, 200.0, 300.0):
        cluster.busy(until_s, f"s{until_s / 100:.0f}")
    for count, time_s in ((1, 5.0), (2, 100.0), (3, 200.0), (4, 300.0)):
        promise = cluster.promise(demand(count, vcpus=4), now_s=5.0)
        assert promise is not None
        assert (promise.time_s, promise.made_time_s) == (time_s, 5.0)
        assert len(promise.allocations) == len(promise.spare) == count
    assert cluster.promise(demand(5, vcpus=4)) is None


def test_what_is_left_of_promised_nodes_can_be_spared() -> None:
    cluster = Cluster(*smalls(2))
    cluster.busy(100.0, "s0", "s1", vcpus=2)
    cluster.busy(200.0, "s0", gib=1)
    promise = cluster.promise(demand(2, vcpus=3, gib=3))
    assert promise is not None
    assert promise.time_s == 100.0
    assert promise.spare == {"s0": (0, 0, 1, 4), "s1": (0, 0, 1, 5)}  # one GiB of s0 is held for longer
    assert promise.types == {"small"}
    assert promise.can_spare(cluster.nodes.vector([("gib", 5)]))
    assert not promise.can_spare(cluster.nodes.vector([("gib", 6)]))
    promise.spare["s1"] = (0, 0, 1, 4)
    assert not promise.can_spare(cluster.nodes.vector([("gib", 5)]))
    assert promise.can_spare(cluster.nodes.vector([("gib", 4)]))
    assert promise.exhausted == {(0, 0, 0, 6), (0, 0, 0, 5)}


def test_nodes_that_are_busy_until_then_are_promised_before_idle_ones() -> None:
    cluster = Cluster(*smalls(4))
    cluster.busy(100.0, "s0")
    cluster.busy(200.0, "s1")
    cluster.busy(300.0, "s2", vcpus=1)
    promise = cluster.promise(demand(3, vcpus=4))
    assert promise is not None
    assert promise.time_s == 200.0
    assert set(promise.spare) == {"s0", "s1", "s3"}
    one = cluster.promise(demand(1, gib=8, vcpus=4, name="one"))
    assert one is not None
    assert set(one.spare) == {"s3"}, "it has room now"


def test_nodes_that_are_gone_give_nothing_back() -> None:
    cluster = Cluster(*smalls(2))
    cluster.busy(100.0, "s0", "s1")
    cluster.nodes.remove("s0")
    assert cluster.promise(demand(2, vcpus=4)) is None
    promise = cluster.promise(demand(1, vcpus=4))
    assert promise is not None
    assert set(promise.spare) == {"s1"}


def test_other_types_give_nothing_back() -> None:
    cluster = Cluster(node("s"), node("b", node_type="big"))
    cluster.busy(100.0, "s", "b")
    promise = cluster.promise(demand(1, "big", vcpus=2))
    assert promise is not None
    assert set(promise.spare) == {"b"}
    assert cluster.promise(demand(9, "big", vcpus=2)) is None


def test_the_second_demand_of_a_gang_finds_idle_nodes_beside_those_that_the_first_took() -> None:
    cluster = Cluster(*smalls(8))
    cluster.busy(100.0, "s0")
    cluster.busy(900.0, "s7", vcpus=1)
    promise = cluster.promise(demand(4, vcpus=4, gib=4), demand(3, vcpus=4, gib=3))
    assert promise is not None
    assert promise.time_s == 100.0
    assert set(promise.spare) == {f"s{number}" for number in range(7)}


def test_what_is_promised_fits_on_its_nodes_whole_gang_or_nothing() -> None:
    cluster = Cluster(node("a", node_type="big"), node("b", node_type="big"))
    cluster.busy(100.0, "a")
    cluster.busy(200.0, "b", vcpus=10)
    gang = (demand(2, vcpus=6, gib=6), demand(1, vcpus=4, gib=20), demand(2, vcpus=3, gib=1))
    promise = cluster.promise(*gang)
    assert promise is not None
    assert promise.time_s == 100.0
    counts = Counter[int]()
    left: dict[str, Vector] = {"a": (0, 0, 16, 32), "b": (0, 0, 6, 32)}
    for allocation in promise.allocations:
        counts[allocation.demand] += allocation.number
        left[allocation.node] = minus(left[allocation.node], allocation.amount, count=allocation.number)
    assert counts == {0: 2, 1: 1, 2: 2}
    assert promise.spare == left
    assert min(amount for amounts in left.values() for amount in amounts) >= 0


def test_all_orders_of_a_few_demands_are_tried() -> None:
    needs = Cluster(node("a")).needs(*(demand(count) for count in (1, 2, 3)))
    assert [[need.number for need in order] for order in orders(needs)] == [
        [1, 2, 3],
        [1, 3, 2],
        [2, 1, 3],
        [2, 3, 1],
        [3, 1, 2],
        [3, 2, 1],
    ]
    assert len(list(orders(needs * 3))) == 24


def test_a_demand_that_few_nodes_hold_may_come_before_a_larger_one() -> None:
    cluster = Cluster(node("b", node_type="big"), node("s", resources={"vcpus": 8, "gib": 8}))
    needs = cluster.needs(demand(1, vcpus=8, gib=8), demand(1, "small", vcpus=4, gib=4))
    allocations = place(needs, nodes=cluster.nodes)
    assert allocations is not None
    assert {allocation.demand: allocation.node for allocation in allocations} == {0: "b", 1: "s"}
    assert cluster.nodes["s"].free == (0, 0, 4, 4)
    cluster.busy(100.0, "s", vcpus=1)
    assert place(needs, nodes=cluster.nodes) is None
    assert cluster.nodes["b"].free == (0, 0, 8, 24), "nothing is taken for a part of a gang"


def test_a_search_without_end_is_given_up_and_nothing_is_taken() -> None:
    cluster = Cluster(node("a", resources={"vcpus": 5000, "gib": 1}))
    needs = cluster.needs(demand(MAX_STEPS + 1, vcpus=1), demand(2, gib=1))
    assert place(needs, nodes=cluster.nodes) is None
    assert cluster.nodes["a"].free == cluster.nodes["a"].total


def test_who_fits_in_the_tightest_way_alone_is_promised_the_time_when_all_is_empty() -> None:
    sizes = {"a": (8, 5), "b": (7, 6), "c": (7, 5)}
    cluster = Cluster(*(node(name, resources={"vcpus": v, "gib": g}) for name, (v, g) in sizes.items()))
    for name, until_s in (("a", 100.0), ("b", 103.0), ("c", 107.0)):
        cluster.busy(until_s, name)
    promise = cluster.promise(demand(2, vcpus=3, gib=5), demand(2, vcpus=2, gib=3))
    assert promise is not None
    assert promise.time_s == 107.0
    assert promise.spare == {"a": (0, 0, 5, 0), "b": (0, 0, 3, 0), "c": (0, 0, 4, 0)}
