"""What a machine runs when it comes up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.clusters.machines.clouds.azure import DEALLOCATE
from lockstep.clusters.machines.start_script import start_script

TOKEN = "to'ken $(touch stolen)"


def script(*setup_commands: str, before_off: tuple[str, ...] = ()) -> str:
    return start_script(
        "lab-cpu-0-0a1b2c",
        node_type="cpu",
        head_address="10.0.0.5:6379",
        token=TOKEN,
        setup_commands=setup_commands,
        before_off=before_off,
    )


def run(text: str, *, folder: Path) -> list[str]:
    """Runs a script with commands that say how they were called instead of doing it; returns what they said."""
    said = folder / "said"
    for name in ("ray", "shutdown"):
        tool = folder / name
        tool.write_text(
            "#!/bin/bash\n"
            f'echo "{name} $*" >> {said}\n'
            f'[ {name} = ray ] && stat -c %a "$RAY_AUTH_TOKEN_PATH" >> {said}\n'
            f'[ {name} = ray ] && echo "$(cat "$RAY_AUTH_TOKEN_PATH")" >> {said}\n'
            "exit 0\n"
        )
        tool.chmod(0o755)
    text = text.replace("/run/lockstep", str(folder / "run"))
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", text], env=env, cwd=folder, check=False, capture_output=True)
    return said.read_text().splitlines()


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param((), id="none"),
        pytest.param(("pip install lockstep-train", "echo 'it''s' \"$HOME\""), id="quotes"),
        pytest.param(("echo 'not closed",), id="not closed"),
    ],
)
def test_it_is_bash_whatever_the_setup_commands_are(commands: tuple[str, ...]) -> None:
    text = script(*commands, before_off=DEALLOCATE)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_machine_joins_with_the_token_and_turns_itself_off(tmp_path: Path) -> None:
    started, mode, token, off = run(script("export PATH=$PATH:/opt/here", "touch set_up"), folder=tmp_path)
    assert started.startswith("ray start --block --address=10.0.0.5:6379 --labels=lockstep.io/node=lab-cpu-0-0a1b2c,")
    assert TOKEN not in started
    assert (mode, token, off) == ("600", TOKEN, "shutdown -P now")
    assert (tmp_path / "set_up").exists()
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("command", ["false", "echo 'not closed"])
def test_a_machine_whose_setup_fails_does_not_join_and_turns_itself_off(command: str, tmp_path: Path) -> None:
    assert run(script(command, "touch set_up"), folder=tmp_path) == ["shutdown -P now"]
    assert not (tmp_path / "set_up").exists()


@pytest.mark.parametrize(
    "command", [pytest.param("true", id="at the end"), pytest.param("false", id="a setup that fails")]
)
def test_a_machine_of_azure_has_itself_deallocated_and_shows_its_token_to_nobody(command: str, tmp_path: Path) -> None:
    curl = tmp_path / "curl"
    curl.write_text(
        "#!/bin/bash\n"
        f"exec 3>> {tmp_path}/said\n"
        'case "$*" in\n'
        "*instance/compute/resourceId*) printf /subscriptions/s/virtualMachines/lab-cpu-0;;\n"
        """*oauth2/token*) printf '{"token_type":"Bearer","access_token":"ey.J0-_","expires_in":"86399"}';;\n"""
        "*) header=$(cat); echo curl $* >&3; echo $header >&3;;\n"
        "esac\n"
    )
    curl.chmod(0o755)
    *_, asked, header, off = run(script(command, before_off=DEALLOCATE), folder=tmp_path)
    machine = "https://management.azure.com/subscriptions/s/virtualMachines/lab-cpu-0"
    assert asked == f"curl -sf --max-time 60 --retry 5 -K - -X POST -d {machine}/deallocate?api-version=2024-07-01"
    assert header == 'header = "Authorization: Bearer ey.J0-_"'
    assert off == "shutdown -P now"


def test_a_machine_of_azure_that_may_not_be_deallocated_is_turned_off(tmp_path: Path) -> None:
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/bash\nexit 22\n")
    curl.chmod(0o755)
    assert run(script("false", before_off=DEALLOCATE), folder=tmp_path) == ["shutdown -P now"]
