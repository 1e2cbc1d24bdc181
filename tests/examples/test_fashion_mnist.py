"""The example script, run as a person and as a job's replicas run it, on handwritten digits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from lockstep.data import pack
from lockstep.data.sources import open_source
from lockstep.data.sources.base import IMAGE_FEATURES
from lockstep.testing.ports import free_port
from lockstep.training import load_model

FOLDER = Path(__file__).parents[2] / "examples" / "fashion_mnist"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("xla")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket")
    for split, examples in open_source("digits").splits().items():
        pack(examples, str(folder), name="digits", split=split, num_shards=3, features=IMAGE_FEATURES)
    return folder


def start(*arguments, cache, num_devices=1, **variables):
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG" and not name.startswith("AIP_")}
    env = {**kept, "JAX_NUM_CPU_DEVICES": str(num_devices), "NPROC": "4", **variables}
    command = [sys.executable, str(FOLDER / "train.py"), *map(str, arguments)]
    env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*processes, timeout_s=120):
    try:
        return [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()


def results(output):
    found = re.search(r"^test accuracy (\S+), test loss (\S+)$", output, re.MULTILINE)
    return [float(number) for number in found.groups()]


# Neither these batches nor the 359 test images divide over two replicas; the 2 images that the batches leave do.
OPTIONS = ("--epochs", 3, "--batch-size", 359)


@pytest.mark.heavy
def test_alone_and_in_two_processes(bucket, cache, tmp_path):
    cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
    alone = start(
        *("--data", bucket, *OPTIONS, "--job-dir", tmp_path / "alone"),
        cache=cache,
        num_devices=2,
        AIP_MODEL_DIR=str(tmp_path / "exported"),  # what a job says goes before --job-dir
    )
    ((output, errors),) = finish(alone)
    assert alone.returncode == 0, errors
    assert output.startswith("strategy: MirroredStrategy over 2 x cpu, because this process has 2 devices\n")
    assert "epoch 3/3  done in" in output
    assert results(output)[0] > 0.7
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["checkpoints", "logs"]
    assert f"model saved: {tmp_path}/exported/model.keras" in output

    model = load_model(tmp_path / "exported")
    test = open_source("digits").splits()["test"]
    predictions = model.predict(np.array(test.images[:64].tolist()), verbose=0)  # whole numbers, as JSON has them
    np.testing.assert_allclose(predictions.sum(axis=1), 1, rtol=1e-5)
    assert (predictions.argmax(axis=1) == test.labels[:64]).mean() > 0.7

    pair = [
        start(
            *("--data", f"{bucket}/digits-train-*.tfrec", *OPTIONS, "--strategy", "multi_worker"),
            cache=cache,
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}),
        )
        for role in cluster
    ]
    (chief_output, errors), (worker_output, _) = finish(*pair)
    assert [process.returncode for process in pair] == [0, 0], errors
    assert "MultiWorkerMirroredStrategy over 2 processes with 2 x cpu in all, because it was named" in chief_output
    assert results(chief_output) == pytest.approx(results(output), abs=2e-3)
    assert "model saved: nowhere" in chief_output
    assert "test accuracy" not in worker_output
    assert "epoch" not in worker_output


@pytest.mark.heavy
def test_bad_input_is_one_line_and_an_exit_code(cache, tmp_path):
    missing = start("--data", tmp_path / "nothing", cache=cache)
    unnamed = start(cache=cache)
    bad_topology = start("--data", tmp_path, cache=cache, TF_CONFIG='{"cluster": {"boss": ["a:1"]}}')
    (_, no_data), (_, no_flag), (_, no_role) = finish(missing, unnamed, bad_topology)
    assert (missing.returncode, unnamed.returncode, bad_topology.returncode) == (66, 2, 78)
    assert no_data.startswith(f"train.py: no file matches {tmp_path}/nothing/*-train-*.tfrec")
    assert no_flag.splitlines()[-1] == "train.py: error: the following arguments are required: --data"
    assert no_role.startswith("train.py: TF_CONFIG: unknown role in cluster; received 'boss'")
    assert len(no_data.splitlines()) == len(no_role.splitlines()) == 1


def test_the_configuration_is_the_seed_s():
    accelerators = {"count": 2, "type": "NVIDIA_TESLA_V100"}
    assert yaml.safe_load((FOLDER / "config.yaml").read_text()) == {
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-8",
            "masterConfig": {"acceleratorConfig": accelerators},
        }
    }
