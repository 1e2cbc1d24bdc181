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
from pathlib import Path
from typing import Final

from fit import KINDS
from fitting.cases import CASES
from harness import columns
from harness.environments import own_versions
from harness.options import add_choice, make_parser, parse_options
from harness.results import Result, show_machine, write_results
from harness.sides import SideSpec, environment_of, running
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


def first_step_s(case: str, name: str, *, cache: Path, logs: Path) -> tuple[float, float]:
    """Starts a side with a compilation cache.

    Returns:
        Seconds from the start of its program to the end of its first step, and those of the call of the first step.
    """
    cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    spec = SideSpec(
        title=KINDS[name].title,
        module=KINDS[name].module,
        order={**KINDS[name].order, "case": case, "batch_size": CASES[case].batch_sizes[0]},
        variables={**KINDS[name].environment, **cached},
    )
    with running(spec, log=logs / f"{case}-{name}.log") as side:
        ready = side.hear()
        side.kill()
    return ready["start_s"], ready["first_step_s"]


def measure_starts(cases: list[str], *, num_rounds: int, logs: Path) -> list[Result]:
    """Measures first steps, the sides in turn, each cold and then warm."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for _, (case, name) in turns([(case, name) for case in cases for name in SIDES], num_rounds=num_rounds):
        with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as cache:
            for kind in ("cold", "warm"):
                seconds = first_step_s(case, name, cache=Path(cache), logs=logs)
                found.setdefault((case, name, kind), []).append(seconds)
    return [
        Result(
            case=f"{CASES[case].title}, {kind}",
            side=KINDS[name].title,
            unit="seconds",
            values=[whole for whole, _ in seconds],
            more={"first_step_s": [step for _, step in seconds]},
        )
        for (case, name, kind), seconds in sorted(found.items())
    ]


def measure_commands(*, num_rounds: int) -> list[Result]:
    """Measures whole processes, in turn."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    environment = environment_of({"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    # The first round reads the files of the packages from the disk.
    for number, name in turns(COMMANDS, num_rounds=num_rounds, warms_up=True):
        started = time.perf_counter()
        subprocess.run(COMMANDS[name], env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
        if number >= 0:
            found[name].append(time.perf_counter() - started)
    return [Result(case=name, side="", unit="seconds", values=values) for name, values in found.items()]


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__, num_rounds=5, folder="start")
    add_choice(parser, "--cases", list(CASES), default=["dense", "cnn", "densenet121"])
    options = parse_options(parser, small={"cases": ["dense"], "rounds": 2})
    show_machine(rounds=options.rounds)
    starts = measure_starts(options.cases, num_rounds=options.rounds, logs=options.folder / "logs")
    shown = {"model": columns.case, "side": columns.side, "start to first step, s": columns.values()}
    columns.show_results(starts, {**shown, "first step, s": columns.more("first_step_s")})
    commands = measure_commands(num_rounds=options.rounds)
    columns.show_results(commands, {"process": columns.case, "seconds": columns.values()})
    write_results(options, [*starts, *commands], packages={"this environment": own_versions()})


if __name__ == "__main__":
    main()
