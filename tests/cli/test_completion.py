"""What a shell completes: commands, options, and names that the service has, in time and without a word of errors."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.test_models import BOX, Site
from typer._completion_classes import BashComplete, FishComplete, ZshComplete
from typer.testing import CliRunner

from lockstep.cli import completing
from lockstep.cli.app import app
from lockstep.home import Home
from lockstep.service.settings import Settings
from lockstep.testing.bench import open_bench
from lockstep.testing.served import HOME_TOKEN, Served

TIMEOUT_S = 60
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
COMMAND = Path(sys.executable).parent / "lockstep"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("completion")
    home = Home(path=folder / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as bench:
        bench.cluster.set_nodes((BOX,), in_use={"box": BOX.resources})
        served = Served(bench)
        made = Site(bench, served, folder)
        for name in ("first_job", "second_job", "final_job"):
            bench.create(name, "pass")
        made.version("v1")
        made.version("w2")
        made.models.create_model(project="local", name="digits", description="", labels={})
        yield made
        served.close()


@pytest.fixture(autouse=True)
def environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_URL", site.served.url)
    monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
    # A busy machine may take longer than a person who waits for a shell.
    monkeypatch.setattr(completing, "WAIT_S", float(TIMEOUT_S))


def complete(line: str, *, shell: str = "bash") -> list[str]:
    """Returns the completions of the last word of a line; of an empty word if the line ends with a blank."""
    *words, incomplete = line.split(" ")
    root: Any = typer.main.get_command(app)
    asked = SHELLS[shell](root, {}, "lockstep", "_LOCKSTEP_COMPLETE")
    return sorted(item.value for item in asked.get_completions(words[1:], incomplete))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lockstep desc", ["describe"]),
        ("lockstep models roll", ["rollback"]),
        ("lockstep jobs --form", ["--format"]),
        ("lockstep jobs --format ", ["csv", "json", "table"]),
        ("lockstep describe fi", ["final_job", "first_job"]),
        ("lockstep top sec", ["second_job"]),
        ("lockstep artifacts sec", ["second_job"]),
        ("lockstep tensorboard first_job sec", ["second_job"]),
        ("lockstep logs --follow sec", ["second_job"]),
        ("lockstep describe --project other ", []),
        ("lockstep deploy m --job first", ["first_job"]),
        ("lockstep predict d", ["digits"]),
        ("lockstep models describe ", ["digits", "m"]),
        ("lockstep models describe m", ["m", "m/v1", "m/w2"]),
        ("lockstep undeploy m/v", ["m/v1"]),
        ("lockstep metrics --model m/", ["m/v1", "m/w2"]),
        ("lockstep predict m --version v", ["v1"]),
        ("lockstep completion f", ["fish"]),
    ],
)
def test_names_are_completed(line: str, found: list[str]) -> None:
    assert complete(line) == found


def test_secrets_and_keys_are_completed(site: Site) -> None:
    assert complete("lockstep secrets rm ") == []
    key = CliRunner().invoke(app, ["keys", "create", "ann", "--all-projects"]).stdout.partition("_")[2]
    CliRunner().invoke(app, ["secrets", "set", "hub-token"], input="a secret value")
    assert complete("lockstep secrets rm hub") == ["hub-token"]
    (found,) = complete("lockstep keys revoke lsk_")
    assert key.startswith(found.removeprefix("lsk_"))
    CliRunner().invoke(app, ["keys", "revoke", found])
    assert complete("lockstep keys revoke lsk_") == []


def test_nothing_that_a_shell_would_run_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["good", "go$(touch x)", "go`x`", "go;x", "go\nx", "go x", "go'x"]
    monkeypatch.setattr(completing, "_models", lambda _client: names)
    for shell in SHELLS:
        assert complete("lockstep predict go", shell=shell) == ["good"]


@pytest.mark.parametrize("how", ["nobody listens", "nobody answers", "the key is refused"])
def test_a_service_that_does_not_answer_completes_nothing_in_silence(
    how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completing, "WAIT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        if how == "nobody listens":
            server.close()
        if how == "the key is refused":
            monkeypatch.setenv("LOCKSTEP_TOKEN", "another")
        else:
            monkeypatch.setenv("LOCKSTEP_URL", url)
        began = time.monotonic()
        assert complete("lockstep describe ") == []
        assert time.monotonic() - began < 20, "the client alone would wait longer"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_asks_with(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell], catch_exceptions=False).stdout
    assert f"_LOCKSTEP_COMPLETE=complete_{shell}" in script


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    def ask(*words: str) -> list[str]:
        quoted = " ".join(map(shlex.quote, words))
        program = (
            f"source <(lockstep completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1};"
            "_lockstep_completion lockstep; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", program],
            env=_shell_env(tmp_path),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert done.stderr == ""
        return sorted(done.stdout.split())

    assert ask("lockstep", "sub") == ["submit", "submit-prediction"]
    assert ask("lockstep", "submit") == ["submit", "submit-prediction"]
    assert ask("lockstep", "models", "r") == ["rollback"]
    assert ask("lockstep", "jobs", "--js") == ["--json"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_with_the_script(tmp_path: Path) -> None:
    def ask(line: str) -> list[str]:
        program = f"lockstep completion fish | source; complete --do-complete {shlex.quote(line)}"
        done = subprocess.run(
            ["fish", "--no-config", "--command", program],
            env=_shell_env(tmp_path),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert done.stderr == ""
        return sorted(found.partition("\t")[0] for found in done.stdout.splitlines())

    assert ask("lockstep sub") == ["submit", "submit-prediction"]
    assert ask("lockstep models r") == ["rollback"]
    assert ask("lockstep jobs --format ") == ["csv", "json", "table"]


# zsh completes in its line editor only, so a shell on a terminal types into another one.
TYPING = r"""
zmodload zsh/zpty
zpty -b child zsh -f -i
function read_until {
  local piece all
  for try in {1..600}; do
    zpty -r -t child piece && all+=$piece && [[ $all == *$1* ]] && return 0
    sleep 0.1
  done
  print -r -- "no $1 in: $all"
  exit 1
}
zpty -w child 'PROMPT=; autoload -Uz compinit; compinit -u -D; source <(lockstep completion zsh); print SET\ UP'
read_until $'SET UP\r'
while read -r typed; read -r expected; do
  zpty -w -n child $'\x15'$typed$'\t'
  read_until $expected
done
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_with_the_script(tmp_path: Path) -> None:
    asked = {"lockstep models roll": "rollback", "lockstep desc": "describe", "lockstep jobs --format c": "csv"}
    done = subprocess.run(
        ["zsh", "-f", "-c", TYPING],
        input="".join(f"{typed}\n{expected}\n" for typed, expected in asked.items()),
        env=_shell_env(tmp_path),
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _shell_env(home: Path) -> Any:
    found = {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "HOME": str(home), "LOCKSTEP_HOME": str(home)}
    return {**os.environ, **found, "TERM": "xterm"}
