"""Which file says what a program needs, and what decides an environment's content."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import ConfigError, InvalidInputError, MissingInputError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.runner.python_environment import SourceKind, find_source

PROJECT = '[project]\nname = "p"\nversion = "0"\ndependencies = ["x"]\n'
AUTO = PythonEnvironment()


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["requirements.txt"], ("requirements.txt", SourceKind.REQUIREMENTS)),
        (["requirements.txt", "requirements.lock"], ("requirements.lock", SourceKind.REQUIREMENTS)),
        (["requirements.lock", "pylock.toml"], ("pylock.toml", SourceKind.REQUIREMENTS)),
        (["pyproject.toml"], ("pyproject.toml", SourceKind.PROJECT)),
        (["pyproject.toml", "requirements.txt"], ("requirements.txt", SourceKind.REQUIREMENTS)),
        (["pyproject.toml", "requirements.txt", "uv.lock"], ("uv.lock", SourceKind.LOCKED_PROJECT)),
        (["uv.lock"], None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_the_file_that_says_most_is_found(
    tmp_path: Path, names: list[str], expected: tuple[str, SourceKind] | None
) -> None:
    for name in names:
        (tmp_path / name).write_text(PROJECT if name == "pyproject.toml" else "")
    source = find_source(tmp_path, asked=AUTO)
    assert (None if source is None else (source.name, source.kind)) == expected


def test_a_project_that_needs_nothing_has_no_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "0"\n[tool.ruff]\nline-length = 9\n')
    assert find_source(tmp_path, asked=AUTO) is None
    with pytest.raises(InvalidInputError, match="names no dependencies"):
        find_source(tmp_path, asked=PythonEnvironment(project=True))


def test_what_the_job_names_goes_before_what_is_found(tmp_path: Path) -> None:
    _write(tmp_path, requirements_DOT_txt="", extra__more_DOT_txt="", pyproject_DOT_toml=PROJECT)
    named = find_source(tmp_path, asked=PythonEnvironment(requirements="extra/more.txt"))
    assert named is not None
    assert named.path == tmp_path / "extra" / "more.txt"
    project = find_source(tmp_path, asked=PythonEnvironment(project=True))
    assert project is not None
    assert project.name == "pyproject.toml"
    assert find_source(tmp_path, asked=PythonEnvironment(none=True)) is None


@pytest.mark.parametrize("asked", [PythonEnvironment(requirements="a.txt"), PythonEnvironment(project=True)], ids=str)
def test_a_file_that_is_not_there_is_named(tmp_path: Path, asked: PythonEnvironment) -> None:
    with pytest.raises(MissingInputError, match=asked.requirements or "pyproject.toml"):
        find_source(tmp_path, asked=asked)


def test_a_project_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(InvalidInputError, match=r"pyproject\.toml is not TOML"):
        find_source(tmp_path, asked=AUTO)


def _digest(folder: Path) -> str:
    source = find_source(folder, asked=AUTO)
    assert source is not None
    return source.digest()


def test_the_code_does_not_decide_the_environment_and_the_files_it_names_do(tmp_path: Path) -> None:
    _write(
        tmp_path, requirements_DOT_txt="-r more.txt\n", more_DOT_txt="-c deep/pins.txt\nx\n", deep__pins_DOT_txt="x==1"
    )
    digests = {_digest(tmp_path)}
    (tmp_path / "train.py").write_text("1")
    assert _digest(tmp_path) in digests
    for name, text in (
        ("requirements.txt", "-r more.txt\ny\n"),
        ("more.txt", "x\n-c deep/pins.txt"),
        ("deep/pins.txt", "x==2"),
    ):
        (tmp_path / name).write_text(text)
        assert _digest(tmp_path) not in digests
        digests.add(_digest(tmp_path))


@pytest.mark.parametrize("line", ["./lib", "lib @ file:///job/lib", "lib @ ./lib", "a \\\n  # why\n./lib"])
def test_code_that_is_installed_from_the_folder_decides_it_too(tmp_path: Path, line: str) -> None:
    _write(tmp_path, requirements_DOT_txt=line, lib__setup_DOT_py="1")
    before = _digest(tmp_path)
    (tmp_path / "lib" / "setup.py").write_text("2")
    assert _digest(tmp_path) != before


@pytest.mark.parametrize(
    ("name", "text", "local"),
    [
        ("pyproject.toml", PROJECT + '[tool.uv.sources]\nx = { path = "lib" }\n', True),
        ("pyproject.toml", '[project]\nname = "p"\ndynamic = ["dependencies"]\n', True),
        ("pylock.toml", '[[packages]]\nname = "x"\ndirectory = { path = "lib" }\n', True),
        ("pyproject.toml", PROJECT, False),
    ],
)
def test_projects_that_install_code_of_the_folder(tmp_path: Path, name: str, text: str, local: bool) -> None:
    (tmp_path / name).write_text(text)
    before = _digest(tmp_path)
    (tmp_path / "setup.py").write_text("2")
    assert (_digest(tmp_path) != before) is local


def test_the_project_itself_in_its_lock_is_not_code_to_install(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "p"\nsource = { virtual = "." }\n')
    before = _digest(tmp_path)
    (tmp_path / "train.py").write_text("2")
    assert _digest(tmp_path) == before
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "p"\nsource = { virtual = "." }\n# other\n')
    assert _digest(tmp_path) != before


def test_an_editable_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n-e ./lib\n")
    with pytest.raises(InvalidInputError, match=r"requirements\.txt.*'-e \./lib'.*without -e"):
        _digest(tmp_path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"requirements": "../r.txt"}, "a path within the folder"),
        ({"requirements": "/etc/r.txt"}, "a path within the folder"),
        ({"requirements": "r.txt", "none": True}, "not together with requirements"),
        ({"project": True, "none": True}, "not together with project"),
        ({"conda": "x"}, "unknown key trainingInput.lockstep.environment.conda"),
    ],
    ids=str,
)
def test_what_a_job_cannot_ask_for(environment: dict[str, object], message: str) -> None:
    document = {"trainingInput": {"pythonModule": "m", "lockstep": {"environment": environment}}}
    with pytest.raises(ConfigError, match=message):
        parse_training_input(document, source="c.yaml")
