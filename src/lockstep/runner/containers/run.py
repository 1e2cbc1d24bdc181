"""Manages a replica's container from its image to its removal."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, final

import psutil

from lockstep.containers import (
    ContainerEngine,
    EngineAnswer,
    create,
    current_runner,
    ensure_image,
    inspect,
    open_engine,
    reap,
)
from lockstep.containers.commands import execute, find_port
from lockstep.errors import ContainerEngineError, ImageError
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.jobs.running.packages import Code
from lockstep.runner.containers.program import ContainerProgram
from lockstep.runner.containers.spec import ContainerPlan, NodeFacts, plan_container
from lockstep.runner.memory import memory_limit_bytes

GPU_DESCRIPTIONS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_MAX_FILES: Final = 1 << 20
_MAX_SHARED_BYTES: Final = 1 << 62


@final
class ContainerRun:
    """Creates, starts and removes the container of one replica.

    Args:
        order: the order of the replica, which must name a container.
        report_line: called with a line of text about each action.

    Attributes:
        image_id: the id of the image; "" until `prepare` has found it.
    """

    def __init__(self, order: ReplicaOrder, *, report_line: Callable[[str], object]) -> None:
        assert order.container is not None
        self._order = order
        self._container = order.container
        self._report_line = report_line
        self._cancelled = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._engine: ContainerEngine | None = None
        self._name = ""
        self.image_id = ""

    def prepare(self, code: Sequence[Code]) -> None:
        """Finds the engine, pulls the image and creates the container. Blocks; `discard` ends it from another thread.

        Args:
            code: the order's packages on the node.

        Raises:
            ImageError: If there is no such image, if it is not the ordered one, or if no container can be created from
                it.
            ContainerEngineError: If there is no engine, or if the engine or the registry fails.
        """
        self._idle.clear()
        try:
            if self._cancelled.is_set():  # `discard` did not wait for this call
                raise ContainerEngineError("the container was cancelled")
            self._prepare(code)
        finally:
            self._idle.set()

    def _prepare(self, code: Sequence[Code]) -> None:
        order, container = self._order, self._container
        engine = self._engine = open_engine()
        with contextlib.suppress(ContainerEngineError):  # the next container's start tries again
            reap(engine, accept=lambda labels: labels.is_orphan)
        self.image_id = ensure_image(
            engine,
            container.image,
            start=str(Path(order.spool).parent),
            folder=Path(container.images_folder),
            cancelled=self._cancelled,
            say=self._report_line,
        )
        if container.image_id not in (None, self.image_id):
            raise ImageError(
                f"image {container.image} is not the one that was deployed",
                received=self.image_id,
                allowed=container.image_id,
                action="deploy a new version",
            )
        env_file = Path(order.spool) / "container.env"
        facts = node_facts()
        plan = plan_container(order, engine=engine, code=code, env_file=str(env_file), facts=facts)
        for folder in plan.folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._name = plan.spec.name
        self._create(engine, plan, env_file=env_file)

    def _create(self, engine: ContainerEngine, plan: ContainerPlan, *, env_file: Path) -> None:
        env_file.unlink(missing_ok=True)
        descriptor = os.open(env_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{line}\n" for line in plan.env_lines)
        try:
            answer = engine.call(create(engine, plan.spec), cancelled=self._cancelled, env=plan.inherited_env)
        finally:
            env_file.unlink(missing_ok=True)
        if answer.code:
            raise _refusal(engine, self._container.image, answer)

    def start(self, *, on_end: Callable[[], object]) -> ContainerProgram:
        """Starts the created container. Blocks until its program runs.

        Args:
            on_end: called once, from another thread, when the program has ended.

        Raises:
            ImageError: If the image does not have what it has to run.
            ContainerEngineError: If the engine could not start the container.
        """
        assert self._engine is not None
        limit = self._container.memory_bytes
        total = memory_limit_bytes()
        return ContainerProgram(
            self._engine,
            name=self._name,
            folder=Path(self._order.spool),
            image=self._container.image,
            memory_limit_bytes=total if limit is None else min(limit, total),
            on_end=on_end,
        )

    def find_address(self, port: int) -> str | None:
        """Returns the address on this node, as ``host:port``, of a port that the started container publishes.

        Returns:
            The address; None if the container has ended already.

        Raises:
            ContainerEngineError: If the engine does not say it.
        """
        assert self._engine is not None
        answer = self._engine.call(find_port(self._name, port))
        address = answer.output.strip().partition("\n")[0]
        if answer.code or ":" not in address:
            state = inspect(self._engine, self._name)
            if state is None or not state.running:
                return None
            raise ContainerEngineError(f"{self._engine.kind} does not say where port {port} is: {answer.last_line}")
        return address

    @property
    def engine_env(self) -> Mapping[str, str]:
        """The environment variables of the engine's command."""
        return {} if self._engine is None else self._engine.env

    def enter(self, command: Sequence[str], terminal: str | None) -> list[str]:
        """Returns the command line that runs a command in the started container.

        Args:
            command: the command; empty for a shell.
            terminal: the kind of its terminal; None for none.
        """
        assert self._engine is not None
        return [self._engine.path, *execute(self._name, command, terminal=terminal)]

    def discard(self, *, timeout_s: float = 15.0) -> None:
        """Cancels what is in progress, and removes the container in any state. Idempotent."""
        self._cancelled.set()
        self._idle.wait(timeout_s)
        if self._engine is not None:
            with contextlib.suppress(ContainerEngineError):  # the reaper tries again
                reap(self._engine, accept=lambda labels: labels.spool == self._order.spool)


def _refusal(engine: ContainerEngine, image: str, answer: EngineAnswer) -> Exception:
    reason = answer.last_line
    if "entrypoint" in reason.lower() or "no command" in reason.lower():
        return ImageError(f"image {image}: {reason}", action="give containerCommand")
    return ContainerEngineError(f"{engine.kind} could not make the container: {reason}")


def node_facts() -> NodeFacts:
    """Returns the facts about this node."""
    total = psutil.virtual_memory().total
    return NodeFacts(
        env=os.environ,
        user=f"{os.geteuid()}:{os.getegid()}",
        runner=current_runner(),
        num_cpus=os.cpu_count() or 1,
        memory_bytes=total,
        ulimits=_ulimits(),
        tpu_devices=tuple(sorted(str(path) for path in (*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("*")))),
        has_gpu_descriptions=any(any(folder.glob("*nvidia*")) for folder in GPU_DESCRIPTIONS),
    )


def _ulimits() -> dict[str, int]:
    """Returns this process's own limits, because an engine's defaults may exceed what its user may give."""
    limits = {
        "nofile": min(_hard(resource.RLIMIT_NOFILE), _MAX_FILES),
        "memlock": min(_hard(resource.RLIMIT_MEMLOCK), _MAX_SHARED_BYTES),
    }
    with contextlib.suppress(OSError, ValueError):  # not Linux
        most = int(Path("/proc/sys/kernel/pid_max").read_text())  # podman caps its own limit at this value
        limits["nproc"] = min(_hard(resource.RLIMIT_NPROC), most)
    return limits


def _hard(kind: int) -> int:
    limit = resource.getrlimit(kind)[1]
    return _MAX_SHARED_BYTES if limit == resource.RLIM_INFINITY else limit
