"""The scheduler over 10,000 nodes and 100,000 jobs: decisions a second, use of the nodes, how long jobs wait.

Nothing here is a real machine: time is simulated, the scheduler is the one that the service runs. What the jobs are is
written down in `MIX`, with a fixed seed; how long a job runs is drawn below its ``maxRunningTime``, which is all that
the scheduler knows. Jobs are in the queue from the beginning or arrive while others run; the queue is never empty until
all have arrived, and figures of use are of that time alone.

    python benchmarks/scheduler.py            # 10,000 nodes, 100,000 jobs: some minutes a round
    python benchmarks/scheduler.py --small    # 500 nodes, 5,000 jobs
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from harness import columns
from harness.environments import own_versions
from harness.options import count
from harness.program import Program
from harness.results import Result
from harness.tables import percentile

from lockstep.jobs.scheduling import Demand, NodeSpec, QueuedJob, Scheduler

RESOURCES: Final = ("NVIDIA_H100_80GB", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_A100", "vcpus", "memory_mib")
"""What nodes have, the scarcest first."""

COUNTED: Final = RESOURCES[:-1]
"""Whose use is measured. Memory comes with the machine; vCPUs are those of nodes and replicas without accelerators."""


def counted(amounts: Mapping[str, int]) -> str:
    """Returns the resource by which the use of a node, or by a replica, is measured."""
    return next(name for name in COUNTED if name in amounts)


NODE_TYPES: Final = (
    # share of all nodes, name, what one has
    (0.60, "n1-standard-32", {"vcpus": 32, "memory_mib": 120 * 1024}),
    (0.20, "v100-box", {"NVIDIA_TESLA_V100": 8, "vcpus": 96, "memory_mib": 360 * 1024}),
    (0.15, "a2-highgpu-1g", {"NVIDIA_TESLA_A100": 1, "vcpus": 12, "memory_mib": 85 * 1024}),
    (0.05, "h100-box", {"NVIDIA_H100_80GB": 8, "vcpus": 208, "memory_mib": 1872 * 1024}),
)


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """Jobs that are alike.

    Attributes:
        share: of all jobs.
        name: the replicas' machine in words.
        replicas: how many replicas, with their weights.
        accelerators: what one replica has, by type.
        vcpus: and of processors.
        memory_mib: and of memory.
        node_types: where it may run; none for anywhere.
        servers: how many parameter servers on CPU nodes go with it.
    """

    share: float
    name: str
    replicas: dict[int, float]
    vcpus: int
    memory_mib: int
    accelerators: dict[str, int] = field(default_factory=dict)
    node_types: tuple[str, ...] = ()
    servers: int = 0

    @property
    def amounts(self) -> dict[str, int]:
        return {**self.accelerators, "vcpus": self.vcpus, "memory_mib": self.memory_mib}


CPU_NODES, V100, A100, H100 = "n1-standard-32", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_A100", "NVIDIA_H100_80GB"


def kind(share: float, name: str, replicas: dict[int, float], vcpus: int, memory_gib: int, **more: Any) -> JobKind:
    """Makes a kind of jobs, in a line."""
    return JobKind(share=share, name=name, replicas=replicas, vcpus=vcpus, memory_mib=memory_gib * 1024, **more)


MIX: Final = (
    kind(0.32, "n1-standard-4", {1: 0.8, 4: 0.2}, 4, 15),
    kind(0.14, "n1-standard-8", {1: 0.5, 5: 0.3, 16: 0.2}, 8, 30),
    kind(0.08, "n1-standard-32", {2: 0.6, 32: 0.3, 256: 0.1}, 32, 120, node_types=(CPU_NODES,)),
    kind(0.16, "n1-standard-8 + 1 x V100", {1: 0.9, 4: 0.1}, 8, 30, accelerators={V100: 1}),
    kind(0.10, "n1-standard-16 + 4 x V100", {1: 0.7, 8: 0.3}, 16, 60, accelerators={V100: 4}, servers=2),
    kind(0.04, "n1-standard-64 + 8 x V100", {1: 0.5, 16: 0.4, 128: 0.1}, 64, 240, accelerators={V100: 8}),
    kind(
        0.10, "a2-highgpu-1g", {1: 0.7, 4: 0.2, 64: 0.1}, 12, 85, accelerators={A100: 1}, node_types=("a2-highgpu-1g",)
    ),
    kind(0.05, "8 x H100", {1: 0.6, 8: 0.35, 32: 0.05}, 208, 1872, accelerators={H100: 8}),
    kind(0.01, "1 x H100", {1: 1.0}, 26, 234, accelerators={H100: 1}),
)

LIMITS_H: Final = {1: 0.3, 4: 0.3, 12: 0.2, 24: 0.15, 168: 0.05}
"""``maxRunningTime`` in hours, with weights; a job runs for 5 to 100 % of it, most of them for a good deal less."""

PRIORITIES: Final = {0: 0.9, 100: 0.08, 1000: 0.02}
NUM_PROJECTS: Final = 20
GRACE_S: Final = 120.0
"""Preparing and ending: a job holds its machines for this much longer than it may run."""


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job, and how long it will run, which the scheduler does not know."""

    job: QueuedJob
    runs_s: float


def make_nodes(num_nodes: int) -> list[NodeSpec]:
    return [
        NodeSpec(name=f"{name}/{number}", node_type=name, resources=resources)
        for share, name, resources in NODE_TYPES
        for number in range(round(share * num_nodes))
    ]


def draw(rng: random.Random, weights: dict[int, float]) -> int:
    return rng.choices(list(weights), list(weights.values()))[0]


def make_jobs(num_jobs: int, *, scale: float, rng: random.Random) -> list[SimulatedJob]:
    jobs: list[SimulatedJob] = []
    for number in range(num_jobs):
        drawn = rng.choices(MIX, [one.share for one in MIX])[0]
        count = max(1, round(draw(rng, drawn.replicas) * min(1.0, scale)))
        demands = [
            Demand(name=drawn.name, count=count, resources=tuple(drawn.amounts.items()), node_types=drawn.node_types)
        ]
        if drawn.servers:
            server = (("vcpus", 4), ("memory_mib", 15360))
            demands.append(
                Demand(name="n1-standard-4", count=drawn.servers, resources=server, node_types=("n1-standard-32",))
            )
        limit_s = 3600.0 * draw(rng, LIMITS_H)
        accelerators = {name: amount * count for name, amount in drawn.amounts.items() if name.startswith("NVIDIA")}
        job = QueuedJob(
            uid=f"{number:06d}",
            name=f"job_{number}",
            project=f"project-{rng.randrange(NUM_PROJECTS)}",
            priority=draw(rng, PRIORITIES),
            create_time_s=0.0,
            demands=tuple(demands),
            hold_s=limit_s + GRACE_S,
            accelerators=accelerators,
        )
        jobs.append(SimulatedJob(job=job, runs_s=limit_s * min(1.0, 0.05 + rng.expovariate(3.0))))
    return jobs


def most_of(capacity: int, sizes: Counter[int]) -> int:
    """Returns the most of one resource that whole gangs could use at once, whichever are chosen: a subset sum.

    It is what the work allows of this resource at best: that the other resources must suffice too, and that a gang's
    replicas must fit on single nodes, is left out, so that the figure of use is rather too low than too high.

    Args:
        capacity: how much of it there is.
        sizes: how many gangs wait or run, by how much each uses.
    """
    if sum(size * number for size, number in sizes.items()) <= capacity:
        return sum(size * number for size, number in sizes.items())
    reached, mask = 1, (1 << (capacity + 1)) - 1  # bit n: a choice of gangs uses n
    for size, number in sorted(sizes.items()):
        part = 1
        while number > 0:  # by powers of two, so that a thousand equal gangs are ten steps
            taken = min(part, number)
            reached |= (reached << (size * taken)) & mask
            number -= taken
            part *= 2
        if reached >> capacity:
            return capacity
    return reached.bit_length() - 1


def simulate(nodes: list[NodeSpec], jobs: list[SimulatedJob], *, backlog: int) -> dict[str, tuple[str, float]]:
    """Runs all jobs to their end; returns units and figures by name.

    Args:
        nodes: the nodes.
        jobs: the jobs, in the order in which they arrive.
        backlog: how many jobs are in the queue at first; another arrives for each that starts.
    """
    scheduler = Scheduler(accelerators=RESOURCES[:3], others=RESOURCES[3:])
    for node in nodes:
        scheduler.add_node(node)
    capacity = dict.fromkeys(COUNTED, 0)
    for node in nodes:
        capacity[counted(node.resources)] += node.resources[counted(node.resources)]
    by_uid = {item.job.uid: item for item in jobs}
    arrivals = iter(jobs)
    asked = {name: Counter[int]() for name in COUNTED}  # gangs that wait or run, by what each uses
    used = dict.fromkeys(COUNTED, 0)
    used_area, allowed_area = dict.fromkeys(COUNTED, 0.0), dict.fromkeys(COUNTED, 0.0)
    ends: list[tuple[float, str]] = []
    waits_s: list[float] = []
    arrived_s: dict[str, float] = {}
    now_s = decision_s = worst_pass_s = 0.0
    num_placements = num_refusals = 0
    all_arrived_s = math.inf

    def amounts_of(job: QueuedJob) -> dict[str, int]:
        found = dict.fromkeys(COUNTED, 0)
        for demand in job.demands:
            amounts = dict(demand.resources)
            found[counted(amounts)] += amounts[counted(amounts)] * demand.count
        return found

    def arrive(number: int) -> None:
        nonlocal all_arrived_s, decision_s
        for _ in range(number):
            item = next(arrivals, None)
            if item is None:
                all_arrived_s = min(all_arrived_s, now_s)
                return
            job = replace(item.job, create_time_s=now_s)
            arrived_s[job.uid] = now_s
            for name, amount in amounts_of(job).items():
                if amount:
                    asked[name][amount] += 1
            began = time.perf_counter()
            scheduler.enqueue(job)
            decision_s += time.perf_counter() - began

    arrive(backlog)
    while True:
        began = time.perf_counter()
        decisions = scheduler.decide(now_s=now_s)
        pass_s = time.perf_counter() - began
        decision_s += pass_s
        worst_pass_s = max(worst_pass_s, pass_s)
        num_placements += len(decisions.starts)
        num_refusals += len(decisions.refusals)
        for start in decisions.starts:
            item = by_uid[start.job.uid]
            waits_s.append(now_s - arrived_s[start.job.uid])
            heapq.heappush(ends, (now_s + item.runs_s, start.job.uid))
            for name, amount in amounts_of(start.job).items():
                used[name] += amount
        arrive(len(decisions.starts))
        if decisions.starts and all_arrived_s == math.inf:
            continue  # those that have just arrived are looked at now
        if not ends:
            break
        next_s = ends[0][0]
        if all_arrived_s == math.inf:
            for name in COUNTED:
                used_area[name] += used[name] * (next_s - now_s)
                allowed_area[name] += most_of(capacity[name], asked[name]) * (next_s - now_s)
        now_s = next_s
        while ends and ends[0][0] <= now_s:
            _, uid = heapq.heappop(ends)
            for name, amount in amounts_of(by_uid[uid].job).items():
                used[name] -= amount
                if amount:
                    asked[name][amount] -= 1
            began = time.perf_counter()
            scheduler.end(uid)
            decision_s += time.perf_counter() - began
    assert scheduler.num_queued == 0, "every job has run"
    waits_h = [wait_s / 3600 for wait_s in waits_s]
    shares = {name: 100 * used_area[name] / allowed_area[name] for name in COUNTED if allowed_area[name]}
    titles = {"vcpus": "vCPUs of nodes without accelerators"}
    return {
        "decisions": ("a second", (num_placements + num_refusals) / decision_s),
        "jobs placed": ("a second of deciding", num_placements / decision_s),
        "the longest pass": ("ms", 1000 * worst_pass_s),
        **{f"use of {titles.get(name, name)}": ("%", share) for name, share in shares.items()},
        "a job's wait, median": ("hours", statistics.median(waits_h)),
        "a job's wait, p99": ("hours", percentile(waits_h, 0.99)),
        "a job's wait, longest": ("hours", max(waits_h)),
        "simulated": ("days", now_s / 86400),
    }


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="scheduler", num_rounds=1)
    program.add("--seed", type=int, default=7, help="of the first round's mix; the others have the next ones")
    program.add("--nodes", type=count, default=10_000, help="how many (default: %(default)s)")
    program.add("--jobs", type=count, default=100_000, help="how many (default: %(default)s)")
    options = program.parse(small={"nodes": 500, "jobs": 5_000})
    found = []
    for number in range(options.rounds):
        rng = random.Random(options.seed + number)  # noqa: S311  # a mix that anybody can draw again
        jobs = make_jobs(options.jobs, scale=options.nodes / 2500, rng=rng)
        found.append(simulate(make_nodes(options.nodes), jobs, backlog=options.jobs // 2))
    results = [
        Result(case="the scheduler", side=name, unit=unit, values=[one[name][1] for one in found])
        for name, (unit, _) in found[0].items()
    ]
    columns.show_figures(results)
    program.finish(results, packages={"Lockstep": own_versions()})


if __name__ == "__main__":
    main()
