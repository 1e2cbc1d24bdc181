"""Runs the core of the tests with other versions of Python, Keras and JAX: `make test-versions`.

Each row has an environment of its own under `.versions`, which uv makes. `--only lowest,nightly` runs some rows, and
`--core` a shorter list of tests, without the demo. As in `make test`, XLA compiles the tests' programs with less
effort. The last lines are a table: versions, tests, time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".versions"
LIMIT_S = 3600

CORE = [
    "tests/upstream",
    "tests/strategies/test_conformance.py",
    "tests/strategies/test_fitting.py",
    "tests/strategies/test_epochs.py",
    "tests/strategies/test_exactness_fit.py",
    "tests/strategies/test_gradient_sums.py",
    "tests/strategies/test_lstm.py",
    "tests/strategies/test_sharded.py",
    "tests/checkpoints",
    "tests/parameter_server/test_exact_steps.py",
    "tests/service/api/test_access.py",
    "tests/service/api/test_threads.py",
    "tests/service/console/test_event_streams.py",
    "tests/service/console/test_submitting.py",
]
ALL = [
    "tests/upstream",
    "tests/strategies",
    "tests/checkpoints",
    "tests/training",
    "tests/planning",
    "tests/parameter_server/test_exact_steps.py",
    "tests/parameter_server/test_model_setup.py",
    "tests/parameter_server/fitting",
    "tests/parameter_server/scheduling",
    "tests/parameter_server/embedding",
    "tests/parameter_server/server",
    "tests/service/api",
    "tests/service/console",
]


@dataclass(frozen=True, kw_only=True)
class Row:
    """An environment.

    Attributes:
        name: what `--only` calls it.
        python: the version of Python that uv finds; of several, the first in PATH, or pyenv's newest.
        install: makes the environment's packages: commands of uv, one after the other.
    """

    name: str
    python: str
    install: tuple[tuple[str, ...], ...]


_LOCK = (("sync", "--frozen", "--extra", "dev", "--extra", "language"),)
_NO_KERAS = FOLDER / "no-keras.txt"
ROWS = (
    Row(
        name="lowest",
        python="3.11",
        install=(("pip", "install", "--resolution", "lowest-direct", "--editable", ".[dev]"),),
    ),
    Row(name="lock-3.11", python="3.11", install=_LOCK),
    Row(name="lock-3.12", python="3.12", install=_LOCK),
    Row(name="lock-3.13", python="3.13", install=_LOCK),
    Row(name="lock-3.14", python="3.14", install=_LOCK),
    Row(
        name="nightly",
        python=">=3.11",
        install=(
            ("pip", "install", "--upgrade", "--override", str(_NO_KERAS), "--editable", ".[dev]"),
            ("pip", "install", "--upgrade", "--prerelease", "allow", "keras-nightly"),
        ),
    ),
)


def main() -> int:
    """Runs the rows; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows, with commas between them: " + ", ".join(r.name for r in ROWS))
    parser.add_argument("--core", action="store_true", help="the shorter list of tests, without the demo")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}")
    FOLDER.mkdir(exist_ok=True)
    _NO_KERAS.write_text('keras ; python_version < "3"\n')  # the nightly package has the same module
    results = [run(row, is_core=options.core) for row in ROWS if row.name in wanted]
    print("\n| row | versions | tests | time |\n|---|---|---|---|")
    for line, _ in results:
        print(line)
    return 0 if all(passed for _, passed in results) else 1


def run(row: Row, *, is_core: bool) -> tuple[str, bool]:
    """Makes an environment, and runs the tests and the demo in it.

    Returns:
        A line of the table, and whether everything passed.
    """
    folder = FOLDER / row.name
    began_s = time.monotonic()
    print(f"\n=== {row.name}", flush=True)
    made = make(row, folder)
    if made is not None:
        return f"| {row.name} | not made: {made} | - | {time.monotonic() - began_s:.0f} s |", False
    python = folder / "bin" / "python"
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LOCKSTEP_TEST_COMPILE": "quick",
        "LOCKSTEP_TEST_VERSIONS": "1",
    }
    command = [python, "-m", "pytest", "-q", "-W", "default", "-n", "3", "--dist", "loadfile"]
    # A process that crashes is not started again: with `loadfile`, the new one would wait for ever.
    command += ["--max-worker-restart", "0"]
    command += ["-m", "not heavy and not product", *(CORE if is_core else ALL)]
    tested = _run(command, env=env)
    print(tested[1][-6000:], flush=True)
    demo = (0, "") if is_core else _run([python, "examples/demo.py"], env=env)
    print(demo[1][-1500:] if demo[0] == 0 else demo[1], flush=True)
    versions = _run([python, "-c", VERSIONS], env=env)[1].strip().splitlines()[-1]
    counted = re.findall(r"\d+ (?:passed|failed|skipped|error)\w*", tested[1].rpartition("\n=")[2] or tested[1][-300:])
    told = ", ".join(counted) or "none"
    if not is_core:
        told += f"; demo {'ran' if demo[0] == 0 else 'failed'}"
    return f"| {row.name} | {versions} | {told} | {time.monotonic() - began_s:.0f} s |", tested[0] == demo[0] == 0


VERSIONS = (
    "import sys, keras, jax, numpy; print(f'Python {sys.version.split()[0]}, Keras {keras.__version__}, "
    "JAX {jax.__version__}, NumPy {numpy.__version__}')"
)


def make(row: Row, folder: Path) -> str | None:
    """Makes a row's environment; returns what went wrong, in a line, or None."""
    uv = shutil.which("uv", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}") or "uv"
    env = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder), "VIRTUAL_ENV": str(folder)}
    if shutil.which("pyenv"):  # its commands are found in PATH, and run only if its setting has them
        env["PYENV_VERSION"] = ":".join(_run(["pyenv", "versions", "--bare"], env=env)[1].split()[::-1])
    commands = [("venv", "--quiet", "--allow-existing", "--python", row.python, str(folder)), *row.install]
    for arguments in commands:
        code, output = _run([uv, *arguments], env=env)
        if code:
            print(output[-3000:], flush=True)
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            return next((line for line in lines if "because" in line.lower() or "error" in line.lower()), "uv failed")
    return None


def _run(command: list[str | Path], *, env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
