"""The example of a language model: packed, trained under strategies, resumed, deployed, and asked with text."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from lockstep.data import read_manifest
from lockstep.testing.machine import Machine
from lockstep.testing.ports import free_port

pytest.importorskip("keras_hub", reason="the model is KerasHub's, which is an extra")

FOLDER = Path(__file__).parents[2] / "examples" / "language_model"
SENTENCES = [f"The {animal} {verb} on the {place}.\n" for animal in ("cat", "dog", "hen") for verb in ("sat", "lay")
             for place in ("mat", "log", "roof")]  # fmt: skip
OPTIONS = ("--epochs", 2, "--batch-size", 12, "--num-tokens", 8)
"""Neither 12 rows nor what the last batch has divide over all numbers of devices."""
TIMEOUT_S = 500.0


def run(script: str, *arguments: object, num_devices: int = 1, **variables: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG" and not name.startswith("AIP_")}
    env = {**kept, "JAX_NUM_CPU_DEVICES": str(num_devices), "NPROC": "16", **variables}
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (output, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output + errors
    return [output for output, _ in outputs]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    for number in range(6):
        (folder / f"{number}.txt").write_text("".join(generator.permutation(SENTENCES)))
    data = tmp_path_factory.mktemp("bucket")
    finish(run("pack.py", data, folder, "--length", 24))
    return data


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("xla"))}


def losses(output: str) -> list[float]:
    """Returns the loss of each epoch, and that of the test."""
    found = [
        *re.findall(r"done in .*  loss ([\d.]+)", output),
        *re.findall(r"^test loss ([\d.]+)", output, re.MULTILINE),
    ]
    assert len(found) == 3, output
    return [float(number) for number in found]


def generated(output: str) -> str:
    return output.partition("generated: ")[2].partition("\nmodel saved")[0]


@pytest.mark.heavy
def test_text_is_packed_without_padding(bucket: Path) -> None:
    manifests = [read_manifest(str(bucket), name="text", split=split) for split in ("train", "test")]
    num_tokens = 6 * (sum(map(len, SENTENCES)) + 2)  # a token at each end of a document
    assert sum(manifest.num_records for manifest in manifests) == (num_tokens - 1) // 24
    assert manifests[0].features["tokens"].to_json()["shape"] == [25]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lora", [0, 4])
def test_the_loss_is_that_of_one_device(bucket: Path, cache: dict[str, str], lora: int) -> None:
    flags = ("--data", bucket, *OPTIONS, "--lora", lora, "--learning-rate", 1e-2)
    (alone,) = finish(run("train.py", *flags, "--strategy", "one_device", **cache))
    assert losses(alone)[1] < losses(alone)[0]
    for strategy, num_devices in (("mirrored", 2), ("sharded", 4), ("model_parallel", 4)):
        (output,) = finish(run("train.py", *flags, "--strategy", strategy, num_devices=num_devices, **cache))
        assert losses(output) == pytest.approx(losses(alone), rel=1e-4), strategy
        assert generated(output) == generated(alone)
    for strategy in ("multi_worker", "sharded"):
        workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}} for index in range(2)]
        both = [run("train.py", *flags, "--strategy", strategy, TF_CONFIG=json.dumps(task), **cache) for task in tasks]
        chief, other = finish(*both)
        assert losses(chief) == pytest.approx(losses(alone), rel=1e-4), strategy
        assert generated(chief) == generated(alone)
        assert "generated" not in other


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.run("up")
    yield made
    made.run("down", "--cancel")


def program(machine: Machine) -> psutil.Process:
    """Returns the process of the job's program."""
    found = []
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", "train"]:
                found.append(process)
    (one,) = found
    return one


def has_checkpoint(job: dict[str, Any]) -> bool:
    return any(Path(job["lockstep"]["outputs"]["checkpoints"]).glob("[0-9]*"))


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_job_whose_program_is_killed_goes_on_and_its_model_answers_with_text(
    machine: Machine, bucket: Path, tmp_path: Path
) -> None:
    flags = ("--data", bucket, "--epochs", 6, "--batch-size", 8, "--learning-rate", 1e-2, "--lora", 0)
    # A job's programs do not get this process's XLA_FLAGS, with which a test may compile with less effort.
    expected = finish(run("train.py", *flags, "--strategy", "mirrored", num_devices=2, XLA_FLAGS=""))[0]
    submitted = ("--package-path", FOLDER, "--module-name", "train", "--config", FOLDER / "config.yaml", "--async")
    machine.run("submit", "text_1", *map(str, submitted), "--", *map(str, flags), "--save-freq", "4")
    machine.wait("text_1", has_checkpoint, timeout_s=TIMEOUT_S)
    program(machine).kill()
    job = machine.wait("text_1", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    said = "\n".join(machine.log_texts("text_1"))
    assert job["state"] == "SUCCEEDED", said
    assert job["lockstep"]["numRestarts"] == 1
    assert losses_of_last(said) == losses_of_last(expected), "of five digits"

    deployed = ("--job", "text_1", "--prediction-class", "predictor.Predictor")
    machine.run("deploy", "text", *deployed)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"instances": ["The cat ", "The dog lay "], "num_tokens": 12}))
    answers = json.loads(machine.run("predict", "text", "--json-request", str(request)))["predictions"]
    assert all(answer.startswith(text) for answer, text in zip(answers, ("The cat ", "The dog lay "), strict=True))
    assert all(len(answer) > len("The dog lay ") for answer in answers)
    request.write_text(json.dumps({"instances": [7]}))
    assert "an instance is a text; received 7" in machine.run(
        "predict", "text", "--json-request", str(request), code=64
    )


def losses_of_last(output: str) -> float:
    return float(re.findall(r"^test loss ([\d.]+)", output, re.MULTILINE)[-1])
