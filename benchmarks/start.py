"""Measures how long a training takes to its first step, and an import and a help text: beside plain Keras on JAX.

``python benchmarks/start.py [--cases a,b] [--rounds N]``. Each figure is of a new process. A cold start compiles all
programs. A warm start finds them in JAX's compilation cache, which the start before has filled. Prints tables as
Markdown, medians over rounds, and writes the results as JSON.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from fit import KINDS
from fitting.cases import CASES
from harness.environments import versions
from harness.machine import machine_line
from harness.options import add_harness_options, chosen_from
from harness.results import Result, write_results
from harness.sides import Side, SideSpec, environment_of
from harness.tables import console, show

HERE: Final = Path(__file__).resolve().parent
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
    variables = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    spec = SideSpec(
        title=KINDS[name].title,
        python=Path(sys.executable),
        module=KINDS[name].module,
        order={**KINDS[name].order, "case": case, "batch_size": CASES[case].batch_sizes[0]},
        environment={**environment_of(KINDS[name].environment), **variables},
    )
    side = Side(spec, log=logs / f"{case}-{name}.log")
    try:
        ready = side.hear()
    finally:
        side.kill()
    return ready["start_s"], ready["first_step_s"]


def measure_starts(cases: list[str], *, num_rounds: int, logs: Path) -> list[Result]:
    """Measures first steps, the sides in turn, each cold and then warm."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for number in range(num_rounds):
        for case in cases:
            for name in SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]:
                with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as cache:
                    for kind in ("cold", "warm"):
                        seconds = first_step_s(case, name, cache=Path(cache), logs=logs)
                        found.setdefault((case, name, kind), []).append(seconds)
                        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
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
    for _ in range(num_rounds + 1):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
            found[name].append(time.perf_counter() - started)
    # The first round reads the files of the packages from the disk.
    return [Result(case=name, side="", unit="seconds", values=values[1:]) for name, values in found.items()]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the way to the first step.")
    allowed = list(CASES)
    parser.add_argument(
        "--cases", type=chosen_from(allowed), default=["dense", "cnn", "densenet121"], help="default: %(default)s"
    )
    add_harness_options(parser, folder=HERE / ".data" / "start", num_rounds=5)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    options = parse()
    console.print(f"{machine_line()}; rounds: {options.rounds}\n")
    starts = measure_starts(options.cases, num_rounds=options.rounds, logs=options.folder.resolve() / "logs")
    rows = [
        (one.case, one.side, one.text(), Result(case="", side="", unit="", values=one.more["first_step_s"]).text())
        for one in starts
    ]
    show(("model", "side", "start to first step, s", "first step, s"), rows)
    commands = measure_commands(num_rounds=options.rounds)
    show(("process", "seconds"), [(one.case, one.text()) for one in commands])
    packages = {"this environment": versions(sys.executable, ["lockstep-train", "jax", "keras"])}
    write_results(options.json or options.folder / "results.json", [*starts, *commands], packages=packages)


if __name__ == "__main__":
    main()
