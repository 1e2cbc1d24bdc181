"""Real processes of one job, for tests: each writes into a file of its own, which is read while it runs."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

from lockstep.testing.ports import free_port

WAIT_S = 90


def loopback_cluster(num_processes):
    ports = [free_port() for _ in range(num_processes)]
    return {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{port}" for port in ports[1:]]}


def tf_config(cluster, rank):
    task = {"type": "chief", "index": 0} if rank == 0 else {"type": "worker", "index": rank - 1}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


class Process:
    """One process of a job."""

    def __init__(self, arguments, *, output, env, prefix=()):
        self.output = output
        own = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "JAX_NUM_CPU_DEVICES")}
        command = [*prefix, sys.executable, *map(str, arguments)]
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, env={**own, **env}, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self):
        return self.output.read_text(errors="replace")

    @property
    def last_line(self):
        return (self.text.splitlines() or [""])[-1]

    def wait_for(self, text):
        wait_until(
            lambda: text in self.text or self.process.poll() is not None,
            timeout_s=WAIT_S,
            what=lambda: f"{text!r} in\n{self.text}",
        )
        assert text in self.text, self.text

    def end(self, timeout_s=WAIT_S):
        """Waits for the end and returns the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text}") from None


@contextmanager
def job(folder, arguments, *, num_processes, ranks=None, cluster=None, env=None, env_of=None, prefix_of=None):
    """Starts a job's processes, and ends what is left of them in the end.

    Args:
        folder: where their output goes.
        arguments: of Python, the same for all.
        num_processes: how many the cluster has.
        ranks: those that are started, all by default.
        cluster: addresses by role; free ports of the loopback interface by default.
        env: variables for all.
        env_of: variables for one, by its rank.
        prefix_of: what goes before the command of one, by its rank.
    """
    cluster = cluster or loopback_cluster(num_processes)
    started = {}
    try:
        for rank in range(num_processes) if ranks is None else ranks:
            variables = {**tf_config(cluster, rank), **(env or {}), **(env_of(rank) if env_of else {})}
            output = Path(folder) / f"process-{rank}.log"
            prefix = prefix_of(rank) if prefix_of else ()
            started[rank] = Process(arguments, output=output, env=variables, prefix=prefix)
        yield started
    finally:
        for process in started.values():
            process.process.kill()
            process.process.wait()
