"""Batch predictions whose programs are users of their own."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.service.security.confined import IS_ROOT, POOL

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.jobs.input.predictions import PredictionInput
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.service.prediction.batch_jobs import BatchModel, batch_input, pin_model
from lockstep.testing.bench import Bench

assert lockstep is not None

WAIT_S = 150.0


@IS_ROOT
@pytest.mark.filterwarnings(
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)
@pytest.mark.heavy
def test_a_confined_program_gets_the_model_and_writes_the_predictions(confined: Bench) -> None:
    home = confined.home
    project = home.bucket / "local"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    (project / "models").mkdir(parents=True, mode=0o700)
    model.save(project / "net.keras")
    (project / "net.keras").chmod(0o600)  # the program gets it nevertheless
    data = home.path.parent / f"{home.path.name}-in"
    data.mkdir(mode=0o755)
    (data / "a").write_text("[1, 2]\n[3, 4]\n")
    output = project / "predictions"
    asked = PredictionInput.model_validate(
        {
            "uri": str(project / "net.keras"),
            "dataFormat": "JSON",
            "inputPaths": [f"{data}/*"],
            "outputPath": str(output),
        }
    )
    named = BatchModel(url=str(project / "net.keras"))
    files = pin_model(named, project="local", bucket=str(home.bucket), folder=home.spool / "batch-models")
    confined.store.create(
        project="local",
        job_id="b",
        training_input=batch_input(asked, model=named, run_id="r"),
        prediction_input=asked.to_json(),
        files=files,
        labels={},
        simulated=False,
        outputs={"predictions": str(output), "logs": str(project / "jobs" / "b" / "logs")},
    )
    deadline = time.monotonic() + WAIT_S
    owner: set[int] = set()
    while (job := confined.job("b")).state not in TERMINAL or not job.gang_released:
        assert time.monotonic() < deadline, job
        confined.step()
        owner |= {output.stat().st_uid} if output.exists() else set()
        time.sleep(0.05)
    assert job.state is JobState.SUCCEEDED, job.error_message
    assert owner & set(range(POOL.first, POOL.last + 1)), "the program owned the folder while it ran"
    found = output.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o700)
    lines = (output / "prediction.results-00000-of-00001").read_text().splitlines()
    np.testing.assert_allclose([json.loads(line) for line in lines], [[3.0], [7.0]], atol=1e-6)
    assert Path(files[0].url).is_relative_to(project / "models")
