"""Processes of a user are killed at once, however many they are and whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import psutil
import pytest

from lockstep.errors import LockstepError
from lockstep.processes.confinement import (
    MAX_SERVER_PROCESSES_PER_CPU,
    kill_processes_of,
    max_server_processes,
    raise_priority,
)

IS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may start programs as other users"
)
USER = 59701
NUM_PROCESSES = 40
WAIT_S = 30.0


BOMB = """
import os, resource, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NPROC, ({limit}, {limit}))
os.setgroups([])
os.setresgid({user}, {user}, {user})
os.setresuid({user}, {user}, {user})
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.001)
"""
"""A program that becomes the user, and forks without end."""


def living() -> list[int]:
    found = psutil.process_iter(["pid", "uids", "status"])
    return [p.info["pid"] for p in found if USER in p.info["uids"] and p.info["status"] != psutil.STATUS_ZOMBIE]


@IS_ROOT
def test_processes_that_fork_without_end_are_all_killed() -> None:
    jax.devices()  # starts JAX, which warns when this process is forked: its threads may hold locks
    started = subprocess.Popen([sys.executable, "-c", BOMB.format(limit=NUM_PROCESSES, user=USER)])
    deadline = time.monotonic() + WAIT_S
    while len(living()) < NUM_PROCESSES:
        assert time.monotonic() < deadline, living()
        time.sleep(0.01)
    kill_processes_of(USER)
    assert living() == []
    assert started.wait(WAIT_S) == -signal.SIGKILL
    kill_processes_of(USER)  # there is nothing left to do


@IS_ROOT
def test_the_killer_is_not_among_the_killed() -> None:
    own = os.getpid()
    kill_processes_of(USER)
    assert os.getpid() == own
    assert (os.geteuid(), os.getegid()) == (0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_only_root_kills_others() -> None:
    with pytest.raises(LockstepError, match="only root can kill"):
        kill_processes_of(USER)


def test_the_number_of_processes_grows_with_the_node() -> None:
    assert max_server_processes() >= 128 + MAX_SERVER_PROCESSES_PER_CPU


def test_the_priority_of_a_thread_is_raised_where_that_is_possible() -> None:
    found: list[int] = []

    def raised() -> None:
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        raise_priority()
        found.extend([before, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())])

    before = os.getpriority(os.PRIO_PROCESS, os.getpid())
    thread = threading.Thread(target=raised)
    thread.start()
    thread.join()
    assert found[1] <= found[0]
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == before, "other threads keep theirs"
