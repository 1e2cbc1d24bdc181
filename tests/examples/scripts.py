"""Runs the example scripts as a person does: each in a process of its own, on handwritten digits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from lockstep.testing.ports import free_port

FOLDER = Path(__file__).parents[2] / "examples"


def start(script: str, *arguments: object, cache: Path, tf_config: dict[str, object] | None = None) -> subprocess.Popen:
    """Starts a script of `examples`, on one device unless its arguments say otherwise."""
    left_out = ("TF_CONFIG", "JAX_NUM_CPU_DEVICES", "NPROC")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # so little is computed here that compiling takes most of the time
    if tf_config is not None:
        env["TF_CONFIG"] = json.dumps(tf_config)
    # Their only advice for users is about Keras's own code; an example that warned of anything else would be a bad one.
    quiet = ["-W", "error", "-W", "ignore:__array__ implementation doesn't accept a copy keyword"]
    command = [sys.executable, *quiet, str(FOLDER / script), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*processes: subprocess.Popen, timeout_s: float = 150) -> list[str]:
    """Waits for processes that should succeed, and returns what each printed."""
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (output, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output + errors
    return [output for output, _ in outputs]


def run(script: str, *arguments: object, cache: Path) -> str:
    """Runs a script to its end, and returns what it printed."""
    return finish(start(script, *arguments, cache=cache))[0]


def run_pair(script: str, *arguments: object, cache: Path) -> list[str]:
    """Runs a script in two processes that are told of each other by TF_CONFIG, the chief first."""
    workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [{"cluster": {"worker": workers}, "task": task} for task in tasks]
    return finish(*(start(script, *arguments, cache=cache, tf_config=config) for config in configs))


def numbers(pattern: str, output: str) -> list[float]:
    """Returns what stands behind each occurrence of a name in the output."""
    return [float(number) for number in re.findall(rf"{pattern}[ =]([-+.\de]+)", output)]
