"""Processes that watch over each other: what each does when one dies, hangs, fails or leaves; all without JAX."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.strategies import watched_process
from tests.strategies.job_processes import WAIT_S, job
from tests.waiting import wait_until

from lockstep.errors import BackendError, PeerLostError
from lockstep.strategies.peers.meeting import Meeting, Peer
from lockstep.strategies.peers.watchdog import Watchdog, first_difference
from lockstep.strategies.peers.wire import Connection

SCRIPT = Path(watched_process.__file__)
TIMEOUT_S = 2.0
BOUND = {"LOCKSTEP_PEER_TIMEOUT_S": str(TIMEOUT_S)}
NAMES = ("chief 0 (rank 0, 127.0.0.1:", "worker 0 (rank 1, 127.0.0.1:", "worker 1 (rank 2, 127.0.0.1:")


def start(folder, what, *, num_processes=3, victim=-1):
    env = {**BOUND, "VICTIM": str(victim)}
    return job(folder, [SCRIPT, what], num_processes=num_processes, env=env)


def others(processes, victim):
    return [process for rank, process in processes.items() if rank != victim]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_named_by_all_others_at_once(tmp_path, victim):
    with start(tmp_path, "wait") as processes:
        for process in processes.values():
            process.wait_for("met")
        processes[victim].process.kill()
        killed_at = time.monotonic()
        for process in others(processes, victim):
            assert process.end() == PeerLostError.exit_code
            assert process.last_line.startswith(f"lockstep: error: {NAMES[victim]}")
            assert "died: its connection ended without a goodbye" in process.last_line
        assert time.monotonic() - killed_at < TIMEOUT_S


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_stopped_process_is_named_within_the_bound_and_ends_when_it_goes_on(tmp_path, victim):
    with start(tmp_path, "wait") as processes:
        for process in processes.values():
            process.wait_for("met")
        processes[victim].process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        for process in others(processes, victim):
            assert process.end() == PeerLostError.exit_code
            assert NAMES[victim] in process.last_line
            assert "hangs or cannot be reached: silent for 1.6 s" in process.last_line
        assert TIMEOUT_S * 0.5 < time.monotonic() - stopped_at < TIMEOUT_S + 1
        processes[victim].process.send_signal(signal.SIGCONT)
        assert processes[victim].end() == PeerLostError.exit_code
        assert f"{NAMES[victim]}" in processes[victim].last_line
        assert "which is this process" in processes[victim].last_line


def test_a_process_that_fails_says_why_and_the_others_say_whose_fault_it_was(tmp_path):
    with start(tmp_path, "raise", victim=2) as processes:
        assert processes[2].end() == 1
        assert processes[2].last_line == "ValueError: a fault of its own"
        for process in others(processes, 2):
            assert process.end() == PeerLostError.exit_code
            assert f"{NAMES[2]}" in process.last_line
            assert "failed: ValueError: a fault of its own" in process.last_line


def test_where_all_fail_alike_each_says_so_itself(tmp_path):
    with start(tmp_path, "all raise") as processes:
        for process in processes.values():
            assert process.end() == 1
            assert process.last_line == "ValueError: the same fault everywhere"


def test_an_error_of_a_collective_waits_for_the_news_of_who_is_gone(tmp_path):
    with start(tmp_path, "runtime error", victim=1) as processes:
        assert processes[1].end() == 0
        for process in others(processes, 1):
            assert process.end() == PeerLostError.exit_code
            assert f"{NAMES[1]}" in process.last_line
            assert "ended its program while others still trained" in process.last_line
        # The other one may have been told before it met the error itself.
        assert any("ValueError: UNKNOWN: Gloo" in process.text for process in others(processes, 1))


def test_a_regular_end_alarms_nobody(tmp_path):
    with start(tmp_path, "all leave", num_processes=4) as processes:
        for process in processes.values():
            assert process.end() == 0
            assert process.last_line.startswith("met"), process.text


@pytest.mark.parametrize("leaver", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_one_that_ends_earlier_does_not_end_the_others(tmp_path, leaver):
    with start(tmp_path, "leave", victim=leaver) as processes:
        assert processes[leaver].end() == 0
        time.sleep(2 * TIMEOUT_S)  # what must not happen has no sign to wait for
        assert [process.process.poll() for process in others(processes, leaver)] == [None, None]


def test_a_forked_child_does_not_hide_the_death_of_its_parent(tmp_path):
    with start(tmp_path, "fork", victim=1) as processes:
        processes[1].wait_for("forked")
        child = int(processes[1].last_line.split()[1])
        processes[1].process.kill()
        try:
            assert processes[0].end() == PeerLostError.exit_code
            assert "died: its connection ended" in processes[0].last_line
        finally:
            os.kill(child, signal.SIGKILL)


def test_agreement_names_the_first_difference_in_every_process(tmp_path):
    with start(tmp_path, "agree", victim=1) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "agreed" in process.text
            assert "the processes differ at fit: chief 0" in process.last_line
            assert "has another, worker 0" in process.last_line
            assert "has other;" in process.last_line


@pytest.mark.parametrize("leaver", [0, 1])
def test_agreement_does_not_wait_for_one_that_has_ended(tmp_path, leaver):
    with start(tmp_path, "agree with a leaver", victim=leaver) as processes:
        wait_until(lambda: all(process.process.poll() is not None for process in processes.values()), timeout_s=WAIT_S)
        for process in others(processes, leaver):
            assert process.end() == PeerLostError.exit_code
            assert f"{NAMES[leaver]}" in process.last_line
            assert "has ended its program, but others start fit" in process.last_line


@pytest.mark.parametrize(
    ("limit_s", "lines"), [(0.2, ["waiting in fit for another process, which has not reached it"]), (0.05, [])]
)
def test_waiting_is_logged_only_while_time_is_left(monkeypatch, caplog, limit_s, lines):
    monkeypatch.setattr("lockstep.strategies.peers.watchdog._SAID_AFTER_S", 0.1)
    own, other = socket.socketpair()
    with own, other:
        peers = tuple(Peer(rank=rank, role=f"worker {rank}", address="") for rank in range(2))
        meeting = Meeting(
            rank=0, peers=peers, timeout_s=60, links={1: Connection(own)}, listener=None, chief_address="", token=""
        )
        watchdog = Watchdog(meeting, on_loss=lambda loss: None)
        with pytest.raises(BackendError, match=f"did not reach fit within {limit_s} s"):
            watchdog.compare("fit", [], timeout_s=limit_s)
    assert caplog.messages == lines


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"a": ("fit", ["1"]), "b": ("fit", ["1"])}, None),
        ({"a": ("fit", []), "b": ("predict", [])}, "a starts fit and b starts predict"),
        ({"a": ("fit", ["1", "2"]), "b": ("fit", ["1"])}, "the processes differ at fit: a has 2, b has nothing more"),
        (
            {"a": ("fit", ["1"]), "b": ("fit", ["1"]), "c": ("fit", ["3"])},
            "the processes differ at fit: a has 1, c has 3",
        ),
    ],
)
def test_the_first_difference(told, expected):
    assert first_difference(told) == expected
