"""Scripts of tf.keras, put through `lockstep migrate`: they run on two devices, and print what TensorFlow printed.

`scripts` holds the guides, the labs and the reference trainer, told anew as they stood in tf.keras; `by_hand` the lines
that somebody changes after the migration; `expected.json` what TensorFlow printed, made by `run_tensorflow.py`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.data import encode_example, frame
from lockstep.data.images import encode_image
from lockstep.migration import migrate_file, rewrite
from lockstep.migration.files import Migrated
from lockstep.testing.ports import free_port

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "scripts"
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))
FIT_STYLE = ("keras_fit", "keras_io_multi_gpu", "lab_devices", "multi_worker_keras", "parameter_server_fit",
             "save_and_load", "trainer")  # fmt: skip
LOOPS = (
    "custom_training",
    "dcgan",
    "distributed_input",
    "lab_mirrored",
    "lab_tpu",
    "multi_worker_loop",
    "parameter_server_loop",
    "subclassed",
)
MOST_LINES = {**dict.fromkeys(FIT_STYLE, 3), **dict.fromkeys(LOOPS, 8)}
_FROM_ELSEWHERE = ("a step of", "[Gloo]")  # TensorFlow prints the first to the standard error; JAX prints the second
NUMBER = re.compile(r"-?\d+\.\d+")


def _changed_by_hand(source: str, name: str) -> tuple[str, int]:
    """Returns a migrated script with the lines that a person changes, and how many lines that were."""
    patch = FOLDER / "by_hand" / f"{name}.patch"
    if not patch.exists():
        return source, 0
    removed, added = [], []
    for line in patch.read_text("utf-8").splitlines():
        (removed if line.startswith("-") else added).append(line[1:])
    num_lines = 0
    for old, new in zip(removed, added, strict=True):
        assert f"{old}\n" in source, old
        num_lines += source.count(f"{old}\n")
        source = source.replace(f"{old}\n", f"{new}\n")
    return source, num_lines


def _write_records(folder: Path) -> None:
    rng = np.random.default_rng(31)
    pictures = rng.integers(0, 256, (40, 8, 8, 3)).astype("uint8")
    for shard in range(2):
        records = [
            encode_example({"image": encode_image(pictures[number], codec="png"), "label": number % 3})
            for number in range(shard * 20, shard * 20 + 20)
        ]
        path = folder / f"pictures-train-{shard:05d}-of-00002.tfrec"
        path.write_bytes(b"".join(map(frame, records)))


def _start(script: Path, *arguments: str, home: Path, devices: int = 2, tf_config: object = None) -> subprocess.Popen:
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    env |= {
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(4 * devices),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # so little is computed here that compiling takes most of the time
        "LOCKSTEP_HOME": str(home),
    }
    if tf_config is not None:
        env["TF_CONFIG"] = json.dumps(tf_config)
    command = [sys.executable, str(script), *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen) -> list[str]:
    try:
        output, errors = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, output + errors
    return [line for line in output.splitlines() if line.strip() and not line.startswith(_FROM_ELSEWHERE)]


@functools.cache
def _migration(name: str) -> Migrated:
    """Returns what migrating a script gives; it takes a second, and several tests look at it."""
    return migrate_file(SCRIPTS / f"{name}.py")


def _migrated(name: str, folder: Path) -> Path:
    source, _ = _changed_by_hand(_migration(name).after, name)
    script = folder / f"{name}.py"
    script.write_text(source, "utf-8")
    return script


def _run(name: str, folder: Path) -> list[str]:
    arguments: list[str] = []
    if name.startswith("multi_worker"):
        arguments = [str(folder)]
    elif name == "trainer":
        _write_records(folder)
        arguments = ["--data", str(folder), "--job-dir", str(folder / "job")]
    return _finish(_start(_migrated(name, folder), *arguments, home=folder / "home"))


def _assert_equal(printed: list[str], expected: list[str]) -> None:
    assert [NUMBER.sub("N", line) for line in printed] == [NUMBER.sub("N", line) for line in expected]
    for line, wanted in zip(printed, expected, strict=True):
        numbers = [float(number) for number in NUMBER.findall(line)]
        assert numbers == pytest.approx([float(number) for number in NUMBER.findall(wanted)], rel=2e-5, abs=2e-5), line


def _light(name: str) -> object:
    is_light = name in ("keras_fit", "custom_training")
    return name if is_light else pytest.param(name, marks=pytest.mark.heavy)


@pytest.mark.parametrize("name", [_light(name) for name in sorted(MOST_LINES)])
def test_a_migrated_script_stays_as_it_is(name: str) -> None:
    migrated = _migration(name).after
    assert rewrite(migrated).source == migrated


FEW = ("keras_fit", "custom_training", "trainer", "parameter_server_loop", "multi_worker_keras", "lab_mirrored")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.heavy) for name in sorted(MOST_LINES)]
)
def test_few_lines_are_left_to_a_person(name: str) -> None:
    source = (SCRIPTS / f"{name}.py").read_text("utf-8")
    migrated = _migration(name)
    assert "tensorflow" not in migrated.after.replace("TensorFlow", "")
    assert not re.search(r"(?<![\w./])tf\.\w", _code_of(migrated.after))
    assert len(migrated.remarks) <= _changed_by_hand(migrated.after, name)[1]
    _, num_lines = _changed_by_hand(migrated.after, name)
    assert num_lines <= MOST_LINES[name]
    for line in source.splitlines():  # comments stay
        if line.lstrip().startswith("#"):
            assert line in migrated.after.splitlines()


def _code_of(source: str) -> str:
    """Returns a script without its docstring and its comments."""
    return re.sub(r"#.*", "", source.split('"""', 2)[2])


def test_every_script_is_told_of() -> None:
    assert sorted(MOST_LINES) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    without_tensorflow = {"dcgan", "parameter_server_fit", "parameter_server_loop"}  # random, or on servers
    assert sorted(EXPECTED) == sorted(set(MOST_LINES) - without_tensorflow)


@pytest.mark.parametrize("name", [_light(name) for name in sorted(EXPECTED)])
@pytest.mark.heavy
def test_a_migrated_script_prints_what_tensorflow_printed(name: str, tmp_path: Path) -> None:
    _assert_equal(_run(name, tmp_path), EXPECTED[name])


@pytest.mark.heavy
def test_a_migrated_loop_of_two_workers_prints_what_one_worker_of_tensorflow_printed(tmp_path: Path) -> None:
    script = _migrated("multi_worker_loop", tmp_path)
    workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    processes = [
        _start(
            script, str(tmp_path / "run"), home=tmp_path / "home", devices=1,
            tf_config={"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}},
        )
        for index in range(2)
    ]  # fmt: skip
    for printed in [_finish(process) for process in processes]:
        _assert_equal(printed, EXPECTED["multi_worker_loop"])
    assert [path.name for path in (tmp_path / "run" / "ckpt").iterdir()] == ["3"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["parameter_server_fit", "parameter_server_loop"])
def test_a_migrated_script_of_parameter_servers_learns(name: str, tmp_path: Path) -> None:
    printed = _run(name, tmp_path)
    last = float(NUMBER.findall(next(line for line in printed if line.startswith("last")))[0])
    assert last < 0.5
    if name == "parameter_server_loop":
        accuracies = [float(line.rsplit(" ", 1)[1]) for line in printed if line.startswith("epoch")]
        assert len(accuracies) == 3
        assert accuracies[-1] > 0.9


@pytest.mark.heavy
def test_a_migrated_gan_trains(tmp_path: Path) -> None:
    (line,) = _run("dcgan", tmp_path)
    assert all(0 < float(number) < 2 for number in NUMBER.findall(line))
