"""Decides which queued jobs start now, and explains what the others wait for.

Jobs with a higher priority come first; jobs with the same priority are served in the order of their creation. A job
that finds no room gets a promise of a time (see `lockstep.jobs.scheduling.promises`). Jobs behind it start before it
only if they cannot delay it. Jobs that could use none of its nodes are not restricted, and the first of them that finds
no room gets its own promise. A job that its project's quota holds back delays nobody.

The scheduler is updated with each event rather than with the whole state, so a decision over 10,000 nodes and a long
queue considers only what has changed. It reads no clock and has no effects: the caller places the gangs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, final

from lockstep.errors import ConflictError, NotFoundError
from lockstep.jobs.parsing.fields import FOREVER_S
from lockstep.jobs.scheduling.decisions import Decisions, Refusal, Start, Waiting
from lockstep.jobs.scheduling.demands import Demand, NodeSpec, QueuedJob
from lockstep.jobs.scheduling.fitting import must_respect, take_room
from lockstep.jobs.scheduling.holdings import Holdings
from lockstep.jobs.scheduling.nodes import Allocation, Node, Nodes, minus
from lockstep.jobs.scheduling.promises import PlacedDemand, Promise, make_promise, place
from lockstep.jobs.scheduling.queue import Queue, Shape
from lockstep.jobs.scheduling.quotas import ProjectUse, Quota, Quotas

REFRESH_S: Final = 30.0
REFRESH_SHARE: Final = 1 / 64
"""The age at which a promise is reviewed, because jobs that ended early may have brought it nearer.

It is this fraction of the time that is left until the promised time, but at least `REFRESH_S`.
"""


class _Verdict(Enum):
    """The result of considering a job."""

    STARTS = auto()
    NO_ROOM = auto()
    """There is no room for any job of the same shape."""
    KEPT = auto()
    """The room is promised to another job before this job would end. A job that ends sooner may still get it."""
    QUOTA = auto()


@final
class Scheduler:
    """Keeps the queue, the nodes and the promises, and decides which jobs start.

    It is not thread-safe. The same calls in the same order give the same decisions.

    Args:
        accelerators: the names of the nodes' accelerators, the scarcest first. Replicas that do not need a node's
            accelerators go to other nodes, as long as there are any.
        others: the names of the nodes' other resources that count, such as vCPUs and memory.
        quotas: the limits by project; a project without an entry has none.
    """

    def __init__(
        self, *, accelerators: Sequence[str], others: Sequence[str], quotas: Mapping[str, Quota] | None = None
    ) -> None:
        self._nodes = Nodes((*accelerators, *others), num_accelerators=len(accelerators))
        self._quotas = Quotas(quotas or {})
        self._queue = Queue(self._quotas)
        self._running = Holdings(self._nodes)
        self._promises: dict[str, Promise] = {}
        self._changed_types: set[str] = set()
        self._changed_shapes: dict[tuple[Demand, ...], None] = {}
        self._held_by_quota: dict[str, dict[tuple[Demand, ...], None]] = {}
        self._needs_are_stale = False

    @property
    def num_queued(self) -> int:
        """The number of queued jobs."""
        return len(self._queue)

    @property
    def queued(self) -> Collection[str]:
        """The uids of the queued jobs."""
        return self._queue.uids

    @property
    def running(self) -> Collection[str]:
        """The uids of the jobs that hold machines."""
        return self._running.uids

    def add_node(self, spec: NodeSpec) -> None:
        """Adds a node. It is free, except for what jobs still hold of an earlier node of the same name.

        Raises:
            ConfigError: If the node has a resource that is not one of those that count.
            ConflictError: If there is already a node with this name.
        """
        self._needs_are_stale |= self._nodes.add(spec)
        self._changed_types.add(spec.node_type)
        self._running.add_node(spec.name, node_type=spec.node_type)

    def remove_node(self, name: str) -> None:
        """Removes a node. Jobs that hold a part of it stay until `end` removes them."""
        node = self._known_node(name)
        if node.claim:
            self._revoke_promise(self._promises[node.claim])
        self._needs_are_stale |= self._nodes.remove(name)
        self._changed_types.add(node.spec.node_type)
        self._running.remove_node(name, node_type=node.spec.node_type)

    def replace_node(self, spec: NodeSpec) -> None:
        """Replaces the specification of a node: whether it is up, and its size.

        Raises:
            ConfigError: If the node has a resource that is not one of those that count.
            NotFoundError: If there is no node with this name.
        """
        known = self._known_node(spec.name).spec
        if (known.node_type, dict(known.resources)) == (spec.node_type, dict(spec.resources)):
            self._nodes.replace_spec(spec)
        else:
            self._nodes.vector(spec.resources.items())  # raises before anything is changed
            self.remove_node(spec.name)
            self.add_node(spec)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replaces the limits of all projects."""
        self._quotas.replace_limits(quotas)
        for project in list(self._held_by_quota):
            self._retry(project)
        self._queue.regroup()
        for project in {promise.job.project: None for promise in self._promises.values()}:
            self._revoke_blocked_promises(project)

    def hold_projects(self, reasons: Mapping[str, str]) -> None:
        """Replaces the list of projects that may currently start no jobs.

        Args:
            reasons: the reason for each project; each of them must have a quota, even if it has no limits.
        """
        before = self._quotas.held.keys()
        self._quotas.replace_held(reasons)
        for project in before - reasons.keys():
            self._retry(project)
        for project in reasons.keys() - before:
            self._revoke_blocked_promises(project)

    def enqueue(self, job: QueuedJob) -> None:
        """Adds a job to the queue.

        Raises:
            ConfigError: If the job needs a resource that no node has.
            ConflictError: If the job is already queued or running.
        """
        if job.uid in self._queue or job.uid in self._running:
            raise ConflictError(f"job {job.name} is already queued or running")
        shape = self._queue.shapes.get(job.demands)
        self._queue.add(job, needs=self._needs(job.demands) if shape is None else shape.needs)
        self._changed_shapes[job.demands] = None

    def withdraw(self, uid: str) -> None:
        """Removes a job from the queue."""
        job = self._queue[uid]
        self._unqueue(job)
        promise = self._promises.get(uid)
        if promise is not None:
            self._revoke_promise(promise)

    def add_running(self, job: QueuedJob, *, nodes: Sequence[str], until_s: float) -> None:
        """Adds a job that is running already, because an earlier scheduler started it.

        If a node has shrunk since, jobs may hold more of it than it has. Nothing is placed there until they have ended.

        Args:
            job: the job.
            nodes: the node of each replica, as in `Start`. Parts of nodes that are gone are held as soon as the nodes
                are back.
            until_s: the latest time when it releases its machines, in seconds since 1970 UTC. If that is unknown, it is
                infinite, and no promise relies on it.

        Raises:
            ConflictError: If the job is already queued or running.
        """
        if job.uid in self._queue or job.uid in self._running:
            raise ConflictError(f"job {job.name} is already queued or running")
        positions = [position for position, demand in enumerate(job.demands) for _ in range(demand.count)]
        amounts = [self._nodes.vector(demand.resources) for demand in job.demands]
        allocations = tuple(
            Allocation(name, position, 1, amounts[position]) for name, position in zip(nodes, positions, strict=True)
        )
        present = [allocation for allocation in allocations if allocation.node in self._nodes]
        for uid in {self._nodes[allocation.node].claim: None for allocation in present}:
            if uid:  # the promised part of the node may be gone
                self._revoke_promise(self._promises[uid])
        self._nodes.take(present)
        self._hold(job, allocations=allocations, until_s=until_s)

    def end(self, uid: str) -> None:
        """Removes a running job that has released its machines."""
        held = self._running.remove(uid)
        self._quotas.release(held.job)
        self._changed_types |= held.types
        self._retry(held.job.project)

    def why_unplaceable(self, job: QueuedJob) -> str | None:
        """Returns why a job could not run even if it were alone; None if it could.

        For a large gang with several demands, the answer may be wrong, because not all placements are tried.

        Raises:
            ConfigError: If the job needs a resource that no node has.
        """
        refused = self._quotas.why_impossible(job)
        if refused is not None:
            return refused
        needs = self._needs(job.demands)
        for need in needs:
            most = self._nodes.max_replicas(need.types, need.amount)
            if most < need.number:
                name = job.demands[need.position].name
                return f"{need.number} {name} asked for: the cluster's maximum is {most}"
        if len(needs) > 1 and place(needs, nodes=self._nodes.without_allocations()) is None:
            return "each part of the gang fits, but not all of them at once"
        return None

    def decide(self, *, now_s: float) -> Decisions:
        """Decides which jobs start now, and counts them as running from then on.

        Args:
            now_s: the current time, in seconds since 1970 UTC; never less than in the previous call.
        """
        self._renew_needs()
        self._review_promises(now_s)
        starts: list[Start] = []
        refusals: dict[str, Refusal] = {}
        while self._changed_types or self._changed_shapes:
            self._pass(self._pop_changed_shapes(), now_s=now_s, starts=starts, refusals=refusals)
        return Decisions(starts=tuple(starts), refusals=tuple(refusals.values()))

    def explain(self, uid: str) -> Waiting:
        """Returns a job's position in the queue, and what it waits for.

        Raises:
            NotFoundError: If the job is not in the queue.
        """
        if uid not in self._queue:
            raise NotFoundError(f"no job {uid} waits")
        job = self._queue[uid]
        self._renew_needs()
        promise = self._promises.get(uid)
        if promise is not None and (promise.time_s >= FOREVER_S or not self._is_firm(promise)):
            promise = None
        return Waiting(
            position=self._queue.position(job),
            reason=self._reason(job),
            start_by_s=None if promise is None else promise.time_s,
        )

    def look(self, *, first: int, limit: int) -> tuple[list[QueuedJob], dict[str, ProjectUse]]:
        """Returns up to `limit` queued jobs in order, from a position that counts from 0, and what projects use."""
        return self._queue.page(first, limit=limit), self._quotas.uses()

    def _pass(self, shapes: list[Shape], *, now_s: float, starts: list[Start], refusals: dict[str, Refusal]) -> None:
        """Considers the jobs of some shapes, in the order of the queue."""
        groups = [
            (group[0], position, group) for position, shape in enumerate(shapes) for group in shape.groups.values()
        ]
        heapq.heapify(groups)
        # For each shape, the hold time from which jobs are refused: a job that would not end sooner has no better
        # chance.
        refused_from_s: dict[int, float] = {}
        while groups:
            order, position, group = heapq.heappop(groups)
            job = self._queue[order[2]]
            if job.hold_s >= refused_from_s.get(position, math.inf):
                continue
            verdict = self._consider(job, shapes[position], now_s=now_s, starts=starts)
            if verdict is _Verdict.STARTS:
                refusals.pop(job.uid, None)  # refused before another job's promise was revoked
                if group:
                    heapq.heappush(groups, (group[0], position, group))
                continue
            refusals[job.uid] = Refusal(uid=job.uid, reason=self._reason(job))
            if verdict is not _Verdict.QUOTA:
                refused_from_s[position] = 0.0 if verdict is _Verdict.NO_ROOM else job.hold_s
                self._promise(job, shapes[position], now_s=now_s)

    def _consider(self, job: QueuedJob, shape: Shape, *, now_s: float, starts: list[Start]) -> _Verdict:
        if self._why_blocked(job) is not None:
            self._held_by_quota.setdefault(job.project, {})[job.demands] = None
            return _Verdict.QUOTA
        if any(self._nodes.room(need.types, need.amount) < need.number for need in shape.needs):
            return _Verdict.NO_ROOM
        until_s = now_s + job.hold_s
        allocations, is_limited = take_room(
            job, shape.needs, until_s=until_s, nodes=self._nodes, promises=self._promises
        )
        if allocations is None:
            return _Verdict.KEPT if is_limited else _Verdict.NO_ROOM
        self._update_promises_after(job, allocations, until_s=until_s)
        self._unqueue(job)
        self._hold(job, allocations=allocations, until_s=until_s)
        ordered = sorted(allocations, key=lambda allocation: allocation.demand)
        starts.append(Start(job=job, nodes=tuple(s.node for s in ordered for _ in range(s.number))))
        return _Verdict.STARTS

    def _update_promises_after(self, job: QueuedJob, allocations: Iterable[Allocation], *, until_s: float) -> None:
        """Updates the promises after a gang was placed."""
        own = self._promises.get(job.uid)
        if own is not None:
            self._revoke_promise(own)
        broken: dict[str, Promise] = {}
        for allocation in allocations:
            node = self._nodes[allocation.node]
            if not node.claim:
                continue
            promise = self._promises[node.claim]
            if must_respect(promise, job, until_s=until_s):
                promise.spare[allocation.node] = minus(
                    promise.spare[allocation.node], allocation.amount, count=allocation.number
                )
            elif promise.order > job.order and until_s > promise.time_s:
                broken[promise.job.uid] = promise  # a job ahead may take it; a new promise follows
        for promise in broken.values():
            self._revoke_promise(promise)

    def _promise(self, job: QueuedJob, shape: Shape, *, now_s: float) -> None:
        """Makes a promise to a job without room, unless a job ahead of it has a promise of such nodes."""
        if job.uid in self._promises:
            return
        types = shape.types
        rivals = [promise for promise in self._promises.values() if promise.types & types]
        if any(promise.order < job.order for promise in rivals):
            return
        promise = self._make_promise(job, shape, now_s=now_s)
        if promise is None:
            return
        for rival in rivals:
            self._revoke_promise(rival)
        self._record_promise(promise)
        if promise.time_s <= now_s:  # it fits as promised, though not as tried
            self._changed_shapes[job.demands] = None

    def _record_promise(self, promise: Promise) -> None:
        self._promises[promise.job.uid] = promise
        for name in promise.spare:
            self._nodes.claim(name, promise.job.uid)
        self._revoke_blocked_promises(promise.job.project)

    def _revoke_promise(self, promise: Promise) -> None:
        """Revokes a promise; jobs that might use its nodes are considered again."""
        del self._promises[promise.job.uid]
        for name in promise.spare:
            if name in self._nodes:
                self._nodes.claim(name, "")
        self._changed_types |= promise.types
        self._retry(promise.job.project)

    def _revoke_blocked_promises(self, project: str) -> None:
        """Revokes the promises to jobs that their project's quota now holds back, because such jobs delay nobody."""
        if project in self._quotas:
            for promise in [found for found in self._promises.values() if found.job.project == project]:
                if self._why_blocked(promise.job) is not None:
                    self._revoke_promise(promise)

    def _is_firm(self, promise: Promise) -> bool:
        """Returns whether no queued job ahead of a promised job may take its promised nodes, or its project's quota.

        Such jobs wait for another job's promise. A job that its own quota holds back does not count.
        """
        project = promise.job.project if promise.job.project in self._quotas else None
        for shape in self._queue.shapes.values():
            is_rival = bool(shape.types & promise.types)
            for group in shape.groups.values():
                if group[0] < promise.order:
                    first = self._queue[group[0][2]]
                    if (is_rival or first.project == project) and self._why_blocked(first) is None:
                        return False
        return True

    def _review_promises(self, now_s: float) -> None:
        for promise in list(self._promises.values()):
            if promise.time_s < now_s:  # a job held machines for longer than stated
                self._revoke_promise(promise)
                later = self._remake_promise(promise, now_s=now_s)
                if later is not None:
                    self._record_promise(later)
            elif promise.made_time_s + self._refresh_s(promise, now_s=now_s) <= now_s:
                sooner = self._remake_promise(promise, now_s=now_s)
                promise.made_time_s = now_s
                if sooner is not None and sooner.time_s < promise.time_s:
                    self._revoke_promise(promise)
                    self._record_promise(sooner)

    @staticmethod
    def _refresh_s(promise: Promise, *, now_s: float) -> float:
        left_s = promise.time_s - now_s
        return max(REFRESH_S, REFRESH_SHARE * left_s) if math.isfinite(left_s) else REFRESH_S

    def _remake_promise(self, promise: Promise, *, now_s: float) -> Promise | None:
        return self._make_promise(promise.job, self._queue.shapes[promise.job.demands], now_s=now_s)

    def _make_promise(self, job: QueuedJob, shape: Shape, *, now_s: float) -> Promise | None:
        types = shape.types
        return make_promise(
            job,
            needs=shape.needs,
            types=types,
            nodes=self._nodes,
            releases=self._running.releases(types, now_s=now_s),
            now_s=now_s,
        )

    def _pop_changed_shapes(self) -> list[Shape]:
        """Returns the shapes whose jobs may have better prospects than when they were last considered."""
        types, named = self._changed_types, self._changed_shapes
        self._changed_types, self._changed_shapes = set(), {}
        found: list[Shape] = []
        for demands, shape in self._queue.shapes.items():
            if demands in named or any(need.types & types for need in shape.needs):
                found.append(shape)
        return found

    def _needs(self, demands: tuple[Demand, ...]) -> tuple[PlacedDemand, ...]:
        amounts = [self._nodes.vector(demand.resources) for demand in demands]
        found = [
            PlacedDemand(demand.count, amount, self._nodes.types(demand, amount), position)
            for position, (demand, amount) in enumerate(zip(demands, amounts, strict=True))
        ]
        # The largest first: the small ones use what is left.
        return tuple(sorted(found, key=lambda need: need.amount, reverse=True))

    def _renew_needs(self) -> None:
        """Recomputes where jobs may go, if nodes of a new type or size appeared or the last of one disappeared.

        Promises to jobs that may go elsewhere now are revoked; new ones follow.
        """
        if not self._needs_are_stale:
            return
        self._needs_are_stale = False
        for demands, shape in self._queue.shapes.items():
            before, shape.needs = shape.needs, self._needs(demands)
            if shape.needs != before:
                self._changed_shapes[demands] = None
                for promise in [found for found in self._promises.values() if found.job.demands == demands]:
                    self._revoke_promise(promise)

    def _hold(self, job: QueuedJob, *, allocations: tuple[Allocation, ...], until_s: float) -> None:
        self._running.add(job, allocations=allocations, until_s=until_s)
        self._quotas.hold(job)
        self._revoke_blocked_promises(job.project)

    def _unqueue(self, job: QueuedJob) -> None:
        self._queue.remove(job)
        if job.demands not in self._queue.shapes:
            for project in [name for name, held in self._held_by_quota.items() if job.demands in held]:
                del self._held_by_quota[project][job.demands]
                if not self._held_by_quota[project]:
                    del self._held_by_quota[project]

    def _retry(self, project: str) -> None:
        for demands in self._held_by_quota.pop(project, {}):
            if demands in self._queue.shapes:
                self._changed_shapes[demands] = None

    def _known_node(self, name: str) -> Node:
        if name not in self._nodes:
            raise NotFoundError(f"no node {name!r} is known")
        return self._nodes[name]

    def _why_blocked(self, job: QueuedJob) -> str | None:
        """Returns why a job's quota holds it back; None if it does not."""
        if job.project not in self._quotas:
            return None
        ahead = [promise.job for promise in self._promises.values() if promise.order < job.order]
        return self._quotas.why_blocked(job, promised=ahead)

    def _reason(self, job: QueuedJob) -> str:
        blocked = self._why_blocked(job)
        if blocked is not None:
            return blocked
        shape = self._queue.shapes[job.demands]
        for need in shape.needs:
            room = self._nodes.room(need.types, need.amount)
            if room < need.number:
                name = job.demands[need.position].name
                most = self._nodes.max_replicas(need.types, need.amount)
                if most < need.number:
                    return f"{room} of {need.number} {name}: the cluster's maximum is {most}"
                return f"{room} of {need.number} {name} are free"
        for promise in self._promises.values():
            if promise.types & shape.types and promise.order < job.order:
                ahead = f"job {promise.job.name}" if promise.job.project == job.project else "a job of another project"
                return f"the machines are kept for {ahead}, which is ahead of it"
        if job.demands in self._changed_shapes or shape.types & self._changed_types:
            return "its machines are free: it is considered next"
        return "each part of the gang fits, but not all of them at once"
