"""The provisioner: requests machines that jobs wait for, releases unused ones, and keeps the ledger.

It decides in the controller's pass, and records each decision before it acts on it. Its own threads call the provider,
which may be slow. Requests are idempotent: two requests for a machine of one name create one machine.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, final

from lockstep.clusters import AbstractCluster
from lockstep.clusters.machines import Provisioning
from lockstep.errors import EngineError, LockstepError, counted
from lockstep.jobs.input.gangs import Gang
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import NodeRecord, NodeRequest, NodeState, Observation, StockOut, plan, stock_outs
from lockstep.jobs.scheduling import NodeSpec
from lockstep.service.problems import Part, Problems
from lockstep.service.store import NodeStore

LOGGER: Final = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 1.0
"""The pause between two refreshes of the provider's machines."""

NUM_THREADS: Final = 16
"""The maximum number of concurrent requests to the provider."""

RELEASE_TIMEOUT_S: Final = 120.0
RELEASE_PAUSE_S: Final = 0.5


@final
class Provisioner:
    """Requests and releases the machines of a cluster.

    Args:
        store: the ledger.
        cluster: the engine.
        provisioning: the definition of the cluster's node types, and the provider of its machines.
        catalogue: the catalogue of machines.
        problems: receives the problems of the provider.
        clock: the clock, in seconds since 1970 UTC.

    Attributes:
        definition: the definition of the cluster's node types.
    """

    def __init__(
        self,
        *,
        store: NodeStore,
        cluster: AbstractCluster,
        provisioning: Provisioning,
        catalogue: Catalogue,
        problems: Problems,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self.definition = provisioning.definition
        self._machines = provisioning.machines
        self._catalogue = catalogue
        self._problems = problems
        self._clock = clock
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="provider")
        self._requests: dict[str, Future[None]] = {}
        self._refused: dict[str, str] = {}
        self._created: set[str] = set()
        self._unreleasable: dict[str, str] = {}
        self._requesting: set[str] = set()
        self._lock = threading.Lock()
        self._observation: Observation | None = None

    def run(self, stop: threading.Event) -> None:
        """Refreshes periodically until `stop` is set."""
        while not stop.wait(REFRESH_INTERVAL_S):
            try:
                self.refresh()
            except Exception:  # no machine is requested or released without refreshes: nothing may end the loop
                LOGGER.exception("refreshing the machines failed")
        self._threads.shutdown(wait=False, cancel_futures=True)

    def refresh(self) -> None:
        """Reads the provider's machines and the engine's nodes once. Failures are noted or logged, and tried again."""
        time_s = self._clock()
        with self._lock:
            # Read before the provider's machines: a refused machine that was created anyway is then in the listing, and
            # the absence of a machine whose request is still pending is not mistaken for its loss.
            refused, asking = dict(self._refused), frozenset(self._requesting)
        try:
            machines = self._machines.names()
        except Exception as error:  # a provider's client may raise anything, and is called again
            self._problems.note(Part.MACHINES, f"the provider of machines does not answer: {error}")
            return
        self._report_unreleasable(machines)
        joined: frozenset[str] | None = None
        try:
            joined = frozenset(node.name for node in self._cluster.nodes())
        except EngineError as error:
            LOGGER.info("nodes cannot be seen: %s", error)
        with self._lock:
            self._observation = Observation(
                time_s=time_s,
                machines=machines,
                joined=joined,
                refused=refused,
                explanations={name: self._machines.words(name) for name in machines},
                unanswered=asking,
            )

    def step(self, held: Mapping[str, str]) -> None:
        """Decides by the last refresh, records the decisions, and starts the requests to the provider.

        Args:
            held: the slots that jobs hold, each with the uid of the job.
        """
        with self._lock:
            observation = self._observation
        if observation is None:
            return
        now_s = self._clock()
        decided = plan(self.nodes(), definition=self.definition, held=held, observation=observation, now_s=now_s)
        asked = [self._new(request, now_s=now_s) for request in decided.requests]
        self._store.record(asked=asked, marks=decided.record_changes)
        with self._lock:
            for record_change in decided.record_changes:
                if record_change.changes.get("failed_time_s") is not None:
                    LOGGER.warning("node %s: %s", record_change.name, record_change.changes["reason"])
                    self._refused.pop(record_change.name, None)
        nodes = self.nodes()
        self._drop_results({node.name for node in nodes if node.state is not NodeState.DOWN})
        for node in nodes:
            if node.state is NodeState.ASKED and not self._has_answer(node.name):
                self._start_request(node.name, lambda node=node: self._create(node))
            elif node.state is NodeState.RELEASED:
                self._start_request(node.name, lambda name=node.name: self._remove(name))
        for name in decided.strays:
            if self._start_request(name, lambda name=name: self._remove(name)):
                LOGGER.warning("machine %s is not in the ledger and is removed", name)

    def nodes(self) -> list[NodeRecord]:
        """Returns the nodes that are not down, and those that failed so recently that their types are stocked out."""
        return self._store.current(failed_since_s=self._clock() - self.definition.retry_after_s)

    def specs(self) -> tuple[NodeSpec, ...]:
        """Returns every slot of the node types, as a node of the scheduler."""
        return self.definition.specs(self._catalogue, up=frozenset(self.ready()))

    def ready(self) -> dict[str, str]:
        """Returns the slots whose nodes are ready, each with the name of its machine."""
        return {node.slot: node.name for node in self.nodes() if node.state is NodeState.READY}

    def describe_missing(self, slots: Sequence[str]) -> str | None:
        """Describes the machines of some slots that are not ready yet.

        Args:
            slots: the slots; several replicas may share one.

        Returns:
            A text such as "2 of 6 machines are ready; 4 x n1-standard-4 pending"; None if all machines are ready.
        """
        wanted = dict.fromkeys(slots)
        ready = self.ready().keys() & wanted.keys()
        if len(ready) == len(wanted):
            return None
        kinds = dict(self.definition.slots())
        missing = Counter(kinds[slot] for slot in wanted if slot not in ready)
        to_come = ", ".join(
            f"{count} x {self.definition.node_types[kind].describe(self._catalogue)}" for kind, count in missing.items()
        )
        return f"{len(ready)} of {len(wanted)} machines are ready; {to_come} pending"

    def stock_outs(self) -> dict[str, StockOut]:
        """Returns the stock-outs, by node type."""
        return stock_outs(self.nodes(), definition=self.definition, now_s=self._clock())

    def failures(self, slots: Sequence[str], *, since_s: float) -> list[str]:
        """Describes the nodes of some slots that have failed since a time without ever being ready, with the reasons.

        Args:
            slots: the slots.
            since_s: the time, in seconds since 1970 UTC.
        """
        wanted = set(slots)
        return [
            f"{node.node_type}: {node.reason}"
            for node in self.nodes()
            if node.has_never_served and node.slot in wanted and (node.failed_time_s or 0.0) >= since_s
        ]

    def node_types(self, gang: Gang, *, region: str | None) -> list[tuple[str, ...]]:
        """Returns the node types that each replica of a gang may use; empty if the cluster has no such machine."""
        return [
            self.definition.types_for(
                replica.machine_type, accelerator=replica.accelerator, region=region, catalogue=self._catalogue
            )
            for replica in gang
        ]

    def was_preempted(self, machine: str) -> bool:
        """Returns whether a spot machine has been lost: it failed, or the provider does not have it any more."""
        node = next((node for node in self.nodes() if node.name == machine), None)
        if node is None or not self.definition.node_types[node.node_type].spot:
            return False
        if node.failed_time_s is not None:
            return True
        try:
            return machine not in self._machines.names()
        except EngineError:
            return False

    def _new(self, request: NodeRequest, *, now_s: float) -> NodeRecord:
        name = f"{self.definition.name}-{request.slot}-{secrets.token_hex(3)}"
        kind = self.definition.node_types[request.node_type]
        price = kind.price(self._catalogue)  # recorded now, since the definition may change later
        return NodeRecord(
            name=name,
            slot=request.slot,
            node_type=request.node_type,
            asked_for=request.asked_for,
            asked_time_s=now_s,
            machine=kind.describe(self._catalogue),
            usd_per_hour=price.usd_per_hour,
            price_source=price.source,
            simulated=self._cluster.simulates_machines,
        )

    def _create(self, node: NodeRecord) -> None:
        with self._lock:
            self._requesting.add(node.name)
        try:
            self._machines.create(node.name, node_type=node.node_type)
        except Exception as error:  # a provider's client may raise anything; the ledger records it as the reason
            reason = str(error) if isinstance(error, LockstepError) else f"{type(error).__name__}: {error}"
            with self._lock:
                self._refused[node.name] = reason
                self._requesting.discard(node.name)
        else:
            with self._lock:
                self._created.add(node.name)
                self._requesting.discard(node.name)

    def _has_answer(self, name: str) -> bool:
        """Whether the provider has answered the request for a machine."""
        with self._lock:
            return name in self._created or name in self._refused

    def _remove(self, name: str) -> None:
        try:
            self._machines.remove(name)
        except Exception as error:  # a provider's client may raise anything, and is called again
            with self._lock:
                self._unreleasable[name] = str(error)
        else:
            with self._lock:
                self._unreleasable.pop(name, None)

    def _report_unreleasable(self, machines: frozenset[str]) -> None:
        """Notes a problem while the provider still has a machine that it failed to release."""
        with self._lock:
            self._unreleasable = {name: why for name, why in self._unreleasable.items() if name in machines}
            unreleasable = dict(self._unreleasable)
        if unreleasable:
            name, why = next(iter(unreleasable.items()))
            more = f" (and {len(unreleasable) - 1} more)" if len(unreleasable) > 1 else ""
            self._problems.note(Part.MACHINES, f"machine {name} cannot be released{more}: {why}")
        else:
            self._problems.clear(Part.MACHINES)

    def _drop_results(self, known: set[str]) -> None:
        """Forgets the results of requests for machines that are gone."""
        with self._lock:
            self._created &= known
            self._refused = {name: why for name, why in self._refused.items() if name in known}
        self._requests = {name: made for name, made in self._requests.items() if name in known or not made.done()}

    def _start_request(self, name: str, act: Callable[[], None]) -> bool:
        """Starts a request in a thread. Returns False and starts none if one for the same machine is still running."""
        pending = self._requests.get(name)
        if pending is not None and not pending.done():
            return False
        self._requests[name] = self._threads.submit(act)
        return True


def release_all(store: NodeStore, provisioning: Provisioning, *, is_own: bool, progress: Callable[[str], None]) -> None:
    """Releases every machine of a cluster, at the end of its service.

    Args:
        store: the ledger.
        provisioning: the cluster's definition and provider.
        is_own: whether the ledger belongs to this service. If it belongs to another service by now, the ledger is not
            changed, and the machines that are up according to it stay.
        progress: called with a line of text for each action.

    Raises:
        EngineError: If the provider does not answer, or still has machines after `RELEASE_TIMEOUT_S`.
    """
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    now_s = time.time()
    others: set[str] = set()
    for node in store.current(failed_since_s=now_s):
        if not is_own:
            others.add(node.name)
        elif node.released_time_s is None:
            store.mark(node.name, released_time_s=now_s, reason="the service was ended")
    num_said = 0
    there = provisioning.machines.names()
    while names := provisioning.machines.names() - others:
        if len(names) != num_said:
            num_said = len(names)
            progress(f"releasing {counted(num_said, 'machine')}")
        if time.monotonic() > deadline:
            raise EngineError(
                f"the provider still has {', '.join(sorted(names))}", action="delete them at the provider"
            )
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(provisioning.machines.remove, sorted(names)))
        time.sleep(RELEASE_PAUSE_S)
    for node in store.current(failed_since_s=time.time()) if is_own else ():
        now_s = time.time()
        store.mark(node.name, down_time_s=now_s if node.name in there else node.gone_since_s(now_s))
