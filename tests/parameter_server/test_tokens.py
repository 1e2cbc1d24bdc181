"""A cluster's token: from the variable, or from a file that one user's processes on one machine share."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import ConfigError, CorruptDataError
from lockstep.home import Home
from lockstep.parameter_server.tokens import cluster_token
from lockstep.topology import CLUSTER_TOKEN, Task, Topology

LOCAL = Topology(cluster={"chief": ("127.0.0.1:20000",), "ps": ("localhost:20001", "[::1]:20002")}, task=Task())
FAR = Topology(cluster={"chief": ("127.0.0.1:20000",), "ps": ("10.0.0.7:20001",)}, task=Task())
NUM_RACERS = 4
RACER = """
import os, sys
from pathlib import Path
from lockstep.home import Home
from lockstep.parameter_server.tokens import cluster_token
from lockstep.topology import Topology
print("ready", flush=True)
sys.stdin.readline()
print(cluster_token(Topology(), env={}, home=Home(path=Path(sys.argv[1]))).decode())
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(path=tmp_path / "home")


@pytest.mark.parametrize("topology", [LOCAL, FAR], ids=["local", "far"])
def test_the_variable_is_taken_wherever_the_cluster_is(home: Home, topology: Topology) -> None:
    assert cluster_token(topology, env={CLUSTER_TOKEN: f"{'s' * 32}\n"}, home=home) == b"s" * 32
    assert not home.path.exists()


@pytest.mark.parametrize("value", ["", "a-short-one", f"{'s' * 31} \n"], ids=["empty", "short", "padded"])
def test_a_short_one_is_refused_and_not_told(home: Home, value: str) -> None:
    with pytest.raises(ConfigError, match=r"LOCKSTEP_CLUSTER_TOKEN; received '\d+ characters'; allowed: 32") as caught:
        cluster_token(LOCAL, env={CLUSTER_TOKEN: value}, home=home)
    assert not value.strip() or value.strip() not in str(caught.value)


def test_none_is_refused_where_others_reach_the_cluster(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"is not set, and other machines .*`python -c .import secrets; print"):
        cluster_token(FAR, env={}, home=home)
    assert not home.path.exists()


def test_on_loopback_it_is_made_once_for_its_user_alone(home: Home) -> None:
    token = cluster_token(LOCAL, env={}, home=home)
    assert len(token) == 64
    assert cluster_token(LOCAL, env={}, home=home) == token
    assert cluster_token(LOCAL, env={}, home=Home(path=home.path.parent / "other")) != token
    assert stat.S_IMODE(home.cluster_token.stat().st_mode) == 0o600
    assert list(home.path.iterdir()) == [home.cluster_token]


def test_processes_that_race_to_make_it_have_the_same(home: Home) -> None:
    command = [sys.executable, "-c", RACER, str(home.path)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(NUM_RACERS)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        tokens = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert tokens == {home.cluster_token.read_text()}
    assert list(home.path.iterdir()) == [home.cluster_token]


def test_whoever_comes_second_takes_the_firsts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the making another process makes it."""
    first = "f" * 64

    def look(path: Path) -> bool:
        if path == home.cluster_token:
            path.write_text(first)
            path.chmod(0o600)
        return False

    home.create()
    monkeypatch.setattr(Path, "exists", look)
    assert cluster_token(LOCAL, env={}, home=home) == first.encode()
    assert list(home.path.iterdir()) == [home.cluster_token]


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [("t" * 64, 0o644, "other users can read .*cluster-token"), ("t" * 8, 0o600, "cluster-token is not a token")],
    ids=["readable", "short"],
)
def test_a_file_that_is_no_secret_is_refused(home: Home, text: str, mode: int, what: str) -> None:
    home.create()
    home.cluster_token.write_text(text)
    home.cluster_token.chmod(mode)
    with pytest.raises(CorruptDataError, match=f"{what}.*; delete it: a new one is created") as caught:
        cluster_token(LOCAL, env={}, home=home)
    assert text not in str(caught.value)
