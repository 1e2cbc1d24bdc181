"""The reference job from its pictures to its predictions: as a script, as a job, and on machines that come and go."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from lockstep.data.images import decode_image, encode_image
from lockstep.data.sources import open_source
from lockstep.data.sources.fashion_mnist import DEBIAN_FOLDER
from lockstep.testing.machine import Machine
from lockstep.training import load_model

# isort: split
import keras  # after lockstep, which has it run on JAX

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

FOLDER = Path(__file__).parents[2] / "examples" / "cats_and_dogs"
TIMEOUT_S = 800
SMALL = ("--backbone", "small", "--weights", "none", "--batch-size", "32", "--learning-rate", "3e-3")
WEIGHTS = "densenet121_weights_tf_dim_ordering_tf_kernels_notop.h5"
NEEDS_FASHION_MNIST = pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="dataset-fashion-mnist is not installed")


def start(script: str, *arguments: object, cache: Path, num_devices: int = 2) -> subprocess.Popen[str]:
    left_out = ("TF_CONFIG", "LOCKSTEP_HOME")
    env = {name: value for name, value in os.environ.items() if name not in left_out and not name.startswith("AIP_")}
    env |= {"JAX_NUM_CPU_DEVICES": str(num_devices), "NPROC": "4", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], *, code: int = 0) -> str:
    try:
        out, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == code, out
    return out


def kill_after(process: subprocess.Popen[str], text: str) -> str:
    """Kills a program when it has printed a text, and returns what it had printed by then."""
    assert process.stdout is not None
    watch = threading.Timer(TIMEOUT_S, process.kill)  # a program that never prints it ends too
    watch.start()
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if text in line:
                process.kill()
                break
    finally:
        watch.cancel()
        process.kill()
        process.stdout.close()
        process.wait(timeout=60)
    assert text in printed[-1], "".join(printed)
    assert process.returncode == -signal.SIGKILL
    return "".join(printed)


@pytest.fixture(scope="module")
def drawn(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with drawn faces of 32 x 32 pixels."""
    folder = tmp_path_factory.mktemp("drawn")
    finish(start("draw.py", folder / "drawn.zip", "--pictures", 300, cache=programs))
    finish(start("pack.py", folder / "drawn.zip", folder / "data", "--image-size", 32, "--shards", 2, cache=programs))
    return folder / "data"


@pytest.fixture(scope="module")
def clothes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a part of Fashion-MNIST as JPEG files by class, in colour."""
    folder = tmp_path_factory.mktemp("clothes")
    source = open_source("fashion-mnist")
    train = source.splits()["train"]
    for example, number in zip(train, range(1200), strict=False):
        name = source.classes[example["label"]].replace("/", " or ")
        (folder / name).mkdir(exist_ok=True)
        pixels = np.repeat(example["image"][..., np.newaxis], 3, axis=-1)
        (folder / name / f"{number}.jpg").write_bytes(encode_image(pixels))
    return folder


def result(output: str) -> float:
    (accuracy,) = re.findall(r"validation accuracy ([\d.]+), validation loss", output)
    return float(accuracy)


def test_a_killed_run_goes_on_in_its_phase_and_a_finished_one_trains_nothing(
    drawn: Path, programs: Path, tmp_path: Path
) -> None:
    def begin() -> subprocess.Popen[str]:
        options = ("--epochs", 3, "--fine-tuning-epochs", 2, "--save-every", 4, "--job-dir", tmp_path)
        return start("train.py", "--data", drawn, *SMALL, *options, cache=programs)

    said = kill_after(begin(), "epoch 2/3  done")
    assert said.startswith("strategy: MirroredStrategy over 2 x cpu, because this process has 2 devices\n")
    assert "precision: float32; classes: Cat, Dog\nphase head: 23,826 of 24,050 parameters are trained" in said
    said = kill_after(begin(), "epoch 4/5  done")
    assert re.search(rf"restored from {tmp_path}/checkpoints/head: going on with epoch [23], batch", said)
    assert "phase fine_tuning: 23,602 of 24,050 parameters are trained, learning rate 3e-05" in said
    said = finish(begin())
    assert f"phase head is finished: going on from {tmp_path}/checkpoints/after_head.keras" in said
    assert re.search(rf"restored from {tmp_path}/checkpoints/fine_tuning: going on with epoch [45], batch", said)
    assert "/3" not in said, "no epoch of the head"
    assert result(said) >= 0.7
    assert f"model saved: {tmp_path}/model/model.keras" in said
    again = finish(begin())
    assert "phase fine_tuning is finished" in again
    assert "epoch" not in again
    assert result(again) == result(said)

    events = {path.parent.name for path in (tmp_path / "logs").rglob("*tfevents*")}
    assert events == {"train", "validation"}
    model = load_model(tmp_path / "model")
    picture = np.full((1, 90, 60, 3), 200, np.uint8)
    answer = model.predict(picture, verbose=0)
    assert answer["Cat"][0] + answer["Dog"][0] == pytest.approx(1)


def write_published_form(path: Path) -> dict[str, np.ndarray]:
    """Writes random weights of DenseNet121 in the form of the published file, and returns those of its first layer."""
    backbone = keras.applications.DenseNet121(include_top=False, weights=None, input_shape=(32, 32, 3))
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in backbone.layers]
        for layer in backbone.layers:
            group = file.create_group(layer.name)
            names = [f"{layer.name}/{variable.name}:0" for variable in layer.weights]
            for name, variable in zip(names, layer.weights, strict=True):
                group.create_dataset(name, data=np.asarray(variable.value))
            group.attrs["weight_names"] = [name.encode() for name in names]
    first = backbone.get_layer("conv1_conv")
    return {variable.name: np.asarray(variable.value) for variable in first.weights}


def test_densenet_with_weights_from_a_bucket_trains_its_head_then_its_last_30_layers(
    drawn: Path, programs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bucket" / WEIGHTS
    path.parent.mkdir()
    (first,) = write_published_form(path).values()
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    said = finish(
        start(
            *("train.py", "--data", drawn, "--epochs", 1, "--fine-tuning-epochs", 1, "--job-dir", tmp_path / "job"),
            *("--weights", path.as_uri(), "--weights-checksum", checksum),
            cache=programs,
        )
    )
    assert "phase head: 2,050 of 7,039,554 parameters are trained, learning rate 0.001\n" in said
    assert re.search(r"phase fine_tuning: \d{3},\d{3} of 7,039,554 parameters are trained, learning rate 1e-05\n", said)
    assert re.search(r"epoch 2/2  done .* val_loss", said)
    backbones = {
        phase: load_model(tmp_path / "job" / "checkpoints" / f"after_{phase}.keras").get_layer("backbone")
        for phase in ("head", "fine_tuning")
    }
    changed = []
    for before, after in zip(backbones["head"].layers, backbones["fine_tuning"].layers, strict=True):
        same = [np.array_equal(old, new) for old, new in zip(before.get_weights(), after.get_weights(), strict=True)]
        if not all(same):
            changed.append(before.name)
    np.testing.assert_array_equal(backbones["head"].get_layer("conv1_conv").get_weights()[0], first)
    last = [layer.name for layer in backbones["head"].layers[-30:] if isinstance(layer, keras.layers.Conv2D)]
    assert changed == last
    assert len(changed) > 4

    missing = finish(start("train.py", "--data", drawn, "--weights", tmp_path / "no.h5", cache=programs), code=66)
    assert missing.splitlines()[-1].startswith("train.py: there is no file with weights (--weights); received")


def test_bad_input_is_one_line(drawn: Path, programs: Path, tmp_path: Path) -> None:
    cases: Sequence[tuple[tuple[object, ...], str]] = (
        (("--data", tmp_path), f"train.py: there is no packed data set cats-and-dogs in {tmp_path}"),
        (("--data", drawn, "--backbone", "small"), "train.py: the backbone small has no weights of ImageNet"),
        (("--data", drawn, "--image-size", 16, "--weights", "none"), "train.py: the size of pictures for DenseNet121"),
    )
    for arguments, expected in cases:
        process = start("train.py", *arguments, cache=programs)
        out = process.communicate(timeout=TIMEOUT_S)[0]
        assert process.returncode not in (0, 1), out
        assert out.splitlines()[-1].startswith(expected)
        assert "Traceback" not in out


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def run_all(folder: Path, *arguments: object) -> str:
    """Runs the whole way by its one command."""
    left_out = ("LOCKSTEP_HOME", "JAX_COMPILATION_CACHE_DIR")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--folder", str(folder), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in left_out},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = [process for process in psutil.process_iter() if any(str(folder) in word for word in words(process))]
    assert left == []
    return done.stdout


@pytest.mark.parametrize("machines", ["accelerators", "cluster"])
@pytest.mark.parametrize("pictures", ["drawn", pytest.param("clothes", marks=NEEDS_FASHION_MNIST)])
def test_one_command_runs_the_whole_way(
    pictures: str, machines: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cluster = ("--cluster",) if machines == "cluster" else ()
    own: tuple[object, ...] = ()
    if pictures == "clothes":
        folder = request.getfixturevalue("clothes")
        own = ("--archive", folder, "--image-size", 32, "--", *SMALL, "--epochs", 8, "--fine-tuning-epochs", 1)
    out = run_all(tmp_path / "demo", *cluster, *own)
    if cluster:
        assert out.count("MultiWorkerMirroredStrategy over 2 processes with 4 x cpu in all") == 2
        assert len(set(re.findall(r"(?:waiting|meets the others) at ([\d.]+):", out))) == 1
    else:
        assert "MirroredStrategy over 2 x cpu, simulating 2 x NVIDIA_TESLA_V100 (simulated)" in out
    assert "SUCCEEDED (simulated)" in out
    assert "list price, simulated machines, nothing owed" in out
    assert result(out) >= (0.85 if pictures == "drawn" else 0.6)
    (answer,) = re.findall(r'^(\{"predictions".*\})$', out, re.MULTILINE)
    (probabilities,) = json.loads(answer)["predictions"]
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
    if pictures == "drawn":
        assert list(probabilities) == ["Cat", "Dog"]
        assert "damaged files left out: 10" in out
    num_right = len(re.findall(r" right$", out, re.MULTILINE))
    assert num_right >= (8 if pictures == "drawn" else 5)
    assert num_right + len(re.findall(r" wrong$", out, re.MULTILINE)) == 10


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.run("up")
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


def test_the_call_of_gcloud_starts_it(machine: Machine, drawn: Path, tmp_path: Path) -> None:
    job_dir = tmp_path / "outputs"
    job_dir.mkdir()
    machine.run(
        *("submit", "pets_1", "--package-path", str(FOLDER), "--module-name", "train"),
        *("--config", str(FOLDER / "config.yaml"), "--job-dir", str(job_dir), "--region", "us-central1"),
        *("--runtime-version", "2.11", "--labels", "team=vision", "--async"),
        *("--", "--data", str(drawn), *SMALL, "--epochs", "4", "--fine-tuning-epochs", "1"),
    )
    job = machine.wait("pets_1", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    log = "\n".join(machine.log_texts("pets_1"))
    assert job["state"] == "SUCCEEDED", log
    assert "simulating 2 x NVIDIA_TESLA_V100 (simulated)" in log
    assert result(log) >= 0.75
    assert (job_dir / "model" / "model.keras").is_file()
    assert {path.name for path in (job_dir / "checkpoints").iterdir()} >= {
        "after_head.keras",
        "after_fine_tuning.keras",
    }

    machine.run("deploy", "pets", "--job", "pets_1")
    picture = tmp_path / "picture.jpg"
    pixels = decode_image(encode_image(np.full((120, 90, 3), 90, np.uint8)))
    picture.write_bytes(encode_image(pixels))
    (probabilities,) = json.loads(machine.run("predict", "pets", "--image", str(picture)))["predictions"]
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
