"""The sides: their environments, and what they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from harness.environments import run_uv
from harness.sides import HERE, SideSpec

from training.rounds import Order

ROOT: Final = HERE.parent
NVIDIA_SMI: Final = shutil.which("nvidia-smi") or "nvidia-smi"
EXTRAS: Final = ("--extra", "cuda", "--extra", "language")


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


def variables_of(*, gpu: bool) -> dict[str, str]:
    """Returns the variables of a side's process: no compiled program of an earlier run, and no memory taken ahead."""
    given = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    given["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # both sides' processes share the GPU's memory
    return given if gpu else {**given, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def spec_of(name: str, *, python: Path, order: Order, gpu: bool) -> SideSpec:
    """Returns a side with its order.

    Args:
        name: a name of `KINDS`.
        python: its Python.
        order: what it is to do.
        gpu: whether it may use the GPU.
    """
    return SideSpec(
        title=KINDS[name].title,
        python=python,
        module=KINDS[name].module,
        order=asdict(order),
        variables=variables_of(gpu=gpu),
    )
