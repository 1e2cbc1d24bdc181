"""NVIDIA's driver: whether it answers, and whether it is new enough for the CUDA of JAX's plugin."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

from lockstep.doctor.checks.hardware import Hardware, find_hardware
from lockstep.doctor.findings import Finding, Result, error
from lockstep.doctor.surroundings import Surroundings

LEAST_DRIVERS: Final = {12: 525, 13: 580}
"""The least version of the driver for each version of CUDA, as JAX's page about its installation says."""


def check_drivers(surroundings: Surroundings) -> Result:
    """Compares the version of NVIDIA's driver with that of the CUDA plugin, and the plugin with jaxlib."""
    hardware = find_hardware(surroundings)
    if not hardware.num_gpus and not hardware.problem:
        return Result(skipped="no NVIDIA GPU")
    plugins = {cuda: version for cuda in LEAST_DRIVERS if (version := _version(f"jax-cuda{cuda}-plugin")) is not None}
    findings = judge_drivers(hardware, plugins=plugins, jaxlib=_version("jaxlib") or "")
    return Result(findings=findings, detail=f"driver {hardware.driver or 'unknown'}")


def judge_drivers(hardware: Hardware, *, plugins: dict[int, str], jaxlib: str) -> tuple[Finding, ...]:
    """Returns the faults of the driver.

    Args:
        hardware: what the machine has.
        plugins: the versions of the installed CUDA plugins, by the version of CUDA.
        jaxlib: the version of jaxlib; empty if it is not installed.
    """
    found: list[Finding] = []
    if hardware.problem:
        mismatch = "mismatch" in hardware.problem.lower()
        found.append(
            error(
                "NVIDIA's driver does not answer",
                received=hardware.problem,
                needed="a driver that nvidia-smi can ask",
                # The kernel's module is older than the libraries until it is loaded anew.
                remedy="sudo reboot" if mismatch else "sudo modprobe nvidia && nvidia-smi",
            )
        )
    major = re.match(r"\d+", hardware.driver)
    for cuda, version in plugins.items():
        least = LEAST_DRIVERS[cuda]
        if major is not None and int(major[0]) < least:
            found.append(
                error(
                    f"NVIDIA's driver is too old for CUDA {cuda}",
                    received=f"driver {hardware.driver}",
                    needed=f"driver {least} or later for jax-cuda{cuda}-plugin",
                    remedy=f"sudo apt install nvidia-driver-{least}"
                    if cuda == min(LEAST_DRIVERS)
                    else "pip install 'jax[cuda12]'",
                )
            )
        if jaxlib and version != jaxlib:
            found.append(
                error(
                    "JAX's CUDA plugin and jaxlib do not belong together",
                    received=f"jax-cuda{cuda}-plugin {version}, jaxlib {jaxlib}",
                    needed="the same version of both",
                    remedy=f"pip install 'jax[cuda{cuda}]=={jaxlib}'",
                )
            )
    return tuple(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
