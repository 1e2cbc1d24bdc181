"""The devices: what JAX finds, beside what the machine has."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast, final

from lockstep.doctor.checks.hardware import Hardware, find_hardware
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.programs import Answer, ask
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import counted

PROBE_S: Final = 45.0
"""How long JAX may take to find its devices, in seconds. A GPU's first start takes some."""

_PROBE: Final = """
import collections, json, jax
devices = collections.Counter(device.platform for device in jax.devices())
print(json.dumps({"jax": jax.__version__, "devices": devices}))
"""
_CUDA_PLUGINS: Final = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_GPU_PLATFORMS: Final = ("gpu", "cuda", "rocm")
_INSTALL_CUDA: Final = "pip install 'lockstep-train[cuda]'"
_INSTALL_TPU: Final = "pip install 'lockstep-train[tpu]'"


@final
@dataclass(frozen=True, kw_only=True)
class Seen:
    """What JAX finds.

    Attributes:
        devices: the number of devices by platform, such as ``{"cpu": 1}``.
        problem: why JAX did not start; empty if it did.
    """

    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    problem: str = ""


def check_devices(surroundings: Surroundings) -> Result:
    """Compares the devices that JAX finds with those that the machine has.

    JAX starts in a process of its own. It is never started where it would take a device from a job: on a service's
    machine, and for TPUs, which one process at a time can use.
    """
    hardware = find_hardware(surroundings)
    packages = {name: importlib.util.find_spec(name) is not None for name in ("libtpu", *_CUDA_PLUGINS)}
    seen = None
    if not surroundings.of_service and not hardware.num_tpus:
        seen = read_probe(_probe(surroundings.env, hardware=hardware, packages=packages))
    findings = judge(hardware, seen=seen, packages=packages, env=surroundings.env)
    return Result(findings=findings, detail=_describe(hardware, seen))


def _probe(env: Mapping[str, str], *, hardware: Hardware, packages: Mapping[str, bool]) -> Answer | None:
    probed = {**env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # a job may need the memory of the GPU
    uses_cuda = hardware.num_gpus > 0 and any(packages[name] for name in _CUDA_PLUGINS)
    if packages["libtpu"] and not env.get("JAX_PLATFORMS"):  # else JAX waits for a TPU that is not there
        probed["JAX_PLATFORMS"] = "cuda,cpu" if uses_cuda else "cpu"
    return ask([sys.executable, "-P", "-c", _PROBE], env=probed, limit_s=PROBE_S)


def read_probe(answer: Answer | None) -> Seen:
    """Reads what the probe printed.

    Args:
        answer: the end of the probe; None if Python itself was not found.
    """
    if answer is None:
        return Seen(problem="Python was not found")
    if answer.code is None:
        return Seen(problem=f"JAX did not start within {PROBE_S:.0f} s")
    try:
        document = json.loads(answer.output.strip().splitlines()[-1])
        return Seen(devices={str(name): int(count) for name, count in document["devices"].items()})
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return Seen(problem=answer.last_line)


def judge(
    hardware: Hardware, *, seen: Seen | None, packages: Mapping[str, bool], env: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Returns the faults of the devices.

    Args:
        hardware: what the machine has.
        seen: what JAX finds; None if it was not started.
        packages: whether ``libtpu`` and the plugins for CUDA are installed.
        env: the environment variables.
    """
    found = [_of_gpus(hardware, seen=seen, packages=packages, env=env), _of_tpus(hardware, packages=packages, env=env)]
    if seen is not None and seen.problem:
        found.append(_of_start(seen.problem, env=env))
    return tuple(finding for finding in found if finding is not None)


def _of_gpus(
    hardware: Hardware, *, seen: Seen | None, packages: Mapping[str, bool], env: Mapping[str, str]
) -> Finding | None:
    if not hardware.num_gpus:
        return None
    there = counted(hardware.num_gpus, "NVIDIA GPU")
    if not any(packages.get(name) for name in _CUDA_PLUGINS):
        return error(
            "this machine has NVIDIA GPUs that JAX cannot use",
            received=f"{there}, and no CUDA plugin of JAX: programs train on the CPU",
            needed="the extra cuda",
            remedy=_INSTALL_CUDA,
        )
    if _hides_gpus(env.get("JAX_PLATFORMS", "")):
        return warning(
            "JAX_PLATFORMS hides the GPUs of this machine",
            received=f"{there}, JAX_PLATFORMS={env['JAX_PLATFORMS']}",
            needed="no JAX_PLATFORMS, or cuda in it",
            remedy="unset JAX_PLATFORMS",
        )
    if seen is None or seen.problem:
        return None
    num_seen = sum(seen.devices.get(name, 0) for name in _GPU_PLATFORMS)
    if num_seen < hardware.num_gpus and not env.get("CUDA_VISIBLE_DEVICES"):
        return error(
            "JAX does not find all GPUs",
            received=f"{num_seen} of {there}",
            needed="a CUDA plugin and a driver that fit",
            remedy=f"{_INSTALL_CUDA}, then nvidia-smi",
        )
    return None


def _hides_gpus(platforms: str) -> bool:
    names = {name.strip() for name in platforms.split(",") if name.strip()}
    return bool(names) and not names & set(_GPU_PLATFORMS)


def _of_tpus(hardware: Hardware, *, packages: Mapping[str, bool], env: Mapping[str, str]) -> Finding | None:
    if hardware.num_tpus and not packages.get("libtpu"):
        return error(
            "this machine has TPUs that JAX cannot use",
            received=f"{counted(hardware.num_tpus, 'TPU chip')}, and no libtpu",
            needed="the extra tpu",
            remedy=_INSTALL_TPU,
        )
    if not hardware.num_tpus and packages.get("libtpu") and not env.get("JAX_PLATFORMS"):
        return warning(
            "JAX looks for a TPU at every start",
            received="libtpu is installed, and this machine has no TPU",
            needed="JAX_PLATFORMS, so that programs start at once",
            remedy=f"export JAX_PLATFORMS={'cuda,cpu' if hardware.num_gpus else 'cpu'}",
        )
    return None


def _of_start(problem: str, *, env: Mapping[str, str]) -> Finding:
    platforms, flags = env.get("JAX_PLATFORMS", ""), env.get("XLA_FLAGS", "")
    remedy = "pip install --force-reinstall jax jaxlib"
    if flags and ("flag" in problem.lower() or "signal" in problem.lower()):
        remedy = "unset XLA_FLAGS"
    elif platforms and ("backend" in problem or "JAX_PLATFORMS" in problem or "platform" in problem):
        remedy = "unset JAX_PLATFORMS"
    return error("JAX does not start", received=problem, needed="jax.devices() that returns", remedy=remedy)


def _describe(hardware: Hardware, seen: Seen | None) -> str:
    parts = [
        counted(number, noun)
        for number, noun in ((hardware.num_gpus, "NVIDIA GPU"), (hardware.num_tpus, "TPU chip"))
        if number
    ]
    here = " and ".join(parts) or "no accelerator"
    if seen is None:
        return here
    devices = cast("Mapping[str, int]", seen.devices)
    return f"{here}; JAX finds {', '.join(f'{count} {name}' for name, count in sorted(devices.items())) or 'nothing'}"
