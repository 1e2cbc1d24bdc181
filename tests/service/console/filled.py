"""A service with something on every page of the console, and the addresses of all pages."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from tests.service.console.served_model import NAME, make_versions, serving
from tests.service.packed import images, pack
from tests.service.recorded_jobs import record_job, write_curve, write_log
from tests.service.recorded_servers import make_ready, record_server

from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.console.paths import VIEWS
from lockstep.service.problems import Part
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

LABELS: Final = {"team": "vision", "note": "resnet-baseline"}
PROGRAM: Final = """
import time
print("Epoch 1/10", flush=True)
for step in range(30):
    print(f"\\x1b[32mstep {step}\\x1b[0m loss: {1 / (step + 1):.4f}", flush=True)
print("WARNING: the learning rate is high", flush=True)
time.sleep(600)
"""
TRIAL: Final = """
import sys
import lockstep
given = dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
for step in range(3):
    lockstep.report(float(given["rate"]) * 10 + len(given["activation"]) / (step + 1), step=step)
"""
SEARCH: Final = {
    "goal": "MINIMIZE",
    "algorithm": "GRID_SEARCH",
    "maxTrials": 4,
    "maxParallelTrials": 4,
    "hyperparameterMetricTag": "loss",
    "params": [
        {"parameterName": "rate", "type": "DISCRETE", "discreteValues": [0.01, 0.1]},
        {"parameterName": "activation", "type": "CATEGORICAL", "categoricalValues": ["relu", "gelu_tanh"]},
    ],
}
_NOT_PAGES: Final = ("/download", "/first-error", "{path:path}")
"""The ends of paths that answer with a file or another address."""


def fill_jobs(bench: Bench) -> None:
    """Has jobs that ended, with logs and curves, a search, a job that runs and two that wait."""
    for number, name in enumerate(("resnet_1", "resnet_2")):
        job = record_job(bench, name, num_workers=3, num_entries=60, args=["--epochs=10", f"--seed={number}"])
        bench.store.set_labels(job.uid, labels=LABELS, version=None)
        for replica in ("master-replica-0", "worker-replica-0"):
            write_log(job, 0, 59, replica=replica, text="step {}: loss 0.1234, accuracy 0.9513")
        for run, floor in (("train", 0.1), ("validation", 0.2 + 0.05 * number)):
            values = [floor + math.exp(-step / 6) for step in range(30)]
            write_curve(job, run=run, tag="epoch_loss", values=values)
            write_curve(job, run=run, tag="epoch_accuracy", values=[1 - value / 3 for value in values])
    failed = bench.create("fails", "raise ValueError('the labels have shape (32, 10), and the model (32, 12)')")
    bench.step_until(failed.job_id, lambda job: job.state is JobState.FAILED)
    bench.create("search", TRIAL, hyperparameters=SEARCH)
    bench.step_until_state("search", JobState.SUCCEEDED)
    bench.create("runs", PROGRAM)
    bench.step_until_state("runs", JobState.RUNNING)
    for name in ("waits", "waits_longer"):
        bench.create(name, "pass", scaleTier="CUSTOM", masterType="n1-standard-4")
    bench.step()


@contextmanager
def filled(service: Served, bench: Bench) -> Iterator[None]:
    """Has jobs, a model that predicts, a data set, keys, secrets and a problem, as long as the context lasts."""
    fill_jobs(bench)
    make_versions(service)
    models, file = service.context.models, FileOrder(url="/bucket/net.keras", name="net.keras", sha256="0")
    for name in ("v1", "v2"):
        assert models.update_version(models.get_version(**NAME, name=name), files=(file,))
        make_ready(bench.store, record_server(bench.store, models.get_version(**NAME, name=name)))
    pack(bench.home.bucket / "local" / "pets", images(30, size=64), source="pets.zip", classes=("cat", "dog"))
    service.key(Scope.SUBMITTER, project="vision", label="ann")
    service.key(Scope.VIEWER, project="local", label="bob", expire_time_s=time.time() + 86400)
    secret = service.http.put("/v1/projects/local/secrets/wandb-key", json={"value": "secret of the test"})
    assert secret.status_code == 200, secret.text
    service.context.problems.note(Part.BUCKET, "the bucket s3://models does not answer: connection refused")
    with serving(service):
        for _ in range(3):
            path = "/v1/projects/local/models/digits:predict"
            assert service.http.post(path, json={"instances": [[[1, 2], [3, 4]]]}).status_code == 200
        yield


def paths_of_pages(bench: Bench) -> dict[str, str]:
    """Returns the addresses of all pages, by names for files.

    A page whose path has a name that has no value here fails.
    """
    values = {"project": "local", "job_id": "resnet_1", "model": "digits", "version": "v1"}
    data_set = f"{bench.home.bucket}/local/pets/pets-train"
    queries = {
        "/compare": "?project=local&job=resnet_1&job=resnet_2",
        "/projects/{project}/data": f"?url={quote(data_set, safe='')}",
        "/costs": "?by=job&report=on",
    }
    found = {}
    for path in VIEWS:
        if path.endswith(_NOT_PAGES):
            continue
        name = re.sub(r"[^a-z_]+", "-", path.replace("{", "").replace("}", "")).strip("-")
        found[name] = path.format(**values) + queries.get(path, "")
    found["job-running"] = "/projects/local/jobs/runs"
    found["job-failed"] = "/projects/local/jobs/fails"
    found["search"] = "/projects/local/jobs/search"
    found["trial"] = "/projects/local/jobs/search.2"
    found["job-cloned"] = "/projects/local/jobs:new?clone=resnet_1"
    return found
