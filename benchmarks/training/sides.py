"""The sides as processes: their environments, and what is said to them."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from environments import install, run_uv

from training.rounds import MARK, Order

HERE: Final = Path(__file__).resolve().parent.parent
ROOT: Final = HERE.parent
NVIDIA_SMI: Final = shutil.which("nvidia-smi") or "nvidia-smi"
PYTORCH: Final = ("torch==2.15.0", "torchvision==0.29.2", "numpy==2.4.6")
EXTRAS: Final = ("--extra", "cuda", "--extra", "language")
ANSWER_S: Final = 3600.0
"""Longer than any compilation."""
NOTICE_S: Final = 0.5
ENDING_S: Final = 30.0
NUM_LINES: Final = 15


class SideError(Exception):
    """A side's process has ended, or does not answer."""


@final
@dataclass(frozen=True, kw_only=True)
class Kind:
    """A side.

    Attributes:
        title: its name in the tables.
        module: its program.
        shown: the packages whose versions the table shows.
        autotunes: whether PyTorch compiles in the mode "max-autotune".
    """

    title: str
    module: str
    shown: tuple[str, ...]
    autotunes: bool = False


OURS: Final = "lockstep"
KINDS: Final = {
    OURS: Kind(title="Lockstep", module="training.ours", shown=("jax", "keras", "keras-hub")),
    "pytorch": Kind(title="PyTorch", module="training.theirs", shown=("torch", "torchvision")),
    "pytorch-autotuned": Kind(
        title="PyTorch, max-autotune", module="training.theirs", shown=("torch", "torchvision"), autotunes=True
    ),
}


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    try:
        done = subprocess.run([NVIDIA_SMI, "--list-gpus"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def lockstep_python(*, gpu: bool, folder: Path) -> Path:
    """Returns a Python with Lockstep: this one on a processor; on a GPU one with JAX for CUDA, as uv.lock pins it.

    Raises:
        InstallationError: it cannot be installed.
    """
    if not gpu:
        return Path(sys.executable)
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder / "lockstep")}
    run_uv("Lockstep", "sync", "--frozen", *EXTRAS, f"--python={sys.executable}", cwd=ROOT, env=environment)
    return folder / "lockstep" / "bin" / "python"


def pytorch_python(*, folder: Path) -> Path:
    """Returns a Python with PyTorch.

    Raises:
        InstallationError: it cannot be installed.
    """
    return install("PyTorch", PYTORCH, folder=folder / "pytorch")


def environment_of(*, gpu: bool) -> dict[str, str]:
    """Returns the variables of a side's process: no compiled program of an earlier run, and no memory taken ahead."""
    dropped = ("JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "XLA_FLAGS", "KERAS_BACKEND")
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # both sides' processes share the GPU's memory
    if not gpu:
        variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return variables


@final
class Side:
    """A side's process.

    Args:
        kind: the side.
        python: its Python.
        order: what it is to do.
        environment: its variables.
        log: where its messages go.
    """

    def __init__(self, kind: Kind, *, python: Path, order: Order, environment: Mapping[str, str], log: Path) -> None:
        self._kind, self._log = kind, log
        with log.open("w") as messages:
            self._process = subprocess.Popen(
                [str(python), "-m", kind.module, order.text()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                bufsize=0,  # so that what select sees is all that there is
                env=dict(environment),
                cwd=HERE,
            )

    def ask(self) -> None:
        """Asks for a round.

        Raises:
            SideError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error("has ended") from None

    def hear(self) -> dict[str, Any]:
        """Waits for what it says next.

        Raises:
            SideError: it has ended, or says nothing within `ANSWER_S` seconds.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], NOTICE_S)[0]:
                continue
            line = self._process.stdout.readline().decode()
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
            if not line:
                raise self._error("has ended")
        raise self._error(f"has said nothing for {ANSWER_S:.0f} s")

    def end(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _error(self, what: str) -> SideError:
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-NUM_LINES:])
        return SideError(f"{self._kind.title} {what}; see {self._log}:\n{last}")
