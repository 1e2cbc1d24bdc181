"""Measures training on one GPU beside PyTorch: the same models, batches and steps, in turn, in bfloat16.

``python benchmarks/gpu.py [--models a,b] [--sides a,b] [--batch-sizes 32,128] [--rounds N] [--steps N]``. Environments
with JAX for CUDA and with PyTorch are made in the folder, once: 12 GB. First both sides' models are compared: their
parameters, their operations, and their losses from the same weights. Then each side compiles alone, and rounds follow
in turn. Prints tables as Markdown, and writes all figures as JSON. Takes about an hour on a GPU. Without one it trains
small sizes on the processor, to see that everything works; what that prints is no result.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from harness import columns
from harness.environments import InstallationError, peer_python, versions
from harness.options import count, counts
from harness.program import Program
from harness.results import Result
from harness.sides import SideError, SideSpec, running, take_turns
from harness.tables import console, show
from training.cases import CASES
from training.rounds import Check, Order
from training.sides import KINDS, NVIDIA_SMI, OURS, has_gpu, lockstep_python, spec_of

PROGRAM: Final = "benchmarks/gpu.py"
GIB: Final = 2**30
TERA: Final = 10**12
OPERATIONS_TOLERANCE: Final = 1e-3
LOSS_TOLERANCE: Final = 1e-4
CHANGE_TOLERANCE: Final = 0.1
"""Of the losses' change from the first step to the last: each side rounds gradients its own way."""
SMALL_BATCH: Final = 4
TRAINING: Final = 3
"""A step's operations over those forward: backward, each product has two, of its inputs and of its weights."""
NO_RESULT: Final = "CPU, small sizes: this shows that the benchmark runs. It is not a result."


def change(said: Check) -> float:
    """Returns how far the loss came from the first step to the last."""
    return said.losses[-1] - said.losses[0]


def check(model: str, pythons: Mapping[str, Path], *, size: str, folder: Path) -> int:
    """Ends where the sides' models are not the same.

    Returns:
        The operations of one example, forward.
    """
    said: dict[str, Check] = {}
    for name, python in pythons.items():
        if KINDS[name].autotunes and "pytorch" in pythons:
            continue  # which is the same model
        order = Order(
            case=model,
            size=size,
            batch_size=SMALL_BATCH,
            num_steps=1,
            checks=True,
            weights=str(folder / f"{model}.npz"),
        )
        spec = spec_of(name, python=python, order=order, gpu=False)
        with running(spec, log=folder / f"{model}-{name}-check.log") as side:
            said[name] = Check(**side.hear())
    first = said[OURS]
    for name, other in said.items():
        same = (
            other.num_parameters == first.num_parameters
            and math.isclose(other.forward_operations, first.forward_operations, rel_tol=OPERATIONS_TOLERANCE)
            and math.isclose(other.losses[0], first.losses[0], rel_tol=LOSS_TOLERANCE)
            and math.isclose(change(other), change(first), rel_tol=CHANGE_TOLERANCE)
        )
        if not same:
            sys.exit(f"{PROGRAM}: {model} is not the same model on both sides: {OURS} {first}; {name} {other}")
    losses = "; ".join(f"{name} {', '.join(f'{loss:.5f}' for loss in one.losses)}" for name, one in said.items())
    gflop = first.forward_operations / 1e9
    console.print(
        f"{CASES[model].title}: {first.num_parameters:,} parameters; forward, {gflop:,.2f} GFLOP an example; "
        f"losses of the small size in float32: {losses}"
    )
    return first.forward_operations


def run_case(options: argparse.Namespace, model: str, batch_size: int, operations: int) -> list[Result]:
    """Measures all sides with one model and batch size. They compile one after the other, then rounds take turns."""
    case = CASES[model]
    units_of_one = case.units_of(case.size(options.size))
    specs: dict[str, SideSpec] = {}
    for name, python in options.pythons.items():
        order = Order(
            case=model,
            size=options.size,
            batch_size=batch_size,
            num_steps=options.steps,
            steps_per_execution=options.steps_per_execution,
            autotunes=KINDS[name].autotunes,
        )
        specs[name] = spec_of(name, python=python, order=order, gpu=options.gpu)
    heard = take_turns(specs, num_rounds=options.rounds, logs=options.folder / "logs" / f"{model}-{batch_size}")
    peak_rate = options.peak_tflops * TERA if options.peak_tflops else heard[OURS].ready.get("peak_rate")
    results = []
    for name, one in heard.items():
        speeds = [options.steps * batch_size * units_of_one / said["wall_s"] for said in one.rounds]
        losses = [said["loss"] for said in one.rounds]
        more: dict[str, Any] = {name: one.ready.get(name) for name in ("device", "compile_s")}
        more["peak_gib"] = max((said["peak_bytes"] / GIB for said in one.rounds), default=None)
        if peak_rate is not None and speeds and not options.small:
            # The share of the device's published peak rate, by the median round.
            more["utilisation"] = TRAINING * operations * median(speeds) / units_of_one / peak_rate
        wrong = "" if all(map(math.isfinite, losses)) else f"{KINDS[name].title} came to the losses {losses}"
        found = {"case": f"{case.title}, batch {batch_size}", "side": name, "unit": f"{case.unit} a second"}
        results.append(Result(**found, values=speeds, more=more, error=one.error or wrong))
    return results


def show_figures(results: Sequence[Result]) -> None:
    shown = {
        "model": columns.case,
        "side": lambda one: KINDS[one.side].title,
        "a second": lambda one: f"{one.text(1)} {one.unit.removesuffix(' a second')}",
        "MFU": lambda one: f"{one.more['utilisation']:.1%}" if "utilisation" in one.more else "",
        "peak, GiB": columns.more("peak_gib", 1),
        "compile, s": columns.more("compile_s", 0),
        "times as fast": columns.of_ours(results, OURS, rates=True),
    }
    columns.show_results(results, shown)


def describe_gpu() -> str:
    """Says what the GPU is."""
    command = [NVIDIA_SMI, "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]


def prepare_pythons(options: argparse.Namespace) -> dict[str, Path]:
    """Returns each side's Python. What cannot be installed ends the benchmark in one line."""
    pythons: dict[str, Path] = {}
    for name in options.sides:
        if name != OURS:
            pythons[name] = options.pytorch or peer_python("pytorch", folder=options.folder)
            continue
        try:
            pythons[name] = options.lockstep or lockstep_python(gpu=options.gpu, folder=options.folder)
        except InstallationError as error:
            sys.exit(f"{PROGRAM}: {error}")
    return pythons


def parse(program: Program) -> argparse.Namespace:
    gpu = has_gpu()
    program.add_choice("--models", list(CASES))
    program.add_choice("--sides", list(KINDS), default=[name for name in KINDS if gpu or not KINDS[name].autotunes])
    program.add("--batch-sizes", type=counts, help="of all models (default: each model's own)")
    program.add("--steps", type=count, default=50, help="steps of a round (default: %(default)s)")
    program.add("--steps-per-execution", type=count, default=1, help="Keras's, for Lockstep (default: 1)")
    program.add("--lockstep", type=Path, help="a Python with Lockstep, JAX for the GPU, and KerasHub")
    program.add("--pytorch", type=Path, help="a Python with torch and torchvision")
    program.add("--peak-tflops", type=float, help="the GPU's rate in bfloat16 (default: as published)")
    program.parser.set_defaults(small=not gpu)
    options = program.parse(small={"rounds": 2, "steps": 2})
    options.gpu, options.size = gpu, "small" if options.small else "full"
    if OURS not in options.sides:
        program.parser.error(f"--sides: the others are compared with {OURS}, so name it, too")
    if options.steps % options.steps_per_execution:
        program.parser.error(
            f"--steps: received {options.steps}; allowed: a multiple of {options.steps_per_execution}, "
            "as --steps-per-execution has it"
        )
    return options


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="gpu", num_rounds=5)
    options = parse(program)
    options.pythons = prepare_pythons(options)
    packages = {name: versions(python, KINDS[name].shown) for name, python in options.pythons.items()}
    if options.small:
        console.print(f"{NO_RESULT}\n")
    gpu = describe_gpu() if options.gpu else "none"
    console.print(f"GPU: {gpu}; steps of a round: {options.steps}\n")
    show(("side", "versions"), [(KINDS[name].title, text) for name, text in packages.items()])
    results: list[Result] = []
    try:
        for model in options.models:
            operations = check(model, options.pythons, size=options.size, folder=options.folder / "logs")
            own = [SMALL_BATCH] if options.small else CASES[model].batch_sizes
            for batch_size in options.batch_sizes or own:
                results += run_case(options, model, batch_size, operations)
    except SideError as error:
        sys.exit(f"{PROGRAM}: {error}")
    finally:
        show_figures(results)
        more = {"gpu": gpu, "steps": options.steps, "stepsPerExecution": options.steps_per_execution}
        program.finish(results, packages=packages, **more)


if __name__ == "__main__":
    main()
