"""The help of every command: whole sentences, under titles, and examples that the command accepts."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli.commands import make_app
from lockstep.cli.examples import EXAMPLES
from lockstep.cli.reference import commands_of

APP = make_app()
ROOT: Any = typer.main.get_command(APP)


COMMANDS = dict(commands_of(ROOT))


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert COMMANDS.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("path", list(COMMANDS))
def test_a_command_accepts_its_examples_and_shows_them_as_they_are(path: str) -> None:
    shown = CliRunner().invoke(APP, [*path.split(), "--help"]).output
    for example in EXAMPLES[path]:
        assert f"\n  {example}\n" in shown
        words = shlex.split(example.partition(" > ")[0])
        assert words[: 1 + len(path.split())] == ["lockstep", *path.split()]
        COMMANDS[path].make_context(path, words[1 + len(path.split()) :])


@pytest.mark.parametrize("group", ["", *sorted({path.split()[0] for path in EXAMPLES if " " in path})])
def test_no_sentence_of_a_list_of_commands_is_cut(group: str) -> None:
    shown = CliRunner().invoke(APP, [*group.split(), "--help"]).output
    _, _, listed = shown.partition("Show this message and exit.\n")
    assert "..." not in listed.replace('{"predictions": [...]}', "")
    for name, command in (ROOT if not group else ROOT.commands[group]).commands.items():
        assert f"\n  {name} " in listed
        assert " ".join(command.get_short_help_str(1000).split()) in " ".join(listed.split())


def test_the_commands_stand_under_titles() -> None:
    shown = CliRunner().invoke(APP, ["--help"]).output
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Options:",
        "Service:",
        "Jobs:",
        "Models:",
        "Data:",
        "Scripts, without a service:",
        "Access:",
        "Your shell:",
    ]


@pytest.mark.parametrize("used", ["", "--help"])
def test_the_list_of_commands_is_the_same_without_their_modules(used: str) -> None:
    assert CliRunner().invoke(make_app(used), ["--help"]).output == CliRunner().invoke(APP, ["--help"]).output
