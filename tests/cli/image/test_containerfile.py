"""The Containerfile of a program that has none."""

from __future__ import annotations

import pytest

from lockstep.cli.image.containerfile import default_base, find_module, write_containerfile
from lockstep.errors import ConfigError, MissingInputError

PIP = "RUN python3 -m pip install --no-cache-dir --root-user-action=ignore"


def test_requirements_are_installed_before_the_code_comes() -> None:
    text = write_containerfile({"requirements.txt": None, "train.py": None}, base="b", module="train")
    assert text.splitlines() == [
        "FROM b",
        "WORKDIR /program",
        "ENV PYTHONUNBUFFERED=1",
        "COPY requirements.txt ./",
        f"{PIP} --requirement requirements.txt",
        "COPY . .",
        "USER 1000:1000",
        'ENTRYPOINT ["python3", "-m", "train"]',
    ]


def test_a_projects_dependencies_are_installed_too() -> None:
    project = '[project]\nname = "x"\ndependencies = ["jax>=0.9", "keras[a]; python_version > \'3\'"]\n'
    text = write_containerfile({"pyproject.toml": project}, base="b", module="train")
    assert f'{PIP} "jax>=0.9" "keras[a]; python_version > \'3\'"' in text.splitlines()
    assert "pip" not in write_containerfile({"pyproject.toml": "[tool.x]\n"}, base="b", module="train")


@pytest.mark.parametrize(
    ("project", "message"),
    [
        ("[project", "pyproject.toml: "),
        ('project = "x"\n', "pyproject.toml: project; received 'x'; allowed: a table"),
        ('[project]\ndependencies = "jax"\n', "pyproject.toml: project.dependencies; received 'jax'; allowed: a list"),
        ('[project]\ndependencies = ["$(rm -rf /)"]\n', "allowed: requirements without"),
    ],
    ids=["no TOML", "no table", "no list", "a shell's"],
)
def test_a_project_that_cannot_be_read_is_named(project: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        write_containerfile({"pyproject.toml": project}, base="b", module="train")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("files", "module"),
    [
        (["a.py", "train.py"], "train"),
        (["trainer/task.py", "setup.py", "x.py"], "trainer.task"),
        (["only.py", "data/x.csv", "lib/y.py"], "only"),
    ],
    ids=["train", "trainer", "only"],
)
def test_the_program_is_found_where_it_is_clear(files: list[str], module: str) -> None:
    assert find_module(files) == module


def test_where_it_is_not_clear_it_is_asked_for() -> None:
    with pytest.raises(
        MissingInputError, match=r"which module is the program; received \['a', 'b'\]; name it with --module-name"
    ):
        find_module(["a.py", "b.py"])
    with pytest.raises(MissingInputError, match="received 'no module at the top of the folder'"):
        find_module(["README.md"])


def test_the_base_has_the_python_that_runs_here() -> None:
    assert default_base().startswith("docker.io/library/python:3.")
