"""Which nodes a replica may be on, which of them it is on, and what is left of them."""

from __future__ import annotations

import pytest
from tests.jobs.scheduling.simulated import ACCELERATORS, OTHERS, demand, node

from lockstep.errors import ConfigError, ConflictError
from lockstep.jobs.scheduling import Demand, NodeSpec
from lockstep.jobs.scheduling.nodes import Allocation, Nodes, fit_count, minus


def make_nodes(*specs: NodeSpec) -> Nodes:
    nodes = Nodes((*ACCELERATORS, *OTHERS), num_accelerators=len(ACCELERATORS))
    for spec in specs:
        nodes.add(spec)
    return nodes


def types(nodes: Nodes, part: Demand) -> frozenset[str]:
    return nodes.types(part, nodes.vector(part.resources))


def chosen(nodes: Nodes, part: Demand, *among: str, passed_over: tuple[str, ...] = ()) -> list[str]:
    amount = nodes.vector(part.resources)
    found = nodes.candidates(among or types(nodes, part), amount, count=part.count, passed_over=passed_over)
    return [candidate.spec.name for candidate, _ in found]


def hold(nodes: Nodes, name: str, number: int = 1, **amounts: int) -> Allocation:
    allocation = Allocation(name, 0, number, nodes.vector(amounts.items()))
    nodes.take((allocation,))
    return allocation


@pytest.mark.parametrize(
    ("free", "amount", "count"),
    [((4, 9), (2, 3), 2), ((4, 9), (5, 0), 0), ((0, 9), (0, 9), 1), ((-1, 9), (1, 1), 0), ((-1, 9), (0, 4), 2)],
)
def test_how_many_fit(free: tuple[int, ...], amount: tuple[int, ...], count: int) -> None:
    assert fit_count(free, amount) == count
    assert fit_count(minus(free, amount, count=count), amount) == 0


def test_who_needs_nothing_fits_as_often_as_one_likes() -> None:
    assert fit_count((0, 0), (0, 0)) > 1_000_000


def test_a_resource_that_does_not_count_is_named() -> None:
    with pytest.raises(ConfigError, match="received 'tpus'; allowed: H100, V100, vcpus, gib"):
        make_nodes(node("a", resources={"tpus": 1}))


def test_names_are_unique() -> None:
    nodes = make_nodes(node("a"))
    with pytest.raises(ConflictError, match="there is a node 'a' already"):
        nodes.add(node("a", node_type="big"))
    assert [found.spec.node_type for found in nodes] == ["small"]


def test_what_is_taken_is_gone_until_it_is_given_back() -> None:
    nodes = make_nodes(node("a"), node("b"))
    one = nodes.vector(demand(vcpus=1).resources)
    assert nodes.room(["small"], one) == nodes.max_replicas(["small"], one) == 8
    allocation = hold(nodes, "a", 3, vcpus=1, gib=2)
    assert nodes["a"].free == (0, 0, 1, 2)
    assert nodes.room(["small"], one) == 5
    assert nodes.max_replicas(["small"], one) == 8
    assert all(found.free == found.total for found in nodes.without_allocations())
    nodes.release((allocation,))
    assert nodes["a"].free == nodes["a"].total
    assert nodes.room(["small"], one) == 8


def test_shares_of_nodes_that_are_gone_are_gone_with_them() -> None:
    nodes = make_nodes(node("a"), node("b"))
    allocation = hold(nodes, "a", vcpus=1)
    nodes.remove("a")
    nodes.release((allocation,))
    assert [found.spec.name for found in nodes] == ["b"]
    assert nodes.room(["small"], nodes.vector([("vcpus", 4)])) == 1


def test_the_first_and_the_last_of_a_type_and_size_are_told() -> None:
    nodes = make_nodes()
    assert nodes.add(node("a"))
    assert not nodes.add(node("b"))
    assert nodes.add(node("c", resources={"vcpus": 5}))
    assert not nodes.remove("a")
    assert nodes.remove("b")
    assert nodes.remove("c")


def test_replicas_without_accelerators_stay_off_accelerators() -> None:
    nodes = make_nodes(node("s"), node("v", node_type="v100-box"), node("h", node_type="h100-box"))
    assert types(nodes, demand(vcpus=4)) == {"small"}
    assert types(nodes, demand()) == {"small"}
    assert types(nodes, demand(V100=1, vcpus=1)) == {"v100-box"}
    assert types(nodes, demand(1, "v100-box", "small", vcpus=4)) == {"v100-box", "small"}


def test_unless_there_are_no_others_with_room() -> None:
    nodes = make_nodes(node("s"), node("v", node_type="v100-box"))
    assert types(nodes, demand(vcpus=5)) == {"v100-box"}  # an empty small one has 4
    hold(nodes, "s", vcpus=4)
    assert types(nodes, demand(vcpus=4)) == {"small"}  # what is full is there all the same
    nodes.remove("s")
    assert types(nodes, demand(vcpus=4)) == {"v100-box"}
    assert types(nodes, demand(vcpus=17)) == frozenset()


def test_a_type_is_off_limits_if_some_of_its_nodes_have_accelerators() -> None:
    mixed = NodeSpec(name="m", node_type="small", resources={"V100": 1, "vcpus": 16, "gib": 8})
    nodes = make_nodes(node("s"), mixed, node("b", node_type="big"))
    assert types(nodes, demand(vcpus=4)) == {"big"}
    assert types(nodes, demand(V100=1)) == {"small"}


def test_accelerators_of_another_type_are_left_alone_too() -> None:
    both = NodeSpec(name="both", node_type="both", resources={"H100": 8, "V100": 8, "vcpus": 99})
    nodes = make_nodes(node("v", node_type="v100-box"), both)
    assert types(nodes, demand(V100=1)) == {"v100-box"}
    assert types(nodes, demand(V100=8)) == {"both"}


def test_the_tightest_node_is_first() -> None:
    nodes = make_nodes(*(node(name, node_type="big") for name in "abc"))
    hold(nodes, "b", vcpus=12)
    hold(nodes, "c", vcpus=6)
    assert chosen(nodes, demand(vcpus=4)) == ["b", "c", "a"]
    assert chosen(nodes, demand(vcpus=6)) == ["c", "a"]


def test_accelerators_are_the_first_to_be_saved() -> None:
    nodes = make_nodes(node("a", node_type="v100-box"), node("b", node_type="v100-box"))
    hold(nodes, "a", V100=2)
    hold(nodes, "b", vcpus=15)
    assert chosen(nodes, demand(V100=1, vcpus=1)) == ["a", "b"]


def test_a_gang_that_is_as_tight_on_one_node_as_on_several_is_on_one() -> None:
    nodes = make_nodes(node("a"), node("b"), node("c", resources={"vcpus": 8, "gib": 16}))
    assert chosen(nodes, demand(2, vcpus=4, gib=8))[0] == "c"


def test_nodes_that_are_up_come_before_those_that_are_not() -> None:
    nodes = make_nodes(node("a", is_up=False), node("b", node_type="big"))
    assert chosen(nodes, demand(vcpus=4)) == ["b", "a"]
    nodes.replace_spec(node("a"))
    assert chosen(nodes, demand(vcpus=4)) == ["a", "b"]
    nodes.replace_spec(node("a", is_up=False))
    assert chosen(nodes, demand(vcpus=4)) == ["b", "a"]


def test_nodes_that_are_promised_come_last_or_not_at_all() -> None:
    nodes = make_nodes(node("a"), node("b", node_type="big", is_up=False), node("c"))
    nodes.claim("a", "job")
    assert chosen(nodes, demand(2, vcpus=4)) == ["c", "b", "a"]
    assert chosen(nodes, demand(2, vcpus=4), passed_over=("job",)) == ["c", "b"]
    nodes.claim("a", "")
    assert chosen(nodes, demand(2, vcpus=4)) == ["c", "a", "b"]


def test_of_nodes_that_are_alike_no_more_are_named_than_are_needed() -> None:
    nodes = make_nodes(*(node(f"s{number}") for number in range(100)))
    assert chosen(nodes, demand(7, vcpus=2)) == ["s0", "s1", "s2", "s3"]
    for found in list(nodes):
        nodes.claim(found.spec.name, "job")  # who may have how much of these is not known here
    assert len(chosen(nodes, demand(7, vcpus=2))) == 100


def test_the_order_does_not_depend_on_the_order_of_types() -> None:
    nodes = make_nodes(*(node(kind, node_type=kind, resources={"vcpus": 4}) for kind in "dbca"))
    for among in ("abcd", "dcba", "bdac"):
        assert chosen(nodes, demand(vcpus=4), *among) == ["a", "b", "c", "d"]
