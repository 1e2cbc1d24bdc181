"""What commands import that only ask the service: nothing that takes longer than the question."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_models import BOX, Site

from lockstep.home import Home
from lockstep.service.settings import Settings
from lockstep.testing.bench import open_bench
from lockstep.testing.served import HOME_TOKEN, Served

HEAVY = {
    "aiohttp",
    "alembic",
    "cryptography",
    "fastapi",
    "fsspec",
    "grain",
    "jax",
    "keras",
    "lark",
    "libcst",
    "numpy",
    "orbax",
    "pydantic",
    "pygments",
    "ray",
    "re2",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "yaml",
}
PROGRAM = """
import sys
from lockstep.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
finally:
    print("imported:", *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("startup")
    home = Home(path=folder / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as bench:
        bench.cluster.set_nodes((BOX,), in_use={"box": BOX.resources})
        served = Served(bench)
        bench.create("first_job", "pass")
        made = Site(bench, served, folder)
        made.version("v1")
        yield made
        served.close()


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "--help",
        "jobs",
        "describe first_job",
        "describe first_job --json",
        "status",
        "logs first_job",
        "metrics first_job",
        "models list",
        "costs",
        "whoami",
        "top first_job --once",
        "top --json",
        "artifacts first_job",
        "artifacts first_job --json",
        "doctor --help",
        "init --help",
        "tensorboard --help",
    ],
)
def test_a_command_that_asks_the_service_imports_nothing_heavy(line: str, site: Site, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "LOCKSTEP_HOME": str(tmp_path),
        "LOCKSTEP_URL": site.served.url,
        "LOCKSTEP_TOKEN": HOME_TOKEN,
    }
    command = [sys.executable, "-c", PROGRAM, *line.split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    imported = set(done.stderr.rpartition("imported:")[2].split())
    assert "typer" in imported
    assert HEAVY & imported == set()
    if line.endswith(("--version", "--help")):
        assert "httpx" not in imported
