"""Reads the environment variables by which launchers other than Lockstep's own service describe a job to a process.

Each function returns a `Place`, or None if its launcher has not started this process. Most launchers say which process
this is, how many there are, and the first one's address. The addresses of the others are not known before the processes
meet.

Sources of the names: JAX (``jax.distributed.initialize``), PyTorch ("torchrun: Environment Variables"), Open MPI
("Environment variables set for MPI applications"), MPICH's Hydra (``PMI_*``), Slurm ("srun: output environment
variables"), Kubernetes ("Indexed Job", "Job with Pod-to-Pod Communication"), JobSet (pod names), and the variables that
Google's examples for JobSet set.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from lockstep.errors import ConfigError
from lockstep.topology.addresses import ALLOWED, MAX_PORT, advice, is_address, is_host, is_port, join

Environment: TypeAlias = Mapping[str, str]

DEFAULT_PORT: Final = 8476
"""The port of the first process if the launcher names none and only one job runs on the machine."""

TORCH_PORT: Final = 29500
LOOPBACK: Final = "127.0.0.1"
COORDINATOR: Final = "JAX_COORDINATOR_ADDRESS"
COORDINATOR_PORT: Final = "JAX_COORDINATOR_PORT"

_MPI: Final = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
)
_PLACES: Final = (
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", COORDINATOR),
    ("WORLD_SIZE", "RANK"),
    *(names[:2] for names in _MPI),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
)
"""The variables by which each launcher describes a process's place. The first one is the number of processes."""

PLACE_VARIABLES: Final = frozenset(
    {"JAX_PROCESS_COUNT", "JOB_COMPLETION_INDEX", *(name for names in _PLACES for name in names)}
)
"""The variables by which launchers tell a process which of several it is. Without any of them, a process is alone."""

_FIRST_HIGH_PORT: Final = 61440  # above the range of ephemeral ports
_NUM_HIGH_PORTS: Final = 4096
_MAX_HOSTS: Final = 100_000
_NODE_SET: Final = re.compile(r"\[([^\]]*)\]")


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of this process in its job, as a launcher describes it.

    Attributes:
        source: the names of the variables that describe it, for messages.
        num_processes: the number of processes that train in step.
        process_id: the number of this process, from 0.
        addresses: the "host:port" of each process by its number; "" if it is not known. The first one is always known.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    source: str
    num_processes: int
    process_id: int
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(
                f"{self.source}: the process's number is not below their count",
                received=f"number {self.process_id} of {self.num_processes}",
                allowed="0 to count - 1",
            )


def from_jax(env: Environment) -> Place | None:
    """Reads ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.

    The address alone does not describe this process; it complements the variables of another launcher.
    """
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if not env.get("JAX_PROCESS_ID"):
        return None
    _require(env, names if env.get("JAX_NUM_PROCESSES") == "1" else (COORDINATOR, *names))
    address = _coordinator(env, DEFAULT_PORT) if env.get(COORDINATOR) else join(LOOPBACK, DEFAULT_PORT)
    return _place(", ".join((COORDINATOR, *names)), env, *names, coordinator=address)


def from_torchrun(env: Environment) -> Place | None:
    """Reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as torchrun sets them.

    If torchrun's agent keeps its own store at ``MASTER_PORT``, the next port is used instead (the previous one after
    65535).
    """
    if not env.get("RANK") or not env.get("WORLD_SIZE"):
        return None
    if env["WORLD_SIZE"] != "1":
        _require(env, ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    port = _port(env, "MASTER_PORT", TORCH_PORT)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = port + 1 if port < MAX_PORT else port - 1
    address = join(_host(env, "MASTER_ADDR") if env.get("MASTER_ADDR") else LOOPBACK, port)
    return _place("RANK, WORLD_SIZE, MASTER_ADDR", env, "WORLD_SIZE", "RANK", coordinator=address)


def from_mpi(env: Environment) -> Place | None:
    """Reads ``OMPI_COMM_WORLD_RANK`` and ``_SIZE`` (Open MPI), or ``PMI_RANK`` and ``PMI_SIZE`` (MPICH, Intel MPI).

    MPI names no address. The address is ``JAX_COORDINATOR_ADDRESS`` if it is set, else this machine's loopback address
    if all processes are on it, else ``MASTER_ADDR``, or else the first node of Slurm's step or job.
    """
    kind = next((names for names in _MPI if env.get(names[0]) and env.get(names[1])), None)
    if kind is None:
        return None
    count, number, local_count = kind
    port = _high_port(
        next((env[name] for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID") if name in env), "")
    )
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if env.get(COORDINATOR):
        address = _coordinator(env, port)
    elif env.get(local_count) == env[count] or env[count] == "1":
        address = join(LOOPBACK, port)
    elif env.get("MASTER_ADDR"):
        address = join(_host(env, "MASTER_ADDR"), _port(env, "MASTER_PORT", port))
    elif nodes:
        address = join(expand_nodes(nodes)[0], port)
    else:
        raise ConfigError(
            f"{count}: MPI does not say where its first process is, and not all are on this machine",
            action=f"set {COORDINATOR} to its host:port (mpirun -x {COORDINATOR}=...)",
        )
    return _place(f"{number}, {count}", env, count, number, coordinator=address)


def from_slurm(env: Environment) -> Place | None:
    """Reads a step's ``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS`` and ``SLURM_STEP_NODELIST``, as ``srun`` sets them.

    A batch script outside ``srun`` is one process, however many tasks the job has. The port is computed from the
    numbers of job and step, unless ``JAX_COORDINATOR_PORT`` names one.
    """
    if not env.get("SLURM_PROCID") or not env.get("SLURM_STEP_NODELIST"):
        return None
    count = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    _require(env, ("SLURM_PROCID", "SLURM_STEP_NODELIST", count))
    nodes = expand_nodes(env["SLURM_STEP_NODELIST"])
    step = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    port = _port(env, COORDINATOR_PORT, _high_port(step))
    coordinator = _coordinator(env, port) if env.get(COORDINATOR) else join(nodes[0], port)
    hosts = _slurm_hosts(env, nodes)
    others = tuple(join(host, port) for host in hosts[1:]) if len(hosts) == _number(env, count) else ()
    return _place("SLURM_PROCID, " + count, env, count, "SLURM_PROCID", coordinator=coordinator, others=others)


def from_kubernetes(env: Environment) -> Place | None:
    """Reads ``JOB_COMPLETION_INDEX``, which an indexed Job sets, and variables that its pod template must set.

    - The number of processes: ``JAX_NUM_PROCESSES`` or ``JAX_PROCESS_COUNT``. Without it, each pod is a separate job.
    - For a JobSet of several Jobs: ``JOB_INDEX`` and ``PROCESSES_IN_JOB``.
    - The first pod's address: ``JAX_COORDINATOR_ADDRESS``, or ``JOBSET_NAME`` and ``REPLICATED_JOB_NAME``, from which
      the host name that JobSet gives to the pod is derived.
    """
    count = next((name for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT") if env.get(name)), None)
    if not env.get("JOB_COMPLETION_INDEX") or count is None:
        return None
    number = _number(env, "JOB_COMPLETION_INDEX")
    if env.get("JOB_INDEX") or env.get("PROCESSES_IN_JOB"):
        number = _number_in_job_set(env, count, number)
    if env.get(COORDINATOR):
        address = _coordinator(env, DEFAULT_PORT)
    elif env.get("JOBSET_NAME") and env.get("REPLICATED_JOB_NAME"):
        host = f"{env['JOBSET_NAME']}-{env['REPLICATED_JOB_NAME']}-0-0.{env['JOBSET_NAME']}"
        address = join(host, _port(env, COORDINATOR_PORT, DEFAULT_PORT))
    elif env[count] == "1":
        address = join(LOOPBACK, DEFAULT_PORT)
    else:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX and {count} are set, but the first pod's address is not set",
            action=f"set {COORDINATOR} to JOB-0.SUBDOMAIN, or JOBSET_NAME and REPLICATED_JOB_NAME, in the pod template",
        )
    variables = {**env, "JOB_COMPLETION_INDEX": str(number)}
    return _place("JOB_COMPLETION_INDEX, " + count, variables, count, "JOB_COMPLETION_INDEX", coordinator=address)


LAUNCHERS: Final[tuple[Callable[[Environment], Place | None], ...]] = (
    from_jax,
    from_torchrun,
    from_mpi,
    from_slurm,
    from_kubernetes,
)
"""The launchers in the order in which they are tried: from the innermost one to the one that allocated the machines."""


def find_place(env: Environment) -> Place | None:
    """Returns the place that the innermost launcher gives to this process; None if no launcher has started it.

    Launchers are often nested (torchrun within Slurm), and then count different things: the innermost one is right.
    JAX's and torchrun's variables are not nested in this way: both describe this very program, and must agree.

    Args:
        env: the environment of the process.

    Raises:
        ConfigError: variables are missing, are not numbers, contradict each other, or do not say which of several
            processes this one is.
    """
    jax, torchrun = from_jax(env), from_torchrun(env)
    if jax is not None and torchrun is not None:
        require_same(jax, torchrun)
    found = next((place for place in (launcher(env) for launcher in LAUNCHERS) if place is not None), None)
    if found is None:
        _require_complete_place(env)
    elif env.get("JAX_NUM_PROCESSES") and _number(env, "JAX_NUM_PROCESSES") != found.num_processes:
        raise ConfigError(
            f"JAX_NUM_PROCESSES and {found.source} contradict each other",
            received=f"{env['JAX_NUM_PROCESSES']} and {found.num_processes} processes",
            action="set JAX_PROCESS_ID as well, or leave JAX_NUM_PROCESSES out",
        )
    return found


def require_same(one: Place, other: Place) -> None:
    """Checks that two sources give this process the same place.

    Raises:
        ConfigError: the places differ.
    """
    if (one.num_processes, one.process_id) != (other.num_processes, other.process_id):
        raise ConfigError(
            f"{one.source} and {other.source} contradict each other",
            received=f"process {one.process_id} of {one.num_processes} and {other.process_id} of {other.num_processes}",
            action="set one of the two",
        )


def expand_nodes(text: str) -> list[str]:
    """Expands a node list of Slurm: ``n[01-03,7],x`` is n01, n02, n03, n7, x.

    Args:
        text: the node list.

    Raises:
        ConfigError: the text is not a node list, or has more than 100 000 nodes.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+|[\[\]]", text):
        hosts += _expand(part, whole=text)
        if len(hosts) > _MAX_HOSTS:
            raise _bad_nodes(text)
    if not hosts:
        raise _bad_nodes(text)
    return hosts


def _expand(part: str, *, whole: str) -> list[str]:
    found = _NODE_SET.search(part)
    if found is None:
        if "[" in part or "]" in part:
            raise _bad_nodes(whole)
        return [part]
    members: list[str] = []
    for span in found[1].split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if ends is None or int(ends[2] or ends[1]) - int(ends[1]) > _MAX_HOSTS:
            raise _bad_nodes(whole)
        width = len(ends[1])
        members += [f"{number:0{width}}" for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1)]
    rests = _expand(part[found.end() :], whole=whole) if found.end() < len(part) else [""]
    return [part[: found.start()] + member + rest for member in members for rest in rests]


def _bad_nodes(text: str) -> ConfigError:
    return ConfigError("a list of Slurm's nodes", received=text, allowed="names such as node[01-03,7],other")


def _slurm_hosts(env: Environment, nodes: list[str]) -> list[str]:
    """Returns the host of each task, in the order of tasks; [] if the tasks are not distributed node by node."""
    if env.get("SLURM_DISTRIBUTION", "block").partition(",")[0].partition(":")[0] not in ("block", "unknown"):
        return []
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != len(nodes):
        return []
    return [host for host, count in zip(nodes, counts, strict=True) for _ in range(count)]


def _place(
    source: str, env: Environment, count: str, number: str, *, coordinator: str, others: tuple[str, ...] = ()
) -> Place:
    num_processes = _number(env, count)
    unknown = ("",) * (num_processes - 1)
    return Place(
        source=source,
        num_processes=num_processes,
        process_id=_number(env, number),
        addresses=(coordinator, *(others or unknown)),
    )


def _require(env: Environment, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not env.get(name)]
    if missing:
        present = [name for name in names if name not in missing]
        raise ConfigError(
            f"{' and '.join(missing)} not set, while {' and '.join(present)} is", action="set all of them, or none"
        )


def _require_complete_place(env: Environment) -> None:
    """Raises a ConfigError if variables say that there are several processes, but not which of them this one is."""
    for names in _PLACES:
        # A batch script of Slurm has the number 0 outside any step.
        found = [name for name in names if env.get(name) and (name, env[name]) != ("SLURM_PROCID", "0")]
        if found and env.get(names[0]) != "1":
            _require(env, names)
    if env.get("JAX_PROCESS_COUNT", "1") != "1":
        _require(env, ("JAX_PROCESS_COUNT", "JOB_COMPLETION_INDEX"))


def _number_in_job_set(env: Environment, count: str, number: int) -> int:
    """Returns a pod's number among the pods of all Jobs of a JobSet, from its number in its own Job."""
    if not env.get("JOB_INDEX") and env["PROCESSES_IN_JOB"] == env[count]:
        return number  # there is one Job
    if env.get("JOB_INDEX") != "0":
        _require(env, ("JOB_INDEX", "PROCESSES_IN_JOB"))
    if env.get("PROCESSES_IN_JOB") and number >= _number(env, "PROCESSES_IN_JOB"):
        raise ConfigError(
            "JOB_COMPLETION_INDEX",
            received=env["JOB_COMPLETION_INDEX"],
            allowed=f"a number below PROCESSES_IN_JOB, {env['PROCESSES_IN_JOB']}",
        )
    return number if env["JOB_INDEX"] == "0" else number + _number(env, "JOB_INDEX") * _number(env, "PROCESSES_IN_JOB")


def _number(env: Environment, name: str) -> int:
    text = env[name]
    if not text.isdecimal():
        raise ConfigError(name, received=text, allowed="a whole number")
    return int(text)


def _port(env: Environment, name: str, default: int) -> int:
    """Returns the port in a variable; the default if the variable is not set."""
    text = env.get(name)
    if not text:
        return default
    if not is_port(text):
        raise ConfigError(name, received=text, allowed=f"a port of 1 to {MAX_PORT}")
    return int(text)


def _host(env: Environment, name: str) -> str:
    text = env[name]
    if not is_host(text):
        raise ConfigError(name, received=text, allowed="a host's name or address without a port", action=advice(text))
    return text


def _coordinator(env: Environment, port: int) -> str:
    """Returns the coordinator's address, with a port added if it has none."""
    text = env[COORDINATOR]
    if is_address(text):
        return text
    if not is_host(text):
        raise ConfigError(COORDINATOR, received=text, allowed=f"{ALLOWED}, or a host alone", action=advice(text))
    return join(text, _port(env, COORDINATOR_PORT, port))


def _high_port(job: str) -> int:
    """Returns a port that is the same in every process of a job, and probably different for another job."""
    return _FIRST_HIGH_PORT + zlib.crc32(job.encode()) % _NUM_HIGH_PORTS
