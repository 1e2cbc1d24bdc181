"""Every command of the quick starts, run as a reader types them: one shell, one folder, one home."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lockstep.client import Client
from lockstep.home import Home
from lockstep.service.lifecycle import down
from lockstep.service.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "quick-starts"
FILE = re.compile(r"Save this as `([^`]+)`[^`]*?```\w+\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.DOTALL)
PAGE_S = 900
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(PAGE_S + 60)]
ASKED = {
    "https://lockstep.example.com": "$LOCKSTEP_URL",
    "lsk_...": "$LOCKSTEP_TOKEN",
    "lsk_1f8e72f19a3b": "$(lockstep keys list | grep -o 'lsk_[0-9a-f]*')",
}
"""The examples in the place of which a reader puts the own address and keys."""
MODEL = """\
import os

import lockstep  # before Keras
import keras

model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")])
lockstep.training.save_model(model, os.environ["AIP_MODEL_DIR"])
"""


def environment(folder: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**own, "PATH": path, "LOCKSTEP_HOME": str(folder / "home"), "JAX_PLATFORMS": "cpu"}


def run_page(name: str, *, folder: Path, given: Mapping[str, str]) -> str:
    """Runs all commands of a page, and returns what they printed."""
    text = (PAGES / f"{name}.md").read_text("utf-8")
    work = folder / "work"
    work.mkdir()
    for file, content in FILE.findall(text):
        (work / file).write_text(content)
    commands = ["set -euo pipefail"]
    for language, block in BLOCK.findall(text):
        for example, own in ASKED.items():
            block = block.replace(example, f'"{own}"')
        commands.append(block if language == "bash" else f"python -c {shlex.quote(block)}")
    done = subprocess.run(
        ["bash", "-x", "-c", "\n".join(commands)],
        cwd=work,
        env={**environment(folder), **given},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a home whose service is ended with the test, however that ends."""
    yield tmp_path
    home = Home(path=tmp_path / "home")
    if home.path.exists():
        down(Settings(home=home, bucket=str(home.bucket)), cancel=True, progress=lambda _text: None)


def test_the_quick_start_of_trainers(folder: Path) -> None:
    printed = run_page("trainer", folder=folder, given={})
    assert "SUCCEEDED" in printed
    assert '"predictions"' in printed


def test_the_quick_start_of_operators(folder: Path) -> None:
    printed = run_page("operator", folder=folder, given={})
    assert "cpu4" in printed
    assert "budget of vision" in printed


def test_the_quick_start_of_callers(folder: Path) -> None:
    (folder / "job").mkdir()
    (folder / "job" / "make.py").write_text(MODEL)
    lockstep, env = [sys.executable, "-m", "lockstep.cli.main"], environment(folder)
    for command in (
        ["up"],
        ["submit", "digits", "--package-path", str(folder / "job"), "--module-name", "make"],
        ["deploy", "digits", "--job", "digits"],
    ):
        subprocess.run([*lockstep, *command], env=env, check=True, timeout=PAGE_S)
    key = ["keys", "create", "shop", "--project", "local", "--model", "digits"]
    made = subprocess.run([*lockstep, *key], env=env, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    with Client.from_home(Home(path=folder / "home")) as client:
        url = client.url
    given = {"LOCKSTEP_URL": url, "LOCKSTEP_TOKEN": made.stdout.strip()}
    printed = run_page("caller", folder=folder, given=given)
    assert printed.count('"predictions"') >= 2
    assert "[[" in printed
