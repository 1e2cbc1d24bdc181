"""``lockstep local train``, with the flags of ``gcloud ai-platform local train``."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstep.cli.console import DEFAULT_PROJECT, VariablesOption, absolute_url
from lockstep.cli.job_flags import read_variables
from lockstep.containers import check_reference
from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, PortInUseError
from lockstep.home import Home
from lockstep.jobs.input.named_paths import named_paths
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import GangOrder, ReplicaOrder
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.runner.local import LOCAL_RUN, LocalRun
from lockstep.storage import join_url
from lockstep.submission.naming import flag_name
from lockstep.submission.packing import check_module
from lockstep.submission.python_environments import requirements_path
from lockstep.topology import CLUSTER_TOKEN

HOST: Final = "127.0.0.1"
DEFAULT_START_PORT: Final = 27182
DEFAULT_COUNT: Final = 2
"""The default number of workers, and of parameter servers, with ``--distributed``."""


def train(
    module_name: Annotated[
        str | None, typer.Option(help="The module to run, such as 'train'; an image has a program of its own.")
    ] = None,
    user_args: Annotated[
        list[str] | None, typer.Argument(metavar="-- USER_ARGS", help="Arguments of the program.")
    ] = None,
    image_uri: Annotated[
        str | None, typer.Option(help="Container image to run it in, by podman or docker; it sees no accelerators.")
    ] = None,
    package_path: Annotated[Path, typer.Option(help="Folder with the program's code, in which it runs.")] = Path(),
    requirements: Annotated[
        Path | None, typer.Option(help="File in --package-path that lists the Python packages that the program needs.")
    ] = None,
    no_environment: Annotated[
        bool, typer.Option("--no-environment", help="Build no Python environment, even if the folder lists packages.")
    ] = False,
    distributed: Annotated[bool, typer.Option("--distributed", help="Run several replicas.")] = False,
    worker_count: Annotated[
        int | None, typer.Option(min=0, help=f"Number of workers beside the master. Default: {DEFAULT_COUNT}.")
    ] = None,
    parameter_server_count: Annotated[
        int | None, typer.Option(min=0, help=f"Number of parameter servers. Default: {DEFAULT_COUNT}.")
    ] = None,
    start_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the first replica; the others have the next ones.")
    ] = DEFAULT_START_PORT,
    job_dir: Annotated[
        str | None, typer.Option(help="Folder or bucket URL for outputs, passed to the program as --job-dir.")
    ] = None,
    env: VariablesOption = None,
    use_chief_in_tf_config: Annotated[
        bool, typer.Option("--use-chief-in-tf-config", help="Call the first role chief, not master.")
    ] = False,
) -> None:
    """Run a program on this machine as a job would run it, without a service. Ctrl-C ends it.

    The exit code is that of the program, or of the replica that failed if there are several.
    """
    if not distributed and (worker_count is not None or parameter_server_count is not None):
        raise InvalidInputError("--worker-count and --parameter-server-count need --distributed")
    folder = package_path.resolve()
    if not folder.is_dir():
        raise MissingInputError(f"--package-path: no folder {folder}")
    if module_name is not None:
        check_module(folder, module=module_name, naming=flag_name)
    elif image_uri is None:
        raise InvalidInputError("--module-name is missing", allowed="a module, or --image-uri")
    named = requirements_path(requirements, folder=folder, naming=flag_name)
    if named is not None and no_environment:
        raise InvalidInputError("--requirements", received=named, allowed="not together with --no-environment")
    if named is not None and image_uri is not None:
        raise InvalidInputError("--requirements", received=named, allowed="not together with --image-uri")
    environment = PythonEnvironment(requirements=named, none=no_environment or image_uri is not None)
    url = None if job_dir is None else absolute_url(job_dir, what="--job-dir")
    args = (*(user_args or ()), *(() if url is None else ("--job-dir", url)))
    counts = {"chief" if use_chief_in_tf_config else "master": 1}
    if distributed:
        counts["worker"] = DEFAULT_COUNT if worker_count is None else worker_count
        counts["ps"] = DEFAULT_COUNT if parameter_server_count is None else parameter_server_count
    members = [(role, index) for role, count in counts.items() for index in range(count)]
    ports = find_ports(start_port, count=len(members)) if len(members) > 1 else []
    mark = Path(tempfile.gettempdir(), f"lockstep-local-{uuid.uuid4().hex}")
    order = gang_order(
        members,
        ports=ports,
        command=args if image_uri is not None else ("-m", module_name or "", *args),
        container=None if image_uri is None else container_order(image_uri, module=module_name, args=args),
        job_dir=url,
        spool=mark,
        environment=environment,
        variables=read_variables(env or ()),
    )
    code = run(LocalRun(order=order, folder=str(folder)))
    if code:
        raise typer.Exit(code)


def container_order(image: str, *, module: str | None, args: Sequence[str]) -> ContainerOrder:
    """Returns the order for each replica's container, which may read the paths that its arguments name.

    Raises:
        ImageError: the image's name is not valid.
    """
    return ContainerOrder(
        image=check_reference(image, what="--image-uri"),
        entry_point=() if module is None else ("python3", "-m", module),
        runs_code=module is not None,
        readable=named_paths(args),
        images_folder=str(Home.from_env().cache / "images"),
    )


def find_ports(start: int, *, count: int) -> list[int]:
    """Returns consecutive ports for the replicas.

    Raises:
        InvalidInputError: a port would be above 65535.
        PortInUseError: one of the ports is in use.
    """
    if start + count > 65536:
        raise InvalidInputError(
            "--start-port",
            received=start,
            allowed=f"at most {65536 - count}, because {count} consecutive ports are needed",
        )
    for port in range(start, start + count):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                raise PortInUseError(f"port {port} is in use", action="choose others with --start-port") from None
    return list(range(start, start + count))


def gang_order(
    members: Sequence[tuple[str, int]],
    *,
    ports: Sequence[int],
    command: tuple[str, ...],
    container: ContainerOrder | None,
    job_dir: str | None,
    spool: Path,
    environment: PythonEnvironment,
    variables: Mapping[str, str],
) -> GangOrder:
    """Returns the order for the gang, as a service would make it.

    Args:
        members: the role and index of each replica, the leader first.
        ports: the port of each replica; empty if there is only one.
        command: the program and its arguments, for Python; with a container, the arguments of its entry point.
        container: the order for each replica's container; None to run the program as a process of this machine.
        job_dir: the folder or bucket URL for results; None if there is none.
        spool: a unique path, by which the processes of the replicas are found; only files of a container are written
            there.
        environment: the Python environment that the program asks for.
        variables: environment variables of the program, in addition to those of any job.
    """
    cluster: dict[str, tuple[str, ...]] = {}
    for (role, _), port in zip(members, ports, strict=False):
        cluster[role] = (*cluster.get(role, ()), f"{HOST}:{port}")
    outputs = {
        kind: None if job_dir is None else join_url(job_dir, name)
        for kind, name in (
            ("model_dir", "model"),
            ("checkpoint_dir", "checkpoints"),
            ("tensorboard_dir", "tensorboard"),
        )
    }
    # Given explicitly, because containers share no home in which they could find a token.
    token = {CLUSTER_TOKEN: secrets.token_hex()} if "ps" in cluster else {}
    replicas: list[ReplicaOrder] = []
    for role, index in members:
        name = f"{role}-replica-{index}"
        order = ReplicaOrder(
            name=name,
            role=role,
            index=index,
            job="local",
            command=command,
            container=container,
            cluster=cluster,
            environment=variables,
            secrets=token,
            spool=str(spool / name),
            python_environment=environment,
            environment_cache=str(Home.from_env().environments(DEFAULT_PROJECT)),
            log_url=str(spool / "log"),
        )
        replicas.append(replace(order, **outputs))
    return GangOrder(gang_id="local", replicas=tuple(replicas))


def run(local: LocalRun) -> int:
    """Runs replicas until they end, and returns the exit code.

    They run under another process, which ends them when this process ends.

    Raises:
        LockstepError: the other process was killed; its replicas have been ended.
        KeyboardInterrupt: the user pressed Ctrl-C; all replicas have been stopped.
    """
    # -P: modules of the current folder must not hide those of the standard library.
    command = [sys.executable, "-P", "-m", "lockstep.runner.local"]
    # In a session of its own, so that Ctrl-C reaches only this process, which then closes the pipe.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and its exit code shows why
            process.stdin.write(LOCAL_RUN.dump_json(local) + b"\n")
            process.stdin.flush()
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.stdin.close()
            process.wait()
            raise
    if code < 0:
        # Imported here because the import takes a while, and is needed only here.
        from lockstep.clusters.runner_process import end_leftover_processes

        for replica in local.order.replicas:
            end_leftover_processes(replica)
            shutil.rmtree(Path(replica.spool).parent, ignore_errors=True)
        raise LockstepError("the process that ran the replicas was killed", action="the replicas have been ended")
    return code
