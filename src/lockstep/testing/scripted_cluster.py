"""A cluster engine without programs: each gang lives as a script says, in files that outlive whoever placed it.

For tests that kill the service many times over, where real programs would take too long: what it promises of placing,
stopping and forgetting is what `lockstep.clusters.AbstractCluster` says.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, final

from typing_extensions import override

from lockstep.clusters import AbstractCluster, AbstractShell
from lockstep.errors import UnavailableError
from lockstep.jobs.running.orders import (
    GANG_ORDER,
    Fault,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaPhase,
    ReplicaRestart,
    ReplicaStatus,
)
from lockstep.jobs.scheduling import NodeSpec

FIRST_START_S: Final = 1_000.0
"""When the first program of a job starts, seconds since 1970 UTC."""
BETWEEN_STARTS_S: Final = 5_000.0
RUN_S: Final = 3_600.0
"""How long every program runs."""


@final
class Life(StrEnum):
    """What becomes of one start of a job's gang. Each observation finds it a step further: placing, running, over."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    """With exit code 3."""
    KILLED = "killed"
    """Its programs are killed, as somebody on the node may do it."""
    LOST = "lost"
    """The engine does not know it any more; it was seen running twice, so that one death cannot hide that."""
    RELAUNCHES = "relaunches"
    """Its first replica was launched again alone before anybody looked; seen twice, as with `LOST`. It succeeds."""
    RUNS = "runs"
    """Until it is stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class Start:
    """That a gang's programs were started.

    Attributes:
        gang_id: the gang.
        beside: gangs of the same job that lived then.
    """

    gang_id: str
    beside: tuple[str, ...]


@final
class ScriptedCluster(AbstractCluster):
    """Gangs in files of a folder; several processes may open the same one.

    Args:
        folder: where they lie.
        lives: what becomes of the starts of a job's gang, one after the other; the last one stands for all that follow.
        before_act: told of each call that asks something of the engine, before it is done.
    """

    def __init__(
        self, folder: Path, *, lives: Sequence[Life], before_act: Callable[[str], None] = lambda _act: None
    ) -> None:
        self._folder = folder
        self._lives = tuple(lives)
        self._before_act = before_act
        folder.mkdir(parents=True, exist_ok=True)

    def starts(self) -> list[Start]:
        """Returns every start of programs, in order."""
        path = self._folder / "starts"
        if not path.exists():
            return []
        documents = [json.loads(line) for line in path.read_text().splitlines()]
        return [Start(gang_id=document["gang_id"], beside=tuple(document["beside"])) for document in documents]

    def living(self) -> list[str]:
        """Returns the gangs that the engine holds and that are not over."""
        return [path.stem for path in self._gangs("*") if self._is_living(json.loads(path.read_text()))]

    def held(self) -> list[str]:
        """Returns the gangs that the engine holds something for."""
        return [path.stem for path in self._gangs("*") if not json.loads(path.read_text())["forgotten"]]

    @override
    def start(self) -> None:
        self._before_act("start")

    @override
    def describe(self) -> dict[str, str]:
        return {"engine": "scripted (testing)"}

    @property
    @override
    def simulates_machines(self) -> bool:
        return False

    @property
    @override
    def provisioning(self) -> None:
        return None

    @override
    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        return True

    @override
    def nodes(self) -> tuple[NodeSpec, ...]:
        self._before_act("nodes")
        return (NodeSpec(name="local", node_type="local", resources={}),)

    @override
    def in_use(self) -> None:
        return None

    @override
    def fence(self, generation: int, *, owner: str) -> None:
        self._before_act("fence")
        with self._alone():
            path = self._folder / "generation"
            if generation > self._generation():
                path.with_suffix(".partial").write_text(str(generation))
                path.with_suffix(".partial").replace(path)

    @override
    def place(self, order: GangOrder) -> None:
        self._before_act("place")
        with self._alone():
            if order.generation >= self._generation() and not (path := self._path(order.gang_id)).exists():
                job, _, _ = order.gang_id.rpartition("-")
                earlier = [json.loads(found.read_text()) for found in self._gangs(f"{job}-*")]
                number = sum(gang["number"] >= 0 for gang in earlier)
                beside = [gang["order"]["gang_id"] for gang in earlier if self._is_living(gang)]
                with (self._folder / "starts").open("a") as file:
                    file.write(json.dumps({"gang_id": order.gang_id, "beside": beside}) + "\n")
                document = GANG_ORDER.dump_python(order, mode="json")
                gang = {"order": document, "number": number, "looks": 0, "stopped": False, "forgotten": False}
                self._save(path, gang)

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        self._before_act("observe")
        with self._alone():
            gang = self._load(gang_id)
            if gang is None:
                return None
            if not self._is_over(gang):
                gang["looks"] += 1
                self._save(self._path(gang_id), gang)
            life = self._life(gang)
            if self._is_over(gang) and life is Life.LOST:
                return None
            return self._status(gang, life)

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        self._before_act("move")  # no replica of a script waits for a machine

    @override
    def stop(self, gang_id: str) -> None:
        self._before_act("stop")
        self._change(gang_id, {"stopped": True})

    @override
    def collect_leftovers(self, order: GangOrder) -> bool:
        self._before_act("collect_leftovers")
        return True

    @override
    def forget(self, gang_id: str) -> None:
        self._before_act("forget")
        self._change(gang_id, {"forgotten": True})

    @override
    def open_shell(self, gang_id: str, *, replica: str) -> AbstractShell:
        raise UnavailableError(f"replica {replica} of gang {gang_id} does not allow shells: it is in a file")

    @override
    def close(self) -> None:
        pass

    @override
    def shut_down(self) -> None:
        for path in self._gangs("*"):
            self.forget(path.stem)

    def _generation(self) -> int:
        path = self._folder / "generation"
        return int(path.read_text()) if path.exists() else 0

    def _life(self, gang: Mapping[str, Any]) -> Life:
        return self._lives[min(gang["number"], len(self._lives) - 1)]

    def _is_over(self, gang: Mapping[str, Any]) -> bool:
        life = self._life(gang)
        if gang["stopped"]:
            return gang["looks"] >= 2
        return life is not Life.RUNS and gang["looks"] >= (4 if life in (Life.LOST, Life.RELAUNCHES) else 3)

    def _is_living(self, gang: Mapping[str, Any]) -> bool:
        return not gang["forgotten"] and not self._is_over(gang)

    def _status(self, gang: Mapping[str, Any], life: Life) -> GangStatus:
        gang_id = gang["order"]["gang_id"]
        if gang["looks"] < 2:
            return GangStatus(gang_id=gang_id, phase=GangPhase.PLACING)
        started_s = FIRST_START_S + BETWEEN_STARTS_S * gang["number"]
        running = [
            ReplicaStatus(
                name=replica["name"],
                phase=ReplicaPhase.RUNNING,
                host="local",
                placed_time_s=started_s,
                started_time_s=started_s,
            )
            for replica in gang["order"]["replicas"]
        ]
        if life is Life.RELAUNCHES:
            restart = ReplicaRestart(number=1, time_s=started_s, reason="MACHINE_ERROR(SIGKILL, worker-0)")
            running[0] = replace(running[0], restarts=(restart,))
        if not self._is_over(gang):
            return GangStatus(gang_id=gang_id, phase=GangPhase.RUNNING, replicas=tuple(running))
        end, outcome = _END[Life.RUNS if gang["stopped"] else life]
        ended = [
            replace(replica, phase=ReplicaPhase.ENDED, ended_time_s=started_s + RUN_S, end=end) for replica in running
        ]
        culprit = running[0].name if outcome is GangOutcome.FAILED else None
        reason = "" if outcome is GangOutcome.SUCCEEDED else f"replica {running[0].name}: {end.describe()}"
        return GangStatus(
            gang_id=gang_id,
            phase=GangPhase.ENDED,
            replicas=tuple(ended),
            end=GangEnd(outcome=outcome, reason=reason, culprit=culprit),
        )

    def _path(self, gang_id: str) -> Path:
        return self._folder / f"{gang_id}.json"

    def _gangs(self, pattern: str) -> list[Path]:
        return sorted(self._folder.glob(f"{pattern}.json"))

    def _load(self, gang_id: str) -> dict[str, Any] | None:
        path = self._path(gang_id)
        gang = json.loads(path.read_text()) if path.exists() else None
        return None if gang is None or gang["forgotten"] else gang

    def _change(self, gang_id: str, changes: Mapping[str, Any]) -> None:
        with self._alone():
            gang = self._load(gang_id)
            if gang is not None:
                self._save(self._path(gang_id), {**gang, **changes})

    @staticmethod
    def _save(path: Path, gang: Mapping[str, Any]) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(gang))
        partial.replace(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes out; whoever is killed within leaves the lock behind him open."""
        with (self._folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_END: Final[Mapping[Life, tuple[ProgramEnd, GangOutcome]]] = {
    Life.SUCCEEDS: (ProgramEnd(exit_code=0), GangOutcome.SUCCEEDED),
    Life.RELAUNCHES: (ProgramEnd(exit_code=0), GangOutcome.SUCCEEDED),
    Life.FAILS: (ProgramEnd(exit_code=3), GangOutcome.FAILED),
    Life.KILLED: (ProgramEnd(signal="SIGKILL", fault=Fault.PROGRAM), GangOutcome.FAILED),
    Life.RUNS: (ProgramEnd(signal="SIGTERM", stopped=True), GangOutcome.STOPPED),
}
