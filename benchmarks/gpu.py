"""Measures training on one GPU beside PyTorch: the same models, batches and steps, in turn, in bfloat16.

``python benchmarks/gpu.py [--models a,b] [--sides a,b] [--batch-sizes 32,128] [--rounds N] [--steps N]``. Environments
with JAX for CUDA and with PyTorch are made in the folder, once: 12 GB. First both sides' models are compared: their
parameters, their operations, and their losses from the same weights. Then each side compiles alone, and rounds follow
in turn. Prints tables as Markdown, and writes all figures as JSON. Takes about an hour on a GPU. Without one it trains
small sizes on the processor, to see that everything works; what that prints is no result.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, final

from harness.environments import InstallationError, versions
from harness.options import chosen_from, count, counts
from harness.sides import Side, SideError, SideSpec, take_turns
from harness.tables import console, show
from training.cases import CASES
from training.rounds import Check, Order, Ready, Round
from training.sides import (
    KINDS,
    NVIDIA_SMI,
    OURS,
    has_gpu,
    lockstep_python,
    pytorch_python,
    spec_of,
)

HERE: Final = Path(__file__).resolve().parent
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


@final
@dataclass(kw_only=True)
class Measured:
    """What was measured of one side, one model and one batch size.

    Attributes:
        model: a name of `CASES`.
        batch_size: examples of a batch.
        side: a name of `KINDS`.
        device: the device's own name.
        compile_s: seconds from the model's making to the end of its first step.
        units_per_s: images or tokens a second, of each round.
        utilisation: the share of the device's published peak rate, by the median round; None where no peak is known.
        peak_gib: the most memory that the process has had.
        error: why there is less, or nothing.
    """

    model: str
    batch_size: int
    side: str
    device: str = ""
    compile_s: float | None = None
    units_per_s: list[float] = field(default_factory=list)
    utilisation: float | None = None
    peak_gib: float | None = None
    error: str = ""


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
        side = Side(spec, log=folder / f"{model}-{name}-check.log")
        with ExitStack() as stack:
            stack.callback(side.end)
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


def run_case(options: argparse.Namespace, model: str, batch_size: int, operations: int) -> list[Measured]:
    """Measures all sides with one model and batch size. They compile one after the other, then rounds take turns."""
    case = CASES[model]
    size = case.size(options.size)
    results = {name: Measured(model=model, batch_size=batch_size, side=name) for name in options.pythons}
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
    units = options.steps * batch_size * case.units_of(size)
    known = Ready(**heard[OURS].ready).peak_rate if heard[OURS].ready else None
    peak_rate = options.peak_tflops * TERA if options.peak_tflops else known
    for name, one in heard.items():
        found, done = results[name], [Round(**said) for said in one.rounds]
        found.error = one.error
        if one.ready:
            ready = Ready(**one.ready)
            found.device, found.compile_s = ready.device, ready.compile_s
        if not done:
            continue
        found.units_per_s = [units / item.wall_s for item in done]
        found.peak_gib = max(item.peak_bytes for item in done) / GIB
        if not all(math.isfinite(item.loss) for item in done):
            found.error = f"{KINDS[name].title} came to the losses {[item.loss for item in done]}"
        if peak_rate is not None and options.size == "full":
            examples_per_s = median(found.units_per_s) / case.units_of(size)
            found.utilisation = TRAINING * operations * examples_per_s / peak_rate
    return list(results.values())


def show_results(results: Sequence[Measured]) -> None:
    head = ("model", "batch", "side", "a second", "least", "most", "MFU", "peak, GiB", "compile, s", "times as fast")
    speeds = {
        (one.model, one.batch_size): median(one.units_per_s) for one in results if one.side == OURS and one.units_per_s
    }
    rows = []
    for one in results:
        case, ours = CASES[one.model], speeds.get((one.model, one.batch_size))
        start = (case.title, str(one.batch_size), KINDS[one.side].title)
        if not one.units_per_s:
            rows.append((*start, "failed", *([""] * 6)))
            continue
        speed = median(one.units_per_s)
        rows.append(
            (
                *start,
                f"{speed:,.1f} {case.unit}",
                f"{min(one.units_per_s):,.1f}",
                f"{max(one.units_per_s):,.1f}",
                "" if one.utilisation is None else f"{one.utilisation:.1%}",
                f"{one.peak_gib:.1f}",
                f"{one.compile_s:.0f}",
                "" if one.side == OURS or ours is None else f"{ours / speed:.2f}",
            )
        )
    show(head, rows)


def describe_machine(*, gpu: bool) -> str:
    """Says what this machine is."""
    if not gpu:
        return f"{platform.processor() or platform.machine()}, no GPU; {platform.platform()}"
    command = [NVIDIA_SMI, "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return f"{done.stdout.splitlines()[0]}; {platform.platform()}"


def prepare_pythons(options: argparse.Namespace) -> dict[str, Path]:
    """Returns each side's Python. What cannot be installed ends the benchmark in one line."""
    try:
        pythons: dict[str, Path] = {}
        for name in options.sides:
            if name == OURS:
                pythons[name] = options.lockstep or lockstep_python(gpu=options.gpu, folder=options.folder)
            else:
                pythons[name] = options.pytorch or pytorch_python(folder=options.folder)
        return pythons
    except InstallationError as error:
        sys.exit(f"{PROGRAM}: {error}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure training on one GPU, beside PyTorch.")
    parser.add_argument(
        "--models",
        type=chosen_from(list(CASES)),
        default=list(CASES),
        help=f"default: {','.join(CASES)}",
    )
    parser.add_argument(
        "--sides",
        type=chosen_from(list(KINDS)),
        help=f"default: {','.join(KINDS)}; without a GPU, no max-autotune",
    )
    parser.add_argument("--batch-sizes", type=counts, help="of all models (default: each model's own)")
    parser.add_argument("--rounds", type=count, help="how often all are measured (default: 5; 2 without a GPU)")
    parser.add_argument("--steps", type=count, help="steps of a round (default: 50; 2 without a GPU)")
    parser.add_argument("--steps-per-execution", type=count, default=1, help="Keras's, for Lockstep (default: 1)")
    parser.add_argument("--smoke", action="store_true", help="small sizes, as without a GPU")
    parser.add_argument("--lockstep", type=Path, help="a Python with Lockstep, JAX for the GPU, and KerasHub")
    parser.add_argument("--pytorch", type=Path, help="a Python with torch and torchvision")
    parser.add_argument("--peak-tflops", type=float, help="the GPU's rate in bfloat16 (default: as published)")
    parser.add_argument("--folder", type=Path, default=HERE / ".data" / "gpu", help="where environments are kept")
    parser.add_argument("--json", type=Path, help="where the figures are written (default: gpu.json in the folder)")
    options = parser.parse_args()
    options.gpu = has_gpu()
    options.size = "full" if options.gpu and not options.smoke else "small"
    is_small = options.size == "small"
    options.sides = options.sides or [name for name in KINDS if options.gpu or not KINDS[name].autotunes]
    options.rounds = options.rounds or (2 if is_small else 5)
    options.steps = options.steps or (2 if is_small else 50)
    if OURS not in options.sides:
        parser.error(f"--sides: the others are compared with {OURS}, so name it, too")
    if options.steps % options.steps_per_execution:
        parser.error(
            f"--steps: received {options.steps}; allowed: a multiple of {options.steps_per_execution}, "
            "as --steps-per-execution has it"
        )
    return options


def write(path: Path, options: argparse.Namespace, machine: str, packages: Any, results: Sequence[Measured]) -> None:
    told = {
        "machine": machine,
        "isResult": options.size == "full",
        "packages": packages,
        "rounds": options.rounds,
        "steps": options.steps,
        "stepsPerExecution": options.steps_per_execution,
        "measured": [asdict(one) for one in results],
    }
    path.write_text(json.dumps(told, indent=2) + "\n")
    console.print(f"figures: {path}")


def main() -> None:
    """Runs the benchmark."""
    options = parse()
    options.folder = options.folder.resolve()
    (options.folder / "logs").mkdir(parents=True, exist_ok=True)
    options.pythons = prepare_pythons(options)
    packages = {name: versions(python, KINDS[name].shown) for name, python in options.pythons.items()}
    machine = describe_machine(gpu=options.gpu)
    if options.size == "small":
        console.print(f"{NO_RESULT}\n")
    console.print(f"{machine}; rounds: {options.rounds}, steps: {options.steps}\n")
    show(("side", "versions"), [(KINDS[name].title, text) for name, text in packages.items()])
    results: list[Measured] = []
    try:
        for model in options.models:
            operations = check(model, options.pythons, size=options.size, folder=options.folder / "logs")
            own = [SMALL_BATCH] if options.size == "small" else CASES[model].batch_sizes
            for batch_size in options.batch_sizes or own:
                results += run_case(options, model, batch_size, operations)
    except SideError as error:
        sys.exit(f"{PROGRAM}: {error}")
    finally:
        show_results(results)
        write(options.json or options.folder / "gpu.json", options, machine, packages, results)
    errors = [one.error for one in results if one.error]
    if errors:
        sys.exit(f"{PROGRAM}: " + "\n".join(errors))


if __name__ == "__main__":
    main()
