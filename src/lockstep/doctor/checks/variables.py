"""Environment variables that break Keras, JAX, Ray or Lockstep, or make them slow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from lockstep.client.addresses import CLIENT_VARIABLES
from lockstep.containers.engine import ENGINE_VARIABLE
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.home import HOME_VARIABLE

OF_USERS: Final = frozenset(
    {
        *CLIENT_VARIABLES,
        *(HOME_VARIABLE, ENGINE_VARIABLE, "LOCKSTEP_PROJECT", "LOCKSTEP_CLUSTER_TOKEN"),
        *("LOCKSTEP_PEER_TIMEOUT_S", "LOCKSTEP_MEETING_TIMEOUT_S", "LOCKSTEP_ACCELERATORS"),
    }
)
"""The variables of Lockstep that users set."""
OF_JOBS: Final = frozenset(
    {
        *("LOCKSTEP_SPOOL", "LOCKSTEP_MACHINE", "LOCKSTEP_ENGINE", "LOCKSTEP_ENGINE_DRIVER"),
        *("LOCKSTEP_SERVER_TOKEN", "LOCKSTEP_HEARTBEAT"),
    }
)
"""The variables that Lockstep sets for its own processes and for programs of jobs."""

_PREFIX: Final = "LOCKSTEP_"
_FORCED_DEVICES: Final = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def check_variables(surroundings: Surroundings) -> Result:
    """Looks at the variables that programs inherit."""
    findings = tuple(judge_variables(surroundings.env, num_cpus=os.cpu_count() or 1))
    return Result(findings=findings, detail="no variable breaks anything")


def judge_variables(env: Mapping[str, str], *, num_cpus: int) -> Iterator[Finding]:
    """Yields the faults of environment variables.

    Args:
        env: the variables.
        num_cpus: the number of processors.
    """
    backend = env.get("KERAS_BACKEND", "jax")
    if backend != "jax":
        yield error(
            "Keras would not run on JAX",
            received=f"KERAS_BACKEND={backend}",
            needed="jax, or no such variable",
            remedy="unset KERAS_BACKEND",
        )
    if env.get("PYTHONDONTWRITEBYTECODE"):
        yield warning(
            "every process of Ray compiles all of Ray anew",
            received="PYTHONDONTWRITEBYTECODE is set",
            needed="no such variable",
            remedy="unset PYTHONDONTWRITEBYTECODE",
        )
    yield from _of_xla(env, num_cpus=num_cpus)
    yield from _of_clusters(env)
    yield from _of_proxies(env)
    yield from _of_lockstep(env)


def _of_xla(env: Mapping[str, str], *, num_cpus: int) -> Iterator[Finding]:
    flags = env.get("XLA_FLAGS", "")
    forced = _FORCED_DEVICES.search(flags)
    num_devices = int(forced[1]) if forced else 0
    num_threads = int(env["NPROC"]) if env.get("NPROC", "").isdecimal() else num_cpus
    if num_devices > 1 and num_threads < 2 * num_devices:
        yield error(
            "virtual devices would wait for each other for ever",
            received=f"XLA_FLAGS makes {num_devices} CPU devices, and XLA has {num_threads} threads",
            needed="at least twice as many threads as devices; Lockstep sees to it for devices that it makes itself",
            remedy=f"export NPROC={2 * num_devices}   # or: unset XLA_FLAGS",
        )
    for name in ("JAX_PLATFORM_NAME", "XRT_TPU_CONFIG"):
        if env.get(name):
            yield warning(
                f"{name} is no longer read as it was",
                received=f"{name}={env[name]}",
                needed="JAX_PLATFORMS",
                remedy=f"unset {name}",
            )
    if env.get("JAX_PLATFORMS") and not re.fullmatch(
        r"(cpu|cuda|gpu|rocm|tpu)(,(cpu|cuda|gpu|rocm|tpu))*", env["JAX_PLATFORMS"]
    ):
        yield error(
            "JAX_PLATFORMS names a platform that Lockstep does not know",
            received=env["JAX_PLATFORMS"],
            needed="cpu, cuda, rocm or tpu, separated by commas",
            remedy="unset JAX_PLATFORMS",
        )
    if env.get("JAX_DISABLE_JIT", "").lower() in ("1", "true"):
        yield warning(
            "JAX compiles nothing",
            received="JAX_DISABLE_JIT is set",
            needed="no such variable, except to debug",
            remedy="unset JAX_DISABLE_JIT",
        )
    if re.search(r"cuda|cudnn", env.get("LD_LIBRARY_PATH", "")):
        yield warning(
            "JAX may load other CUDA libraries than those that it was installed with",
            received="LD_LIBRARY_PATH names folders of CUDA",
            needed="a path without them",
            remedy="unset LD_LIBRARY_PATH",
        )


def _of_clusters(env: Mapping[str, str]) -> Iterator[Finding]:
    if env.get("RAY_ADDRESS"):
        yield warning(
            "programs that use Ray join a cluster that is not Lockstep's",
            received="RAY_ADDRESS is set",
            needed="no such variable, or `lockstep cluster attach`",
            remedy="unset RAY_ADDRESS",
        )
    if env.get("TF_CONFIG"):
        yield from _of_tf_config(env["TF_CONFIG"])


def _of_tf_config(text: str) -> Iterator[Finding]:
    try:
        document = json.loads(text)
        peers = [address for role in document.get("cluster", {}).values() for address in role]
    except (ValueError, AttributeError, TypeError):
        yield error(
            "programs cannot read who their peers are",
            received="TF_CONFIG is not JSON of the form that TensorFlow defines",
            needed='{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}',
            remedy="unset TF_CONFIG",
        )
        return
    if len(peers) > 1:
        yield warning(
            "programs wait for peers when they start",
            received=f"TF_CONFIG names {len(peers)} processes",
            needed="no TF_CONFIG in a shell, unless you start all of them",
            remedy="unset TF_CONFIG",
        )


def _of_proxies(env: Mapping[str, str]) -> Iterator[Finding]:
    named = [name for name in _PROXIES if env.get(name)]
    exempt = f"{env.get('no_proxy', '')},{env.get('NO_PROXY', '')}"
    if named and "*" not in exempt and not ("127.0.0" in exempt and "localhost" in exempt):
        yield warning(
            "processes of a job may look for each other behind a proxy",
            received=f"{', '.join(named)} without this machine in NO_PROXY",
            needed="localhost and 127.0.0.0/8 in NO_PROXY, and the addresses of other machines of jobs",
            remedy="export NO_PROXY=localhost,127.0.0.1,127.0.0.2,127.0.0.0/8 no_proxy=localhost,127.0.0.1,127.0.0.2",
        )


def _of_lockstep(env: Mapping[str, str]) -> Iterator[Finding]:
    known = OF_USERS | OF_JOBS
    for name in sorted(env):
        if name.startswith(_PREFIX) and name not in known and not name.startswith(f"{_PREFIX}TEST_"):
            near = get_close_matches(name, OF_USERS, n=1)
            yield warning(
                "a variable of Lockstep has no effect",
                received=name,
                needed=near[0] if near else ", ".join(sorted(OF_USERS)),
                remedy=f"unset {name}",
            )
