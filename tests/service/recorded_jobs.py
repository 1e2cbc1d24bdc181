"""Jobs that are recorded as if they ran, with logs and curves that the test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lockstep.data import frame
from lockstep.jobs.logs import Severity, encode_entry
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.orders import GANG_ORDER, ProgramEnd, ReplicaPhase, ReplicaStatus
from lockstep.runner.logs import segment_key
from lockstep.service.control.job_inputs import gang_of
from lockstep.service.control.job_urls import log_url
from lockstep.service.control.orders import gang_order
from lockstep.service.store import JobRecord, ReplicaRecord
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench

MASTER = "master-replica-0"


def record_job(bench: Bench, job_id: str, *, num_workers: int = 0, num_entries: int = 0, **asked: Any) -> JobRecord:
    """Records a job that is over.

    Args:
        bench: the bench.
        job_id: the name of the job.
        num_workers: the number of replicas beside the master.
        num_entries: how many entries the log of each replica is said to have.
        **asked: further fields of the training input.
    """
    machines = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}
    if num_workers:
        machines |= {"workerType": "n1-standard-4", "workerCount": str(num_workers)}
    job = bench.create(job_id, "pass", **{**machines, **asked})
    gang = gang_of(job, catalogue=load_catalogue())
    order = gang_order(
        job,
        gang=gang,
        nodes=["local"] * (num_workers + 1),
        settings=bench.settings,
        cluster=bench.cluster,
        catalogue=load_catalogue(),
    )
    end = ProgramEnd(exit_code=0, num_log_entries=num_entries)
    bench.store.update(
        job.uid,
        state="SUCCEEDED",
        gang_order=GANG_ORDER.dump_python(order, mode="json"),
        gang_released=True,
        end_time_s=job.create_time_s + 1,
        replicas=[
            ReplicaRecord(
                status=ReplicaStatus(name=replica.name, phase=ReplicaPhase.ENDED, end=end),
                machine_type="n1-standard-4",
            )
            for replica in order.replicas
        ],
    )
    return bench.job(job_id)


def write_log(
    job: JobRecord, first: int, last: int, *, replica: str = MASTER, severity: str = "DEFAULT", text: str = "line {}"
) -> None:
    """Writes a segment with the entries of these numbers. The entry n has the time n."""
    lines = [
        encode_entry(
            seq=number,
            time_s=float(number),
            stream="stdout",
            severity=Severity[severity],
            text=text.format(number),
        )
        for number in range(first, last + 1)
    ]
    open_bucket(log_url(job, replica=replica, attempt=0)).write(segment_key(first), b"".join(lines))


def write_curve(job: JobRecord, *, run: str, tag: str, values: list[float], name: str = "0000000001") -> None:
    """Writes a curve, with a value for each step, into a file of TensorBoard."""
    path = Path(job.outputs["tensorboard"]) / run / f"events.out.tfevents.{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for step, value in enumerate(values):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            file.write(frame(Event(wall_time=step, step=step, summary=summary).SerializeToString()))
