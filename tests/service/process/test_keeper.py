"""What starts a service again when it dies: when, how often, and what is said. Other processes stand in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.errors import WrongStateError
from lockstep.home import Home
from lockstep.processes import ProcessIdentity
from lockstep.service import lifecycle
from lockstep.service.process import keeper
from lockstep.service.process.ends import (
    ServiceEnd,
    end_of_unit,
    read_death,
    record_death,
    record_unobserved_death,
    unobserved_death,
)
from lockstep.service.process.keeper import Keeper, end_keeper, find_keeper, keep, write_keeper
from lockstep.service.process.lifecycle_lock import lifecycle_lock
from lockstep.service.settings import Settings

TIMEOUT_S = 20.0
# A service: it counts its starts, says that it answers, lets the lock go, and ends as it is told to for that start.
SERVICE = """
import json, os, pathlib, signal, sys
home, ways = pathlib.Path(sys.argv[1]), sys.argv[2].split(",")
starts = home / "starts"
number = len(starts.read_text()) if starts.exists() else 0
with starts.open("a") as file:
    file.write("x")
way = ways[min(number, len(ways) - 1)]
if way != "silent":
    (home / "service.json").write_text(json.dumps({"process": {"pid": os.getpid(), "start": ""}}))
os.close(int(sys.argv[3].partition("=")[2]))
if way == "wait":
    signal.pause()
os.kill(os.getpid(), int(way[1:])) if way.startswith("s") and way != "silent" else sys.exit(0 if way == "0" else 3)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(path=tmp_path / "home")
    made.create()
    return made


@pytest.fixture
def run(home: Home, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Keeps a service that ends in these ways, one after another; returns the last exit code."""
    monkeypatch.setattr(keeper, "PAUSES_S", (0.01, 0.02))

    def kept(ways: str) -> int:
        with lifecycle_lock(home) as lock:
            held = os.dup(lock)
        return keep(home, [sys.executable, "-c", SERVICE, str(home.path), ways], lock=held)

    return kept


def num_starts(home: Home) -> int:
    return len((home.path / "starts").read_text())


def test_a_service_that_dies_is_started_again_until_it_ends_as_it_was_told_to(
    home: Home, run: Callable[[str], int]
) -> None:
    assert run("s9,3,0") == 0
    assert num_starts(home) == 3
    end = read_death(home)
    assert end is not None
    assert (end.how, end.followed_by) == ("ended with exit code 3", "restarted after 0.02 s")
    assert 0 <= time.time() - end.time_s < TIMEOUT_S


def test_a_service_that_dies_too_often_is_given_up_and_that_is_said(home: Home, run: Callable[[str], int]) -> None:
    assert run("s6") != 0
    assert num_starts(home) == 3
    end = read_death(home)
    assert end is not None
    assert (end.how, end.followed_by) == (
        "was killed by SIGABRT",
        "not restarted: it died 3 times within 10 minutes",
    )


def test_deaths_long_ago_do_not_count(home: Home, run: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "WINDOW_S", 0.0)
    assert run("s9,s9,s9,s9,s9,0") == 0
    assert num_starts(home) == 6


def test_a_service_that_never_came_up_is_its_starters_to_tell(home: Home, run: Callable[[str], int]) -> None:
    assert run("silent") == 3
    assert num_starts(home) == 1
    assert read_death(home) is None


def test_nobody_starts_a_service_while_another_brings_it_down(home: Home) -> None:
    command = [sys.executable, "-c", SERVICE, str(home.path), "wait"]
    with lifecycle_lock(home) as lock:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lockstep.service.process.keeper", str(home.path), str(lock), *command],
            pass_fds=[lock],
            start_new_session=True,
        )
    try:
        _wait(lambda: home.address.exists())
        with lifecycle_lock(home):  # as `down` has it; a service that starts lets it go when it answers
            found = find_keeper(home)
            assert found is not None
            assert (found.process.pid, found.describe()) == (process.pid, f"process {process.pid}")
            os.kill(json.loads(home.address.read_text())["process"]["pid"], 9)
            _wait(lambda: read_death(home) is not None)
            time.sleep(keeper.PAUSES_S[0] + 0.5)
            assert num_starts(home) == 1
            end_keeper(home)
            assert process.wait(TIMEOUT_S) == -9
        assert find_keeper(home) is None
        end_keeper(home)
        assert num_starts(home) == 1
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def test_an_end_that_nobody_saw_is_after_the_last_sign_of_the_service_and_one_that_was_seen_is_kept(
    home: Home,
) -> None:
    record_unobserved_death(home)
    assert read_death(home) is None, "it went as it was told to"
    home.address.write_text("{}")
    home.database.write_bytes(b"")
    answered_s, last_s, found_s = 1_900_000_000.0, 1_900_000_100.0, 1_900_040_000.0
    os.utime(home.address, (answered_s, answered_s))
    os.utime(home.database, (last_s, last_s))
    end = unobserved_death(home, now_s=found_s)
    assert end is not None
    assert end.time_s == last_s, "not when somebody looked"
    assert "found dead at 2030-03-18T" in end.how
    os.utime(home.database, (found_s, found_s))
    clock_was_ahead = unobserved_death(home, now_s=last_s)
    assert clock_was_ahead is not None
    assert clock_was_ahead.time_s == last_s
    os.utime(home.address)
    record_unobserved_death(home)
    end = read_death(home)
    assert end is not None
    assert end.followed_by == "restarted"
    seen = ServiceEnd(time_s=time.time() + 1.0, how="was killed by SIGKILL", followed_by="restarted after 1 s")
    record_death(home, seen)
    record_unobserved_death(home)
    assert read_death(home) == seen


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ({"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}, None),
        ({"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}, "was killed by SIGKILL"),
        ({"SERVICE_RESULT": "core-dump", "EXIT_CODE": "dumped", "EXIT_STATUS": "ABRT"}, "was killed by SIGABRT"),
        ({"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "14"}, "ended with exit code 14"),
    ],
)
def test_what_systemd_says_of_an_end(said: dict[str, str], how: str | None) -> None:
    end = end_of_unit(said, now_s=5.0)
    assert (None if end is None else end.how) == how


def test_a_service_of_systemd_is_not_brought_down_beside_it(home: Home) -> None:
    write_keeper(home, Keeper(process=ProcessIdentity.of_self(), is_systemd=True))
    with pytest.raises(WrongStateError, match="systemctl stop"):
        lifecycle.down(Settings(home=home, bucket=str(home.bucket)), cancel=False, progress=lambda _: None)
    end_keeper(home)
    found = find_keeper(home)
    assert found is not None
    assert found.describe() == "systemd"


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
