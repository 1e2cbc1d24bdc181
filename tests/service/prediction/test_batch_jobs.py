"""Batch predictions as jobs: a killed program, and the copies of models."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.errors import InvalidInputError, ModelError, NotFoundError
from lockstep.jobs.input.predictions import PredictionInput
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.service.prediction.batch_jobs import BatchModel, batch_input, find_batch_model, pin_model
from lockstep.service.settings import sqlite_url
from lockstep.service.store import ModelChanges, ModelStore, VersionState, open_database
from lockstep.testing.bench import Bench

assert lockstep is not None

WAIT_S = 150.0
NUM_LINES = 240


def _asked(folder: Path) -> PredictionInput:
    return PredictionInput.model_validate(
        {
            "uri": str(folder / "net.keras"),
            "dataFormat": "JSON",
            "inputPaths": [f"{folder}/in/*"],
            "outputPath": str(folder / "out"),
            "maxWorkerCount": "2",
        }
    )


@pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
@pytest.mark.heavy
def test_a_job_whose_program_is_killed_starts_again_and_predicts_each_instance_once(
    bench: Bench, tmp_path: Path
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.save(tmp_path / "net.keras")
    (tmp_path / "in").mkdir()
    values = np.random.default_rng(0).normal(size=(NUM_LINES, 2)).astype("float32")
    (tmp_path / "in" / "a").write_text("".join(json.dumps(row.tolist()) + "\n" for row in values))
    asked = _asked(tmp_path)
    named = BatchModel(url=str(tmp_path / "net.keras"))
    files = pin_model(named, project="local", bucket=str(bench.home.bucket), folder=tmp_path / "copying")
    document = batch_input(asked, model=named, run_id="r")
    document["args"] = [*document["args"], "--shard-size-bytes=90"]
    bench.store.create(
        project="local",
        job_id="b",
        training_input=document,
        prediction_input=asked.to_json(),
        files=files,
        labels={},
        simulated=False,
        outputs={"predictions": str(tmp_path / "out"), "logs": str(tmp_path / "logs")},
    )
    deadline = time.monotonic() + WAIT_S
    num_done_at_kill = None
    while (job := bench.job("b")).state not in TERMINAL:
        assert time.monotonic() < deadline, job
        bench.step()
        done = list((tmp_path / "out").glob("prediction.state/*/0*.json"))
        if num_done_at_kill is None and len(done) >= 4 and job.state is JobState.RUNNING:
            num_done_at_kill = len(done)
            os.kill(int(job.replicas[-1].status.pid or 0), signal.SIGKILL)
        time.sleep(0.05)
    assert job.state is JobState.SUCCEEDED, job.error_message
    assert num_done_at_kill is not None
    assert job.num_restarts == 1
    results = sorted((tmp_path / "out").glob("prediction.results-*"))
    assert num_done_at_kill < len(results)
    found = [json.loads(line) for path in results for line in path.read_text().splitlines()]
    np.testing.assert_allclose(found, model.predict(values, verbose=0), atol=1e-6)
    counts = [replica.status.progress.metrics for replica in job.replicas if replica.status.progress is not None]
    assert sum(each["predictions"] for each in counts) == NUM_LINES


def test_jobs_with_the_same_model_share_a_copy(tmp_path: Path) -> None:
    (tmp_path / "a.keras").write_bytes(b"weights")
    (tmp_path / "b.keras").write_bytes(b"weights")
    bucket, folder = str(tmp_path / "bucket"), tmp_path / "copying"
    first, second = (
        pin_model(BatchModel(url=str(tmp_path / name)), project="local", bucket=bucket, folder=folder)
        for name in ("a.keras", "b.keras")
    )
    assert first == second
    assert Path(first[0].url).read_bytes() == b"weights"
    assert list(folder.iterdir()) == []
    with pytest.raises(ModelError, match="no folder with a"):
        pin_model(BatchModel(url=str(tmp_path / "c")), project="local", bucket=bucket, folder=folder)


def test_an_exported_program_is_pinned_with_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "net.stablehlo").write_bytes(b"program")
    (tmp_path / "net.stablehlo.json").write_bytes(b"names")
    bucket, folder = str(tmp_path / "bucket"), tmp_path / "copying"
    named = BatchModel(url=str(tmp_path / "net.stablehlo"))
    files = pin_model(named, project="local", bucket=bucket, folder=folder)
    assert [(file.name, Path(file.url).read_bytes()) for file in files] == [
        ("model.stablehlo", b"program"),
        ("model.stablehlo.json", b"names"),
    ]
    assert batch_input(_asked(tmp_path), model=named, run_id="r")["args"][0] == "--model=model.stablehlo"
    (tmp_path / "net.stablehlo.json").write_bytes(b"other names")
    assert pin_model(named, project="local", bucket=bucket, folder=folder)[0].url != files[0].url
    (tmp_path / "only").mkdir()
    (tmp_path / "net.stablehlo").rename(tmp_path / "only" / "net.stablehlo")
    with pytest.raises(ModelError, match=r"name the \.stablehlo file, not its folder"):
        pin_model(BatchModel(url=str(tmp_path / "only")), project="local", bucket=bucket, folder=folder)


def test_a_version_with_a_routine_is_refused(bench: Bench) -> None:
    database = open_database(sqlite_url(bench.home))
    models = ModelStore(database)
    models.create_model(project="local", name="m", description="", labels={})
    models.create_version(
        project="local",
        model="m",
        name="v1",
        description="",
        labels={},
        deployment_uri="gs://b/artifacts",
        machine_type="n1-standard-4",
        package_uris=["gs://b/p.tar.gz"],
        prediction_class="trainer.Predictor",
    )
    asked = PredictionInput.model_validate(
        {
            "versionName": "projects/local/models/m/versions/v1",
            "dataFormat": "JSON",
            "inputPaths": ["gs://b/in/*"],
            "outputPath": "gs://b/out",
        }
    )
    with pytest.raises(InvalidInputError, match="version v1 of m is a custom prediction routine, which answers"):
        find_batch_model(asked, project="local", models=models)
    database.dispose()


def test_a_job_that_names_a_model_alone_uses_the_version_with_the_largest_share(bench: Bench, tmp_path: Path) -> None:
    models = ModelStore(open_database(sqlite_url(bench.home)))
    models.create_model(project="p", name="m", description="", labels={})
    named = {"dataFormat": "JSON", "inputPaths": ["/in"], "outputPath": "/out", "modelName": "projects/p/models/m"}
    asked = PredictionInput.model_validate(named)
    with pytest.raises(NotFoundError, match="model m has no default version"):
        find_batch_model(asked, project="p", models=models)
    for name in ("v1", "v2"):
        models.create_version(
            project="p", model="m", name=name, description="", labels={}, deployment_uri=f"/{name}", machine_type="t"
        )
        version = models.get_version(project="p", model="m", name=name)
        file = FileOrder(url=f"/copy-of-{name}", name="model.keras", sha256="0" * 64)
        assert models.update_version(version, state=VersionState.READY, files=(file,))
    assert find_batch_model(asked, project="p", models=models).url == "/v1"

    def split(_: object) -> ModelChanges:
        return ModelChanges(split={"v1": 10, "v2": 90})

    models.patch_model(project="p", name="m", change=split, changed_by="ann")
    assert find_batch_model(asked, project="p", models=models).url == "/v2"
