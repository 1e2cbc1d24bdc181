"""A database of many jobs that are over, made by the service's own parts before it starts.

Each job goes through `JobStore` as a real one does: created, placed, started, ended, with its events, its order, what
its replicas reported and its bill; the clock is the history's. One in five has four replicas. The requests, orders,
replicas and bills are what the service itself makes of such jobs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from sqlalchemy import Engine, event

from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.logs import Severity, encode_entry
from lockstep.jobs.machines.catalogue import Catalogue, load_catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.orders import GANG_ORDER, ProgramEnd, ProgramUsage, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobEvent
from lockstep.runner.logs import segment_key
from lockstep.service.billing.usages import job_bill
from lockstep.service.control.job_inputs import gang_of
from lockstep.service.control.job_urls import log_url, output_urls
from lockstep.service.control.orders import gang_order
from lockstep.service.settings import Settings
from lockstep.service.store import AttemptRecord, JobRecord, JobStore, ReplicaRecord, connect_database, open_database
from lockstep.storage import open_bucket

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


def connect_fast(settings: Settings) -> Engine:
    """Makes the service's database, and connects to it without a flush for each transaction.

    Nobody minds if a power cut takes it, and the flushes of 50,000 transactions would take longer than all else.
    """
    open_database(settings.database_url).dispose()
    engine = connect_database(settings.database_url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return engine


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
        self._engine = connect_fast(settings)
        self._store = JobStore(self._engine, clock=self._clock)

    def write(self, num_jobs: int) -> None:
        """Writes so many jobs, the last of which ended a little while ago."""
        began_s = time.time() - num_jobs * INTERVAL_S - 2 * RUN_S
        for number in range(num_jobs):
            self._clock.now_s = began_s + number * INTERVAL_S
            self._write(number)

    def close(self) -> None:
        """Closes the database."""
        self._engine.dispose()

    def write_large(self, job_id: str, *, num_replicas: int, num_lines: int) -> None:
        """Writes a job of many replicas that has ended, with the log that each of them left.

        Args:
            job_id: the name of the job.
            num_replicas: how many replicas it has.
            num_lines: the lines of each.
        """
        self._clock.now_s = time.time() - 2 * RUN_S
        asked = document(0)
        asked["trainingInput"]["workerCount"] = str(num_replicas - 1)
        job = self._write(0, asked={**asked, "jobId": job_id})
        began_s = self._clock() - RUN_S
        for name in ("master-replica-0", *(f"worker-replica-{number}" for number in range(num_replicas - 1))):
            lines = (
                encode_entry(
                    seq=seq,
                    time_s=began_s + seq,
                    stream="stdout",
                    severity=Severity.INFO,
                    text=f"{name}: step {seq} of {num_lines}, loss 0.1234",
                )
                for seq in range(num_lines)
            )
            open_bucket(log_url(job, replica=name, attempt=0)).write(segment_key(0), b"".join(lines))

    def _write(self, number: int, *, asked: Mapping[str, Any] | None = None) -> JobRecord:
        request = parse_job(dict(asked or document(number)), source="history")
        training_input, clock = request.training_input, self._clock
        job = self._store.create(
            project="local",
            job_id=request.job_id,
            training_input=training_input.to_json(),
            labels=request.labels,
            simulated=False,
            outputs=output_urls(request, bucket=self._settings.bucket, project="local"),
        )
        if number % 50 == 49:
            reason = str(EndReason(kind=EndKind.CANCELLED, details=("by home",)))
            self._store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="cancelled by home", end_reason=reason)
            self._store.advance(job.uid, JobEvent.CANCELLED, detail="it had not started", end_time_s=clock())
            return job
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
        return job

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


def write_history(settings: Settings, *, num_jobs: int) -> None:
    """Writes so many jobs into a home's database."""
    history = History(settings)
    history.write(num_jobs)
    history.close()
