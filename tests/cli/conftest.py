"""One real service for all tests of this folder."""

import sys
from collections.abc import Callable, Iterator

import pytest
from tests.cli.validating import validated

from lockstep.cli.main import main
from lockstep.home import Home
from lockstep.testing.machine import Machine


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    validated("up", made.run("up", "--json"))
    yield made
    validated("down", made.run("down", "--cancel", "--json"))
    assert made.processes() == []


@pytest.fixture
def refuse(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Has the command line refuse something, as `Machine.run` does, but in this process; returns its error output."""

    def run(*arguments: str, code: int, home: Home | None = None) -> str:
        monkeypatch.setenv("LOCKSTEP_HOME", str((home or machine.home).path))
        monkeypatch.setattr(sys, "argv", ["lockstep", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, f"{arguments}: {ended.value.code}\n{said.out}\n{said.err}"
        assert "Traceback" not in said.err
        return said.err

    return run
