"""Measures how long a training takes to its first step, and an import and a help text: beside plain Keras on JAX.

``python benchmarks/start.py [--cases a,b] [--rounds N]``. Each figure is of a new process. A cold start compiles all
programs. A warm start finds them in JAX's compilation cache, which the start before has filled. Prints tables as
Markdown, medians over rounds, and writes the results as JSON.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

from fit import KINDS, spec_of
from fitting.cases import CASES
from harness import columns
from harness.environments import own_versions
from harness.program import Program
from harness.results import Result, measure_in_turn, result_of
from harness.sides import environment_of, running
from harness.turns import turns

SIDES: Final = ("keras", "one-device", "mirrored")
COMMANDS: Final = {
    "import keras": (sys.executable, "-c", "import keras"),
    "import lockstep": (sys.executable, "-c", "import lockstep"),
    "import lockstep, keras": (sys.executable, "-c", "import lockstep, keras"),
    "lockstep --help": (str(Path(sys.executable).with_name("lockstep")), "--help"),
    "lockstep --version": (str(Path(sys.executable).with_name("lockstep")), "--version"),
}
TIMEOUT_S: Final = 300


def first_step_s(case: str, name: str, *, cache: Path, logs: Path) -> dict[str, float]:
    """Starts a side with a compilation cache.

    Returns:
        Seconds from the start of its program to the end of its first step, and those of the call of the first step.
    """
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    spec = spec_of(name, case, CASES[case].batch_sizes[0], python=Path(sys.executable))
    spec = replace(spec, variables={**spec.variables, **cached})
    with running(spec, log=logs / f"{case}-{name}.log") as side:
        ready = side.hear()
        side.kill()
    return {name: ready[name] for name in ("start_s", "first_step_s")}


def measure_starts(cases: list[str], *, num_rounds: int, logs: Path) -> list[Result]:
    """Measures first steps, the sides in turn, each cold and then warm."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for _, (case, name) in turns(product(cases, SIDES), num_rounds=num_rounds):
        with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as cache:
            for kind in ("cold", "warm"):
                seconds = first_step_s(case, name, cache=Path(cache), logs=logs)
                found.setdefault((case, name, kind), []).append(seconds)
    return [
        result_of(
            rounds,
            value="start_s",
            case=f"{CASES[case].title}, {kind}",
            side=KINDS[name].title,
            unit="seconds",
        )
        for (case, name, kind), rounds in sorted(found.items())
    ]


def run(command: str) -> dict[str, float]:
    """Returns the seconds of a whole process."""
    environment = environment_of({"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    started = time.perf_counter()
    subprocess.run(COMMANDS[command], env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
    return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="start", num_rounds=5)
    program.add_choice("--cases", list(CASES), default=["dense", "cnn", "densenet121"])
    options = program.parse(small={"cases": ["dense"], "rounds": 2})
    starts = measure_starts(options.cases, num_rounds=options.rounds, logs=program.logs())
    shown = {"model": columns.case, "side": columns.side, "start to first step, s": columns.values()}
    columns.show_results(starts, {**shown, "first step, s": columns.more("first_step_s")})
    commands = measure_in_turn(
        [(name, "") for name in COMMANDS],
        lambda name, _side: run(name),
        num_rounds=options.rounds,
        value="seconds",
        unit="seconds",
        warms_up=True,  # it reads the files of the packages from the disk
    )
    columns.show_results(commands, {"process": columns.case, "seconds": columns.values()})
    program.finish([*starts, *commands], packages={"this environment": own_versions()})


if __name__ == "__main__":
    main()
