"""A server's processes: started, waited for, measured and ended."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

END_S: Final = 20.0
"""How long a server has to end by itself, in seconds."""


@contextlib.contextmanager
def running(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Iterator[psutil.Process]:
    """Runs a command in a session of its own, and ends it with all processes below it.

    Args:
        command: what is run.
        environment: its whole environment.
        log: the file for its output.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    root = psutil.Process(process.pid)
    try:
        yield root
    finally:
        below = tree(root)[1:]
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs(below, timeout=END_S if below else 0)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=END_S)


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Returns a process and all below it; nothing if it has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [root]


def processes_of_home(home: Path) -> list[psutil.Process]:
    """Returns the processes of a service's home, by environment, command line or working folder."""
    found = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values(), process.cwd()]
        except (psutil.Error, OSError):
            continue
        if any(str(home) in text for text in texts):
            found.append(process)
    return found
