"""Nodes and jobs for these tests, and a scheduler driven through simulated time with everything counted a second time.

The counting is slow and plain on purpose: it shares no code with what it checks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.jobs.scheduling import Decisions, Demand, NodeSpec, QueuedJob, Quota, Scheduler
from lockstep.jobs.scheduling.promises import Promise

ACCELERATORS = ("H100", "V100")
OTHERS = ("vcpus", "gib")
TYPES: dict[str, dict[str, int]] = {
    "small": {"vcpus": 4, "gib": 8},
    "big": {"vcpus": 16, "gib": 32},
    "v100-box": {"V100": 4, "vcpus": 16, "gib": 32},
    "h100-box": {"H100": 2, "vcpus": 8, "gib": 64},
}


def node(
    name: str, *, node_type: str = "small", is_up: bool = True, resources: dict[str, int] | None = None
) -> NodeSpec:
    return NodeSpec(name=name, node_type=node_type, resources=resources or TYPES[node_type], is_up=is_up)


def demand(count: int = 1, *types: str, name: str = "", **amounts: int) -> Demand:
    words = name or " + ".join(f"{amount} {kind}" for kind, amount in amounts.items())
    return Demand(name=words, count=count, resources=tuple(amounts.items()), node_types=types)


def job(
    uid: str,
    *demands: Demand,
    priority: int = 0,
    create_time_s: float = 0.0,
    hold_s: float = 100.0,
    project: str = "free",
) -> QueuedJob:
    found = Counter[str]()
    for part in demands:
        found.update({kind: amount * part.count for kind, amount in part.resources if kind in ACCELERATORS})
    return QueuedJob(
        uid=uid,
        name=f"job_{uid}",
        project=project,
        priority=priority,
        create_time_s=create_time_s,
        demands=demands,
        hold_s=hold_s,
        accelerators=found,
    )


def make_scheduler(*nodes: NodeSpec, quotas: Mapping[str, Quota] | None = None) -> Scheduler:
    scheduler = Scheduler(accelerators=ACCELERATORS, others=OTHERS, quotas=quotas)
    for spec in nodes:
        scheduler.add_node(spec)
    return scheduler


def started(decisions: Decisions) -> list[str]:
    return [start.job.uid for start in decisions.starts]


def fits(free: Mapping[str, int], part: Demand) -> int:
    """How many replicas of a demand have room."""
    return min((max(0, free.get(kind, 0)) // amount for kind, amount in part.resources if amount), default=1_000_000)


def allowed_types(part: Demand, specs: Iterable[NodeSpec]) -> set[str]:
    """The types of nodes that a replica may be on: those with accelerators that it does not need only if it must."""
    wanted = {kind for kind, amount in part.resources if amount}
    holding = [spec for spec in specs if fits(spec.resources, part)]
    if part.node_types:
        return {spec.node_type for spec in holding} & set(part.node_types)
    wasteful = {
        spec.node_type
        for spec in holding
        if any(spec.resources.get(kind) and kind not in wanted for kind in ACCELERATORS)
    }
    return {spec.node_type for spec in holding} - wasteful or {spec.node_type for spec in holding}


def surely_fits(
    demands: tuple[Demand, ...], *, specs: Mapping[str, NodeSpec], free: Mapping[str, Mapping[str, int]]
) -> bool:
    """Whether a gang has room in whatever order and on whichever nodes its replicas are put one after the other.

    For one demand that is whether it has room. Several demands that share nodes are taken for equal replicas, each as
    large as the largest in everything.
    """
    types = [allowed_types(part, specs.values()) for part in demands]
    if any(a & b for a, b in itertools.combinations(types, 2)):
        most = {kind: max(dict(part.resources).get(kind, 0) for part in demands) for kind in (*ACCELERATORS, *OTHERS)}
        demands = (Demand(name="", count=sum(part.count for part in demands), resources=tuple(most.items())),)
        types = [set.intersection(*types)]
    return all(
        sum(fits(amounts, part) for name, amounts in free.items() if specs[name].node_type in those) >= part.count
        for part, those in zip(demands, types, strict=True)
    )


def can_fit(
    demands: tuple[Demand, ...], *, specs: Mapping[str, NodeSpec], free: Mapping[str, Mapping[str, int]]
) -> bool:
    """Whether there is any way at all to place a gang: tries them all."""
    types = {part: allowed_types(part, specs.values()) for part in demands}
    replicas = [part for part in demands for _ in range(part.count)]
    names = sorted(free)

    def place(position: int, left: dict[str, dict[str, int]], seen: set[object]) -> bool:
        if position == len(replicas):
            return True
        state = (position, tuple(tuple(sorted(left[name].items())) for name in names))
        if state in seen:
            return False
        seen.add(state)
        part = replicas[position]
        tried = set[object]()
        for name in names:
            alike = (specs[name].node_type, tuple(sorted(left[name].items())))
            if alike in tried or specs[name].node_type not in types[part] or not fits(left[name], part):
                continue
            tried.add(alike)
            needs = dict(part.resources)
            after = {kind: amount - needs.get(kind, 0) for kind, amount in left[name].items()}
            if place(position + 1, {**left, name: after}, seen):
                return True
        return False

    return place(0, {name: dict(amounts) for name, amounts in free.items()}, set())


@dataclass
class Running:
    """A job that runs."""

    job: QueuedJob
    nodes: tuple[str, ...]
    until_s: float
    ends_s: float


@dataclass
class Simulation:
    """A scheduler, and what is known of it without it."""

    scheduler: Scheduler
    quotas: dict[str, Quota] = field(default_factory=dict)
    now_s: float = 0.0
    specs: dict[str, NodeSpec] = field(default_factory=dict)
    queue: dict[str, QueuedJob] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    looked_at: list[Promise] = field(default_factory=list)
    num_started: int = 0
    num_promised: int = 0

    # What happens.

    def add_node(self, spec: NodeSpec) -> None:
        if not any((spec.node_type, spec.resources) == (old.node_type, old.resources) for old in self.specs.values()):
            self.promised.clear()  # nodes as there were none before may change where everybody may go
        self.scheduler.add_node(spec)
        self.specs[spec.name] = spec

    def remove_node(self, name: str) -> None:
        self.promised.clear()
        self.scheduler.remove_node(name)
        del self.specs[name]

    def replace_node(self, spec: NodeSpec) -> None:
        old = self.specs[spec.name]
        if (spec.node_type, spec.resources) != (old.node_type, old.resources):
            self.promised.clear()
        self.scheduler.replace_node(spec)
        self.specs[spec.name] = spec

    def set_quotas(self, quotas: dict[str, Quota]) -> None:
        self.promised.clear()
        self.scheduler.set_quotas(quotas)
        self.quotas = dict(quotas)

    def enqueue(self, *jobs: QueuedJob) -> None:
        for new in jobs:
            self.scheduler.enqueue(new)
            self.queue[new.uid] = new
            self.promised = {uid: by_s for uid, by_s in self.promised.items() if self.queue[uid].order < new.order}

    def withdraw(self, uid: str) -> None:
        self.scheduler.withdraw(uid)
        gone = self.queue.pop(uid)
        self.promised.pop(uid, None)
        if gone.project in self.quotas:  # what was kept for it may go to jobs that its project's quota held back
            self.promised.clear()

    def end(self, uid: str) -> None:
        self.scheduler.end(uid)
        del self.running[uid]

    def restart(self) -> None:
        """Another scheduler takes over, which knows what runs and what waits, and nothing of what was promised."""
        self.promised.clear()
        self.scheduler = make_scheduler(*self.specs.values(), quotas=self.quotas)
        for held in self.running.values():
            self.scheduler.add_running(held.job, nodes=held.nodes, until_s=held.until_s)
        for waiting in self.queue.values():
            self.scheduler.enqueue(waiting)

    def decide(self, *, share: float = 1.0) -> list[str]:
        """Lets the scheduler decide, and checks the decisions.

        Args:
            share: of the time for which they may hold their machines, how much the jobs that start now take; over 1 if
                they hold them for longer than they said.
        """
        decisions = self.scheduler.decide(now_s=self.now_s)
        for start in decisions.starts:
            self._check_start(start.job, start.nodes)
            del self.queue[start.job.uid]
            by_s = self.promised.pop(start.job.uid, None)
            assert by_s is None or self.now_s <= by_s, "a promise was not kept"
            self.running[start.job.uid] = Running(
                start.job, start.nodes, self.now_s + start.job.hold_s, self.now_s + share * start.job.hold_s
            )
            self.num_started += 1
        assert not {refusal.uid for refusal in decisions.refusals} & set(self.running)
        return started(decisions)

    def advance(self, *, share: float = 1.0) -> bool:
        """Goes on to when the next job ends, and decides; False when none runs."""
        if not self.running:
            return False
        self.now_s = max(self.now_s, min(held.ends_s for held in self.running.values()))
        if any(held.until_s < self.now_s for held in self.running.values()):
            self.promised.clear()  # somebody held machines for longer than was said
        for uid in [uid for uid, held in self.running.items() if held.ends_s <= self.now_s]:
            self.end(uid)
        self.decide(share=share)
        return True

    # What must be true.

    def free(self, *, at_s: float = 0.0) -> dict[str, dict[str, int]]:
        """What is free of each node, as counted here, when all jobs have ended that may hold nothing at some time."""
        left = {
            name: dict.fromkeys((*ACCELERATORS, *OTHERS), 0) | dict(spec.resources) for name, spec in self.specs.items()
        }
        for held in self.running.values():
            parts = [part for part in held.job.demands for _ in range(part.count)]
            for name, part in zip(held.nodes, parts, strict=True):
                if name in left and (held.until_s > at_s or not at_s):
                    for kind, amount in part.resources:
                        left[name][kind] -= amount
        return left

    def _check_start(self, new: QueuedJob, nodes: tuple[str, ...]) -> None:
        """That it is in the queue, that its quota allows it, that each replica is where it may be, and has the room."""
        assert self.queue[new.uid] is new
        assert len(nodes) == new.num_machines
        assert not self.is_over_quota(new)
        left = self.free()
        parts = [part for part in new.demands for _ in range(part.count)]
        for name, part in zip(nodes, parts, strict=True):
            assert self.specs[name].node_type in allowed_types(part, self.specs.values())
            for kind, amount in part.resources:
                left[name][kind] -= amount
                assert left[name][kind] >= 0, f"{name} is over-committed"

    def is_over_quota(self, new: QueuedJob, *, and_also: Iterable[QueuedJob] = ()) -> bool:
        """Whether a job does not fit into what its project may use beside those that run."""
        quota = self.quotas.get(new.project)
        if quota is None:
            return False
        jobs = [new, *and_also, *(held.job for held in self.running.values())]
        mine = [one for one in jobs if one.project == new.project]
        if quota.machines is not None and sum(one.num_machines for one in mine) > quota.machines:
            return True
        return any(
            kind in new.accelerators and sum(one.accelerators.get(kind, 0) for one in mine) > limit
            for kind, limit in quota.accelerators.items()
        )

    def is_held(self, waiting: QueuedJob) -> bool:
        """Whether a job's quota holds it back; what is promised to a project's earlier jobs is as good as in use."""
        earlier = [
            promise.job
            for promise in self.scheduler._promises.values()
            if promise.job.order < waiting.order and promise.job.project == waiting.project
        ]
        return self.is_over_quota(waiting, and_also=earlier)

    def check(self) -> None:
        """Checks what must be true after a decision."""
        self._check_books()
        self.check_promises()
        self._check_who_is_promised()
        self._check_that_nobody_waits_for_nothing()

    def _check_books(self) -> None:
        nodes = self.scheduler._nodes
        assert {found.spec.name: dict(zip(nodes.names, found.free, strict=True)) for found in nodes} == self.free()
        claims = {name: uid for uid, promise in self.scheduler._promises.items() for name in promise.spare}
        assert {found.spec.name: found.claim for found in nodes if found.claim} == claims
        assert sum(len(promise.spare) for promise in self.scheduler._promises.values()) == len(claims)
        assert set(self.scheduler._promises) <= set(self.queue)
        assert self.scheduler.num_queued == len(self.queue)

    def check_promises(self) -> None:
        """That each is kept in time, never put off, and of its own types alone."""
        seen = set[str]()
        for promise in self.scheduler._promises.values():
            assert not promise.types & seen, "two jobs were promised the same type"
            seen |= promise.types
            assert promise.time_s >= self.now_s
            assert not self.is_held(promise.job), "nodes are kept for a job that its quota holds back"
        if any(held.until_s <= self.now_s for held in self.running.values()):
            self.promised.clear()  # somebody holds machines for longer than was said: nothing is sure
            return
        for uid, by_s in self.promised.items():
            now_by_s = self.scheduler.explain(uid).start_by_s
            assert now_by_s is not None, "a promise was taken back"
            assert now_by_s <= by_s, "a promise was put off"
            assert self.now_s < by_s, "a promise was not kept"
        ordered = sorted(self.queue.values(), key=lambda one: one.order)
        is_anybody_held = False
        for position, waiting in enumerate(ordered, start=1):
            is_anybody_held = is_anybody_held or self.is_held(waiting)
            explained = self.scheduler.explain(waiting.uid)
            assert explained.position == position
            by_s = explained.start_by_s
            if by_s is not None and not is_anybody_held:  # who is ahead and held by a quota may come free of it
                self.num_promised += waiting.uid not in self.promised
                self.promised[waiting.uid] = by_s

    def _check_who_is_promised(self) -> None:
        """That the first in the queue who waits for nodes is promised a time, and no later one than could be."""
        waiting = [one for one in sorted(self.queue.values(), key=lambda one: one.order) if not self.is_held(one)]
        promises = self.scheduler._promises
        can_run = [one for one in waiting if one.uid in promises or self.scheduler.why_unplaceable(one) is None]
        assert not can_run or can_run[0].uid in promises
        new = [promise for promise in promises.values() if not any(promise is old for old in self.looked_at)]
        self.looked_at = list(promises.values())
        if any(held.until_s <= self.now_s for held in self.running.values()):
            return  # nobody knows when they end
        for promise in new:
            later_s = sorted(
                {held.until_s for held in self.running.values() if self.now_s < held.until_s < promise.time_s}
            )
            for time_s in later_s:
                free = self.free(at_s=time_s)
                assert not surely_fits(promise.job.demands, specs=self.specs, free=free), "it has room sooner"

    def _check_that_nobody_waits_for_nothing(self) -> None:
        """That who waits has no room beside what is kept for others, beyond when they need it."""
        free = self.free()
        names = self.scheduler._nodes.names
        for waiting in self.queue.values():
            if self.is_held(waiting):
                continue
            usable = dict(free)
            for promise in self.scheduler._promises.values():
                if promise.order < waiting.order and promise.time_s < self.now_s + waiting.hold_s:
                    for name, spare in promise.spare.items():
                        usable[name] = {
                            kind: min(free[name][kind], most) for kind, most in zip(names, spare, strict=True)
                        }
            assert not surely_fits(waiting.demands, specs=self.specs, free=usable), f"{waiting.uid} waits for nothing"

    def check_no_trace(self) -> None:
        """That nothing is left of jobs when none waits or runs."""
        assert not self.queue
        assert not self.running
        assert all(found.free == found.total and not found.claim for found in self.scheduler._nodes)
        kept = {
            name: value for name, value in vars(self.scheduler).items() if name not in {"_nodes", "_quotas", "_running"}
        }
        assert not {name: value for name, value in kept.items() if value}
        holdings = self.scheduler._running
        assert not holdings.uids
        assert not holdings._absent
        assert not any(holdings._ends.values())
        assert not self.scheduler._queue.shapes
        assert not self.scheduler._quotas._usage
