"""Batch predictions over REST: what is refused, what runs, and what the job says of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.prediction.files import copy_files
from lockstep.service.store import JobRecord
from lockstep.testing.served import Served

assert lockstep is not None

pytestmark = pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

WAIT_S = 150.0
JOBS = "/v1/projects/local/jobs"
VALUES = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, keras.Model]:
    keras.utils.set_random_seed(5)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    path = tmp_path_factory.mktemp("model") / "net.keras"
    made.save(path)
    return path, made


def _asked(folder: Path, **changes: Any) -> dict[str, Any]:
    document = {
        "uri": str(folder / "net.keras"),
        "dataFormat": "JSON",
        "inputPaths": [f"{folder}/in/*.jsonl"],
        "outputPath": f"{folder}/out",
        "region": "us-central1",
        **changes,
    }
    return {key: value for key, value in document.items() if value is not None}


def _wait(service: Served, job_id: str, *, bench: Any) -> JobRecord:
    deadline = time.monotonic() + WAIT_S
    while True:
        bench.step()
        job = bench.job(job_id)
        if job.state in TERMINAL:
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.05)


@pytest.mark.heavy
def test_a_job_predicts_with_the_model_that_it_was_created_with(
    service: Served, bench: Any, tmp_path: Path, model: tuple[Path, keras.Model]
) -> None:
    url = tmp_path / "net.keras"
    url.write_bytes(model[0].read_bytes())
    (tmp_path / "in").mkdir()
    lines = [json.dumps(row.tolist()) for row in VALUES]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*lines[:10], "wrong", *lines[10:]]) + "\n")
    body = {"jobId": "batch_1", "predictionInput": _asked(tmp_path, maxWorkerCount="2", runtimeVersion="2.4")}
    jobs = service.google().jobs()
    created = jobs.create(parent="projects/local", body=body).execute()
    assert created["predictionInput"] == body["predictionInput"]
    assert "trainingInput" not in created
    assert created["predictionOutput"] == {
        "outputPath": str(tmp_path / "out"),
        "predictionCount": "0",
        "errorCount": "0",
        "nodeHours": 0,
    }
    url.unlink()  # the job has its own copy
    job = _wait(service, "batch_1", bench=bench)
    assert job.state is JobState.SUCCEEDED, job
    [results] = (tmp_path / "out").glob("prediction.results-*")
    found = [json.loads(line) for line in results.read_text().splitlines()]
    np.testing.assert_allclose(found, model[1].predict(VALUES, verbose=0), atol=1e-6)
    got = jobs.get(name="projects/local/jobs/batch_1").execute()
    assert (got["predictionOutput"]["predictionCount"], got["predictionOutput"]["errorCount"]) == ("20", "1")
    assert got["predictionOutput"]["nodeHours"] > 0
    assert got["lockstep"]["outputs"]["predictions"] == str(tmp_path / "out")
    names = [replica["name"] for replica in got["lockstep"]["replicas"]]
    assert names == ["master-replica-0", "worker-replica-0"]
    listed = service.http.get(JOBS, params={"filter": "predictionInput.dataFormat=JSON"}).json()["jobs"]
    assert [job["jobId"] for job in listed] == ["batch_1"]
    assert service.http.get(JOBS, params={"filter": "trainingInput.scaleTier:*"}).json().get("jobs", []) == []
    assert service.http.get(f"{JOBS}/batch_1/models").json() == {"models": []}
    events = service.http.get(f"{JOBS}/batch_1/events").json()["events"]
    assert any("runtimeVersion: 2.4 is ignored" in event["detail"] for event in events)


def test_a_version_predicts_with_its_own_copy(
    service: Served, bench: Any, tmp_path: Path, model: tuple[Path, keras.Model]
) -> None:
    models = service.context.models
    models.create_model(project="local", name="m", description="", labels={})
    url = "/v1/projects/local/models/m/versions"
    service.http.post(url, json={"name": "v1", "deploymentUri": str(model[0])}).raise_for_status()
    asked = _asked(tmp_path, uri=None, versionName="projects/local/models/m/versions/v1")
    body = {"jobId": "b", "predictionInput": asked}
    response = service.http.post(JOBS, json=body)
    assert (response.status_code, "are being copied" in response.text) == (503, True)
    version = models.get_version(project="local", model="m", name="v1")
    files = copy_files(version, bucket=bench.settings.bucket, folder=tmp_path / "copying")
    models.update_version(version, files=files)
    service.http.post(JOBS, json=body).raise_for_status()
    job = bench.job("b")
    assert job.files == files
    other = {**body, "jobId": "c", "predictionInput": _asked(tmp_path, uri=None, modelName="projects/other/models/m")}
    assert "a model of another project" in service.http.post(JOBS, json=other).text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uri": None}, "predictionInput.modelName; received 'none of them'"),
        ({"modelName": "projects/local/models/m"}, "predictionInput.uri; received 'modelName and uri'"),
        ({"uri": None, "modelName": "m"}, "allowed: projects/PROJECT/models/MODEL"),
        ({"dataFormat": None}, "predictionInput.dataFormat is missing"),
        ({"dataFormat": "PARQUET"}, "predictionInput.dataFormat; received 'PARQUET'"),
        ({"outputDataFormat": "TF_RECORD"}, "allowed: JSON or CSV"),
        ({"inputPaths": []}, "predictionInput.inputPaths is missing"),
        ({"inputPaths": ["in/*"]}, "predictionInput.inputPaths.0: must mean the same place"),
        ({"outputPath": None}, "predictionInput.outputPath is missing"),
        ({"signatureName": "other"}, "serving_default, since a .keras file has one signature"),
        ({"batchSize": "0"}, "predictionInput.batchSize"),
        ({"maxWorkerCount": "100000"}, "predictionInput: too many replicas"),
        ({"region": "moon"}, "predictionInput.region"),
        ({"accelerator": 1}, "unknown key predictionInput.accelerator"),
        ({"lockstep": {"machineType": "huge"}}, "predictionInput.lockstep.machineType"),
        ({"lockstep": {"dataFormat": "IMAGE_FILES"}}, "not together with dataFormat"),
        ({"lockstep": {"keyField": "prediction"}}, "is a field of the output"),
        ({"lockstep": {"pythonModule": "train"}}, "only with lockstep.packageUris"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    service: Served, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    body = {"jobId": "b", "predictionInput": _asked(tmp_path, **changes)}
    response = service.http.post(JOBS, json=body)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


def test_training_and_prediction_are_two_jobs(service: Served, tmp_path: Path) -> None:
    body = {"jobId": "b", "predictionInput": _asked(tmp_path), "trainingInput": {"pythonModule": "x"}}
    response = service.http.post(JOBS, json=body)
    assert response.status_code == 400
    assert "not together with predictionInput" in response.text


def test_a_model_that_is_not_there_is_refused(service: Served, tmp_path: Path) -> None:
    response = service.http.post(JOBS, json={"jobId": "b", "predictionInput": _asked(tmp_path)})
    assert response.status_code in (400, 404), response.text
    assert "net.keras" in response.text


def test_a_key_of_a_project_names_its_own_locations(service: Served, tmp_path: Path) -> None:
    client = service.client(service.key(Scope.SUBMITTER, project="local"))
    response = client.post(JOBS, json={"jobId": "b", "predictionInput": _asked(tmp_path)})
    assert response.status_code == 400
    assert "predictionInput.outputPath: not a location of project local" in response.text


def test_a_preview_copies_nothing(service: Served, bench: Any, tmp_path: Path, model: tuple[Path, keras.Model]) -> None:
    body = {"jobId": "b", "predictionInput": _asked(tmp_path, uri=str(model[0]))}
    preview = service.http.post(JOBS, params={"validateOnly": "true"}, json=body).json()
    assert preview["predictionInput"] == body["predictionInput"]
    assert preview["replicas"][0]["command"][:3] == ["python", "-m", "lockstep.serving.batch"]
    assert not list(Path(bench.settings.bucket).rglob("*.keras"))
