"""Costs by model and by version: prediction servers and batch predictions that were recorded, over REST."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.service.recorded_servers import make_ready, record_server, release

from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import JobEvent
from lockstep.service.store import AttemptRecord, ReplicaRecord
from lockstep.service.store.tables import STORED_SIZES
from lockstep.storage import join_url
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

BEGAN_S = 1_000_000.0
HOUR_S = 3600.0
MACHINE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "program"}


def _serve(service: Served, version: str, *, hours: float, busy_hours: float) -> None:
    """Records a version whose server ran for some time, and had requests for a part of it."""
    models, jobs = service.context.models, service.context.jobs
    models.create_version(
        project="local",
        model="m",
        name=version,
        description="",
        labels={},
        deployment_uri="",
        machine_type="n1-standard-4",
        prediction_class="a.Predictor",
    )
    record = models.get_version(project="local", model="m", name=version)
    server = make_ready(jobs, record_server(jobs, record))
    progress = Progress(time_s=BEGAN_S, metrics={"busySeconds": busy_hours * HOUR_S})
    status = replace(server.replicas[0].status, progress=progress)
    jobs.update(server.uid, replicas=[ReplicaRecord(status=status, machine_type="n1-standard-4")])
    release(jobs, server, JobEvent.SUCCEEDED, ended=_attempt(hours))
    jobs.update(server.uid, start_time_s=BEGAN_S, end_time_s=BEGAN_S + hours * HOUR_S)


def _attempt(hours: float) -> AttemptRecord:
    return AttemptRecord(attempt=0, start_time_s=BEGAN_S, end_time_s=BEGAN_S + hours * HOUR_S, end_reason=None)


def _run(bench: Bench, job_id: str, *, hours: float, **fields: Any) -> None:
    """Records a job that somebody submitted, which ran for some time and left a GiB in the bucket for 730 hours."""
    store = bench.store
    job = store.create(
        project="local",
        job_id=job_id,
        training_input=MACHINE,
        labels={},
        simulated=False,
        outputs={"logs": join_url(bench.settings.bucket, job_id)},
        **fields,
    )
    store.advance(job.uid, JobEvent.PREPARING, detail="")
    store.advance(job.uid, JobEvent.STARTED, detail="", start_time_s=BEGAN_S, run_start_time_s=BEGAN_S)
    store.advance(job.uid, JobEvent.SUCCEEDED, detail="", ended=_attempt(hours), end_time_s=BEGAN_S + hours * HOUR_S)
    stored = {"job_uid": job.uid, "start_time_s": BEGAN_S, "end_time_s": BEGAN_S + 730 * HOUR_S, "size_bytes": 2**30}
    with store._engine.begin() as connection:
        connection.execute(STORED_SIZES.insert().values(stored))


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        (
            "model",
            {
                "(none)": ("1.0000", "0.0000", "0.0000", "1.000000"),
                "m": ("10.0000", "5.0000", "3.5000", "2.000000"),
            },
        ),
        (
            "version",
            {
                "(none)": ("1.0000", "0.0000", "0.0000", "1.000000"),
                "m": ("2.0000", "0.0000", "0.0000", "1.000000"),
                "m/v1": ("7.0000", "4.0000", "3.0000", "1.000000"),
                "m/v2": ("1.0000", "1.0000", "0.5000", "0.000000"),
            },
        ),
    ],
)
def test_costs_are_summed_by_model_and_by_version(
    service: Served, bench: Bench, by: str, rows: dict[str, tuple[str, ...]]
) -> None:
    model = "projects/local/models/m"
    service.context.models.create_model(project="local", name="m", description="", labels={})
    _serve(service, "v1", hours=4, busy_hours=1)
    _serve(service, "v2", hours=1, busy_hours=0.5)
    _run(bench, "train", hours=1)
    _run(bench, "of_the_model", hours=2, prediction_input={"modelName": model})
    _run(bench, "of_a_version", hours=3, prediction_input={"versionName": f"{model}/versions/v1"})
    report = service.http.get("/v1/projects/local/costs", params={"by": by}).json()
    keys = ("machineHours", "serverHours", "unusedServerHours", "storedGibMonths")
    assert {row["name"]: tuple(row[key] for key in keys) for row in report["rows"]} == rows
    assert tuple(report["total"][key] for key in keys) == ("11.0000", "5.0000", "3.5000", "3.000000")
    everywhere = service.http.get("/v1/costs", params={"by": by}).json()
    assert [row["name"] for row in everywhere["rows"]] == [
        name if name == "(none)" else f"local/{name}" for name in rows
    ]
