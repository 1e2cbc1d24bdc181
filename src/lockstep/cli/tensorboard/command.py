"""``lockstep tensorboard``."""

from __future__ import annotations

import importlib.util
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, connect
from lockstep.cli.tensorboard.folders import Runs
from lockstep.errors import LockstepError, MissingInputError, PortInUseError, StorageError, UnavailableError
from lockstep.processes.guarded import GuardedProcesses
from lockstep.processes.guardian import GuardedProgram

if TYPE_CHECKING:
    from lockstep.client import Client

FIRST_PORT: Final = 6006
NUM_PORTS: Final = 100
START_S: Final = 60.0
"""How long TensorBoard may take to answer, in seconds."""
POLL_S: Final = 0.2
_PROGRAM: Final = "tensorboard"


def tensorboard(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB...", help="The names of the jobs.", autocompletion=complete_job)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on. TensorBoard asks nobody for a key.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help=f"Port to listen on; 0 takes a free one from {FIRST_PORT} on.")
    ] = 0,
    sync_every: Annotated[
        float, typer.Option(min=1, help="Seconds between two downloads of event files that are not on this machine.")
    ] = 10.0,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Start TensorBoard on the event files of one or several jobs. Ctrl-C ends it.

    Of a search, it shows all trials, also those that begin later. Files in a folder of this machine are read where they
    are. Others are downloaded, and kept in step while it runs.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingInputError("TensorBoard is not installed", action="pip install tensorboard")
    chosen_port = free_port(host, first=port or FIRST_PORT, count=1 if port else NUM_PORTS)
    with connect(project) as client, tempfile.TemporaryDirectory(prefix="lockstep-tensorboard-") as made:
        folder = Path(made, "runs")
        folder.mkdir()
        with OUTPUT.status("fetching event files"):
            runs = Runs(client, jobs, folder=folder)
            runs.sync()
        serve(client, runs, host=host, port=chosen_port, sync_every_s=sync_every, names=list(dict.fromkeys(jobs)))


def free_port(host: str, *, first: int, count: int) -> int:
    """Returns the first free port.

    Args:
        host: the address that it has to be free at.
        first: the first port to try.
        count: how many ports to try.

    Raises:
        PortInUseError: none is free.
    """
    for port in range(first, min(first + count, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    last = min(first + count, 65536) - 1
    ports = f"port {first}" if first == last else f"ports {first} to {last}"
    raise PortInUseError(f"{ports} of {host} cannot be used", action="choose another with --port")


def serve(
    client: Client,
    runs: Runs,
    *,
    host: str,
    port: int,
    sync_every_s: float,
    names: Sequence[str],
) -> None:
    """Runs TensorBoard until the user presses Ctrl-C. It ends with this process, however this process ends.

    Args:
        client: a client of the service, which may be restarted meanwhile.
        runs: the folder that TensorBoard reads.
        host: the address to listen on.
        port: the port to listen on.
        sync_every_s: the time between two downloads, in seconds.
        names: the names of the jobs, to be printed.

    Raises:
        LockstepError: TensorBoard does not start, or ends.
    """
    log = runs.folder.parent / "tensorboard.log"
    command = (sys.executable, "-P", "-m", "tensorboard.main")
    options = (f"--logdir={runs.folder}", f"--host={host}", f"--port={port}", "--reload_interval=5")
    program = GuardedProgram(name=_PROGRAM, command=(*command, *options), output=str(log))
    running = GuardedProcesses([program], cwd=runs.folder)
    url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    try:
        _await_answer(running, url=url, log=log)
        OUTPUT.print(f"TensorBoard shows {', '.join(names)} at {url} (Ctrl-C ends it)", soft_wrap=True)
        _keep_in_step(client, runs, running=running, log=log, sync_every_s=sync_every_s)
    except KeyboardInterrupt:  # the usual end
        ERRORS.print("\nTensorBoard has ended", style="dim")
    finally:
        running.close()


def _await_answer(running: GuardedProcesses, *, url: str, log: Path) -> None:
    import httpx  # here, because the client imports it without its command line, if nothing else did before

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        _check_runs(running, log=log)
        try:
            httpx.get(url, timeout=2.0, trust_env=False)
        except httpx.HTTPError:
            time.sleep(POLL_S)
            continue
        return
    raise UnavailableError(f"TensorBoard did not answer within {START_S:.0f} s", action=f"it said: {_last_line(log)}")


def _check_runs(running: GuardedProcesses, *, log: Path) -> None:
    if running.wait(timeout_s=0):
        code = running.codes.get(_PROGRAM, 1)
        raise LockstepError(f"TensorBoard ended with exit code {code}: {_last_line(log)}")


def _keep_in_step(client: Client, runs: Runs, *, running: GuardedProcesses, log: Path, sync_every_s: float) -> None:
    is_away = False
    while True:
        running.wait(timeout_s=sync_every_s)
        _check_runs(running, log=log)
        if not runs.may_change:
            continue
        try:
            client.find_again()
            runs.sync()
            is_away = False
        except (UnavailableError, StorageError) as problem:
            if not is_away:
                ERRORS.print(f"-- {problem}; the curves stay as they are until then", style="dim")
            is_away = True


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "nothing"
