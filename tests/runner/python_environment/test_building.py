"""Environments as uv builds them, from an index on loopback alone, on top of the node's packages."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runner.python_environment.wheels import index_of, make_wheel

from lockstep.errors import InvalidInputError, UnavailableError
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.runner.python_environment import EnvironmentBuilder, EnvironmentCache, find_source
from lockstep.runner.python_environment.building import environment_key, indexes

OLD = "0.0.1"
"""A version of a package that the node has in another one."""

LOOK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


class Bench:
    """An index, a program's folder, a cache, and what was said."""

    def __init__(self, folder: Path, url: str, asked: list[str]) -> None:
        self.url = url
        self.asked = asked
        self.code = folder / "job"
        self.code.mkdir()
        self.cache = EnvironmentCache(folder / "cache")
        self.said: list[str] = []

    def builder(self, **node: str) -> EnvironmentBuilder:
        variables = {"UV_DEFAULT_INDEX": self.url, "UV_HTTP_RETRIES": "0", "PATH": "/usr/bin:/bin", **node}
        return EnvironmentBuilder(self.cache, node=variables, report_line=self.said.append)

    def build(self, asked: PythonEnvironment | None = None, **node: str) -> Path:
        source = find_source(self.code, asked=asked or PythonEnvironment())
        assert source is not None
        lease = self.builder(**node).provide(source)
        lease.close()
        return lease.folder


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "tiny", "1.0", requires=["numpy", "tinier>=1"])
    make_wheel(wheels, "tiny", "2.0", requires=["nowhere"])
    make_wheel(wheels, "tinier", "1.5")
    make_wheel(wheels, "lark", OLD)
    with index_of(wheels, tmp_path / "index") as (url, asked):
        yield Bench(tmp_path, url, asked)


def _versions(environment: Path, *names: str) -> dict[str, str | None]:
    command = [str(environment / "bin" / "python"), "-c", LOOK, *names]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, env={}).stdout)


@pytest.mark.heavy
def test_what_the_node_has_is_seen_and_only_the_rest_is_fetched(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text("tiny<2  # with what it needs\n")
    environment = bench.build()
    node = {name: importlib.metadata.version(name) for name in ("numpy", "keras", "lockstep-train")}
    assert _versions(environment, "tiny", "tinier", *node) == {"tiny": "1.0", "tinier": "1.5", **node}
    assert not any("numpy" in path and path.endswith(".whl") for path in bench.asked)
    script = "import tiny, tinier, keras, numpy; print(tiny.__file__)"
    shown = subprocess.run([environment / "bin" / "python", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(str(environment))
    assert {path.name for path in environment.rglob("*.dist-info")} == {"tiny-1.0.dist-info", "tinier-1.5.dist-info"}
    assert any("tiny==1.0" in line for line in bench.said)


def test_what_the_node_has_all_of_needs_no_index(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text("lockstep-train\nnumpy>=2\n")
    assert _versions(bench.build(UV_DEFAULT_INDEX="http://127.0.0.1:9/"), "numpy")["numpy"] is not None
    assert bench.asked == []


def test_the_users_pin_wins_over_the_nodes_version(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text(f"lark=={OLD}\n")
    environment = bench.build()
    assert importlib.metadata.version("lark") != OLD
    assert _versions(environment, "lark") == {"lark": OLD}
    shown = subprocess.run(
        [environment / "bin" / "python", "-c", "import lark; print(lark.VERSION)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == OLD


def test_a_second_job_with_the_same_content_builds_nothing(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text("tinier\n")
    first = bench.build()
    num_asked = len(bench.asked)
    (bench.code / "train.py").write_text("print(1)")
    assert bench.build() == first
    assert len(bench.asked) == num_asked
    (bench.code / "requirements.txt").write_text("tinier>1\n")
    assert bench.build() != first


@pytest.mark.parametrize("name", ["pyproject.toml", "pylock.toml", "uv.lock"])
@pytest.mark.heavy
def test_projects_and_locks(bench: Bench, name: str) -> None:
    project = bench.code / "pyproject.toml"
    project.write_text(
        '[project]\nname = "job"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["tinier"]\n'
        '[dependency-groups]\ndev = ["nowhere-at-all"]\n'
    )
    wheel = f"{bench.url}tinier-1.5-py3-none-any.whl"
    if name == "pylock.toml":
        project.unlink()
        (bench.code / name).write_text(
            'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "tinier"\nversion = "1.5"\n'
            f'wheels = [{{ url = "{wheel}", hashes = {{}} }}]\n'
        )
    if name == "uv.lock":
        (bench.code / name).write_text(
            'version = 1\nrequires-python = ">=3.11"\n'
            '[[package]]\nname = "job"\nversion = "0"\nsource = { virtual = "." }\n'
            'dependencies = [{ name = "tinier" }]\n'
            '[package.metadata]\nrequires-dist = [{ name = "tinier" }]\n'
            f'[[package]]\nname = "tinier"\nversion = "1.5"\nsource = {{ registry = "{bench.url}" }}\n'
            f'wheels = [{{ url = "{wheel}" }}]\n'
        )
    assert _versions(bench.build(), "tinier", "job", "keras")["tinier"] == "1.5"


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("nowhere", r"of requirements\.txt cannot be built: Because nowhere was not found .* you require nowhere"),
        ("tiny==2.0", r"nowhere was not found .* tiny.*2\.0 depends on nowhere"),
        ("tiny==1.0\ntinier<1", r"tiny<=1\.0 depends on tinier>=1"),
        ("-r absent.txt", r"absent\.txt"),
    ],
    ids=["unknown", "unknown-below", "conflict", "missing-file"],
)
def test_what_cannot_be_built_is_the_users_error_in_one_line(bench: Bench, requirement: str, message: str) -> None:
    (bench.code / "requirements.txt").write_text(requirement + "\n")
    with pytest.raises(InvalidInputError, match=message) as raised:
        bench.build()
    assert len(str(raised.value).splitlines()) == 1
    assert "cause:" not in str(raised.value)
    assert not [path for path in (bench.cache.downloads.parent).iterdir() if path.suffix == ".partial"]


def test_an_index_that_does_not_answer_is_the_machines(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text("tiny\n")
    with pytest.raises(UnavailableError, match=r"requirements\.txt cannot be built.*127\.0\.0\.1:9"):
        bench.build(UV_DEFAULT_INDEX="http://127.0.0.1:9/")


def test_a_build_is_aborted_from_another_thread(bench: Bench) -> None:
    (bench.code / "requirements.txt").write_text("silent\n")
    outcome: list[BaseException] = []
    source = find_source(bench.code, asked=PythonEnvironment())
    assert source is not None
    connected, over = threading.Event(), threading.Event()

    def accept() -> None:
        connection, _ = listener.accept()
        connected.set()
        over.wait(30)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        builder = bench.builder(UV_DEFAULT_INDEX=f"http://127.0.0.1:{listener.getsockname()[1]}/")

        def provide() -> None:
            try:
                builder.provide(source)
            except BaseException as error:  # looked at below
                outcome.append(error)

        threads = [threading.Thread(target=accept), threading.Thread(target=provide)]
        for thread in threads:
            thread.start()
        assert connected.wait(30)
        builder.abort()
        threads[1].join(10)
        over.set()
        threads[0].join(10)
    assert len(outcome) == 1
    assert isinstance(outcome[0], InvalidInputError)


def test_where_packages_come_from_is_handed_on_by_uvs_names_and_decides_the_key(bench: Bench) -> None:
    node = {
        "PIP_INDEX_URL": "http://a/",
        "PIP_FIND_LINKS": "/x /y",
        "UV_INDEX_MINE_PASSWORD": "p",
        "UV_PYTHON": "3.9",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    found = indexes(node)
    assert found == {"UV_DEFAULT_INDEX": "http://a/", "UV_FIND_LINKS": "/x,/y", "UV_INDEX_MINE_PASSWORD": "p"}
    assert indexes({**node, "UV_DEFAULT_INDEX": "http://b/"})["UV_DEFAULT_INDEX"] == "http://b/"
    (bench.code / "requirements.txt").write_text("x")
    source = find_source(bench.code, asked=PythonEnvironment())
    assert source is not None
    assert environment_key(source, indexes={}) != environment_key(source, indexes=found)
