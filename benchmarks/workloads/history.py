"""A database of many jobs that are over, made by the service's own parts before it starts.

Each job goes through `JobStore` as a real one does: created, placed, started, ended, with its events, its order, what
its replicas reported and its bill; the clock is the history's. One in five has four replicas. The requests, orders,
replicas and bills are what the service itself makes of such jobs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final, final

from sqlalchemy import event

from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.machines.catalogue import Catalogue, load_catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.orders import GANG_ORDER, ProgramEnd, ProgramUsage, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent
from lockstep.service.billing.usages import job_bill
from lockstep.service.control.job_inputs import gang_of
from lockstep.service.control.job_urls import output_urls
from lockstep.service.control.orders import gang_order
from lockstep.service.settings import Settings
from lockstep.service.store import AttemptRecord, JobRecord, JobStore, ReplicaRecord, connect_database, open_database

INTERVAL_S: Final = 240.0
"""From one job to the next."""
RUN_S: Final = 600.0
OWNERS: Final = 20
TEAMS: Final = 5
TAIL: Final = ("Epoch 10/10", "loss: 0.2311 - accuracy: 0.9152", "saved the model")


@final
@dataclass(kw_only=True)
class Clock:
    """The history's own."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


@final
class Machines:
    """As the embedded engine has them: names alone."""

    @property
    def simulates_machines(self) -> bool:
        return True

    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        del accelerator_type, count
        return True


def document(number: int) -> dict[str, Any]:
    """Returns one job's request."""
    workers: dict[str, Any] = {"workerType": "n1-standard-4", "workerCount": "3"} if number % 5 == 0 else {}
    return {
        "jobId": f"{('resnet', 'rnn', 'bert')[number % 3]}_{number:05d}",
        "labels": {"owner": f"user_{number % OWNERS:02d}", "team": f"team_{number % TEAMS}", "run": f"run_{number}"},
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            **workers,
            "pythonModule": "trainer.task",
            "packageUris": [f"/bucket/packages/trainer-{number % 100:040x}.tar.gz"],
            "args": ["--epochs=10", "--batch-size=128", "--learning-rate=0.001", f"--seed={number}"],
            "scheduling": {"maxRunningTime": "86400s"},
        },
    }


@final
class History:
    """Writes jobs into a home's database.

    Args:
        settings: of the service that is to find them.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalogue: Catalogue = load_catalogue()
        self._clock = Clock(now_s=0.0)
        open_database(settings.database_url).dispose()
        self._engine = connect_database(settings.database_url)
        # Nobody minds if a power cut takes it: a flush for each of 50,000 transactions would take longer than all else.
        event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        self._store = JobStore(self._engine, clock=self._clock)

    def write(self, num_jobs: int) -> None:
        """Writes so many jobs, the last of which ended a little while ago."""
        began_s = time.time() - num_jobs * INTERVAL_S - 2 * RUN_S
        for number in range(num_jobs):
            self._clock.now_s = began_s + number * INTERVAL_S
            self._write(number)
        self._engine.dispose()

    def _write(self, number: int) -> None:
        request = parse_job(document(number), source="history")
        asked, clock = request.training_input, self._clock
        job = self._store.create(
            project="local",
            job_id=request.job_id,
            training_input=asked.to_json(),
            labels=request.labels,
            simulated=False,
            outputs=output_urls(request, bucket=self._settings.bucket, project="local"),
        )
        if number % 50 == 49:
            reason = str(EndReason(kind=EndKind.CANCELLED, details=("by home",)))
            self._store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="cancelled by home", end_reason=reason)
            self._store.advance(job.uid, JobEvent.CANCELLED, detail="it had not started", end_time_s=clock())
            return
        gang = gang_of(job, catalogue=self._catalogue)
        order = gang_order(
            job,
            gang=gang,
            nodes=["local"] * len(tuple(gang)),
            settings=self._settings,
            catalogue=self._catalogue,
            cluster=Machines(),
        )
        self._store.advance(
            job.uid,
            JobEvent.PREPARING,
            detail=f"placing {gang.describe()}",
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
            gang_released=False,
        )
        clock.now_s += 2.0
        started_s = clock()
        self._store.advance(
            job.uid,
            JobEvent.STARTED,
            detail="every program has started",
            start_time_s=started_s,
            run_start_time_s=started_s,
        )
        clock.now_s += RUN_S + number % 100
        self._end(replace(job, run_start_time_s=started_s, start_time_s=started_s), number, started_s=started_s)

    def _end(self, job: JobRecord, number: int, *, started_s: float) -> None:
        failed = number % 8 == 7
        gang = gang_of(job, catalogue=self._catalogue)
        end = ProgramEnd(exit_code=1 if failed else 0, tail=TAIL, num_log_entries=500 + number % 100)
        replicas = [
            ReplicaRecord(
                status=ReplicaStatus(
                    name=replica.name,
                    phase=ReplicaPhase.ENDED,
                    host="node-1",
                    pid=1000 + number,
                    placed_time_s=job.create_time_s,
                    started_time_s=started_s,
                    ended_time_s=self._clock(),
                    usage=ProgramUsage(cpu_s=1234.5, wall_s=RUN_S, peak_memory_bytes=2**31),
                    metrics={"cpu": 3.2, "memory_bytes": 2.0**31},
                    end=end,
                ),
                machine_type=replica.machine_type,
                accelerator=replica.accelerator,
            )
            for replica in gang
        ]
        reason = str(EndReason(kind=EndKind.USER_ERROR)) if failed else None
        ended = AttemptRecord(attempt=0, start_time_s=started_s, end_time_s=self._clock(), end_reason=reason)
        charged = job_bill(job, attempts=[ended], catalogue=self._catalogue)
        message = "\n".join(["master-replica-0: exit code 1; its last lines:", *TAIL])
        self._store.advance(
            job.uid,
            JobEvent.FAILED if failed else JobEvent.SUCCEEDED,
            detail=f"{reason}: master-replica-0: exit code 1" if failed else "the program ended with exit code 0",
            ended=ended,
            end_time_s=ended.end_time_s,
            end_reason=reason,
            error_message=message if failed else None,
            bill=charged,
            replicas=replicas,
            gang_released=True,
        )
