"""A fake cluster engine without programs: gangs follow a script, and live in files that outlive the service.

It is for tests that kill the service many times, for which real programs would be too slow. For placing, stopping and
forgetting, it has the behaviour that `lockstep.clusters.AbstractCluster` requires.
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
from lockstep.clusters.base import not_running
from lockstep.errors import UnavailableError
from lockstep.heartbeat import ProfileRequest
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
"""The start time of a job's first program, in seconds since 1970 UTC."""
BETWEEN_STARTS_S: Final = 5_000.0
RUN_S: Final = 3_600.0
"""The duration of every program, in seconds."""
_GENERATIONS: Final = "generations"
"""The file with the latest generation of each owner. It has no suffix, so it is not taken for a gang's."""


@final
class AttemptScript(StrEnum):
    """What happens to one attempt of a job. Each observation finds it one stage further: placing, running, ended."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    """With exit code 3."""
    KILLED = "killed"
    """Its programs are killed, as by somebody on the node."""
    LOST = "lost"
    """The engine loses it, after two observations that found it running, so that one lost answer cannot hide this."""
    RELAUNCHES = "relaunches"
    """It succeeds. Its first replica was launched again alone before the first of two observations as running."""
    RUNS = "runs"
    """Until it is stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a gang's programs.

    Attributes:
        gang_id: the id of the gang.
        alive_gangs: the gangs of the same job that were alive at that time.
    """

    gang_id: str
    alive_gangs: tuple[str, ...]


@final
class ScriptedCluster(AbstractCluster):
    """Keeps gangs as files of a folder. Several processes may open the same folder.

    Args:
        folder: the folder.
        script: what happens to the attempts of a job, in order. The last one applies to all further attempts.
        before_act: a function that is called with the name of each call of the engine, before the call is executed.
    """

    def __init__(
        self, folder: Path, *, script: Sequence[AttemptScript], before_act: Callable[[str], None] = lambda _act: None
    ) -> None:
        self._folder = folder
        self._scripts = tuple(script)
        self._before_act = before_act
        folder.mkdir(parents=True, exist_ok=True)

    def starts(self) -> list[Start]:
        """Returns every start of programs, in order."""
        path = self._folder / "starts"
        if not path.exists():
            return []
        documents = [json.loads(line) for line in path.read_text().splitlines()]
        return [
            Start(gang_id=document["gang_id"], alive_gangs=tuple(document["alive_gangs"])) for document in documents
        ]

    def living(self) -> list[str]:
        """Returns the ids of the gangs that the engine knows and that have not ended."""
        return [path.stem for path in self._gangs("*") if self._is_living(json.loads(path.read_text()))]

    def held(self) -> list[str]:
        """Returns the ids of the gangs that were not forgotten."""
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
        with self._locked():
            generations = self._generations()
            if generation > generations.get(owner, 0):
                self._save(self._folder / _GENERATIONS, {**generations, owner: generation})

    @override
    def place(self, order: GangOrder) -> None:
        self._before_act("place")
        with self._locked():
            current = self._generations().get(order.owner, 0)
            if order.generation >= current and not (path := self._path(order.gang_id)).exists():
                job, _, _ = order.gang_id.rpartition("-")
                earlier = [json.loads(found.read_text()) for found in self._gangs(f"{job}-*")]
                number = sum(gang["number"] >= 0 for gang in earlier)
                alive_gangs = [gang["order"]["gang_id"] for gang in earlier if self._is_living(gang)]
                with (self._folder / "starts").open("a") as file:
                    file.write(json.dumps({"gang_id": order.gang_id, "alive_gangs": alive_gangs}) + "\n")
                document = GANG_ORDER.dump_python(order, mode="json")
                gang = {"order": document, "number": number, "looks": 0, "stopped": False, "forgotten": False}
                self._save(path, gang)

    @override
    def observe(self, gang_id: str) -> GangStatus | None:
        self._before_act("observe")
        with self._locked():
            gang = self._load(gang_id)
            if gang is None:
                return None
            if not self._is_over(gang):
                gang["looks"] += 1
                self._save(self._path(gang_id), gang)
            script = self._script_of(gang)
            if self._is_over(gang) and script is AttemptScript.LOST:
                return None
            return self._status(gang, script)

    @override
    def move(self, gang_id: str, *, replica: str, machine: str) -> None:
        self._before_act("move")  # replicas here never wait for a machine

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
    def request_profile(self, gang_id: str, *, replica: str, request: ProfileRequest) -> None:
        raise not_running(replica)

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

    def _generations(self) -> dict[str, int]:
        path = self._folder / _GENERATIONS
        return json.loads(path.read_text()) if path.exists() else {}

    def _script_of(self, gang: Mapping[str, Any]) -> AttemptScript:
        return self._scripts[min(gang["number"], len(self._scripts) - 1)]

    def _is_over(self, gang: Mapping[str, Any]) -> bool:
        script = self._script_of(gang)
        if gang["stopped"]:
            return gang["looks"] >= 2
        return script is not AttemptScript.RUNS and gang["looks"] >= (
            4 if script in (AttemptScript.LOST, AttemptScript.RELAUNCHES) else 3
        )

    def _is_living(self, gang: Mapping[str, Any]) -> bool:
        return not gang["forgotten"] and not self._is_over(gang)

    def _status(self, gang: Mapping[str, Any], script: AttemptScript) -> GangStatus:
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
        if script is AttemptScript.RELAUNCHES:
            restart = ReplicaRestart(number=1, time_s=started_s, reason="MACHINE_ERROR(SIGKILL, worker-0)")
            running[0] = replace(running[0], restarts=(restart,))
        if not self._is_over(gang):
            return GangStatus(gang_id=gang_id, phase=GangPhase.RUNNING, replicas=tuple(running))
        end, outcome = _END[AttemptScript.RUNS if gang["stopped"] else script]
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
        with self._locked():
            gang = self._load(gang_id)
            if gang is not None:
                self._save(self._path(gang_id), {**gang, **changes})

    @staticmethod
    def _save(path: Path, document: Mapping[str, Any]) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document))
        partial.replace(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks out other processes within the block. If a process is killed within, the kernel releases its lock."""
        with (self._folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_END: Final[Mapping[AttemptScript, tuple[ProgramEnd, GangOutcome]]] = {
    AttemptScript.SUCCEEDS: (ProgramEnd(exit_code=0), GangOutcome.SUCCEEDED),
    AttemptScript.RELAUNCHES: (ProgramEnd(exit_code=0), GangOutcome.SUCCEEDED),
    AttemptScript.FAILS: (ProgramEnd(exit_code=3), GangOutcome.FAILED),
    AttemptScript.KILLED: (ProgramEnd(signal="SIGKILL", fault=Fault.PROGRAM), GangOutcome.FAILED),
    AttemptScript.RUNS: (ProgramEnd(signal="SIGTERM", stopped=True), GangOutcome.STOPPED),
}
