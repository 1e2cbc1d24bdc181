"""Measures training on a processor beside plain Keras on JAX, PyTorch and Keras on TensorFlow, in turn.

``python benchmarks/fit.py [--cases a,b] [--sides a,b] [--batch-sizes 64,256] [--processes N [--link-mbit N]]
[--rounds N]``. Each peer gets an environment of its own in the folder, once: 6 GB. With ``UV_TORCH_BACKEND=cpu``, uv
takes the smaller PyTorch for processors. Sides begin with the same weights; their first losses are compared before
anything is measured. One side works at a time, and has all cores. Prints a table as Markdown, medians over rounds, and
writes JSON.

With ``--processes N``, each side trains in N processes of this machine, each of which has the batch's size of rows.
Sums go by gloo on both sides. With ``--link-mbit N``, each process has a network namespace of its own and a link of N
Mbit/s, and a second table has what the first process sent, beside the least that a ring sends.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, final

from fitting.cases import CASES
from harness import columns
from harness.environments import peer_python, versions
from harness.options import chosen_from, count, counts
from harness.program import Program
from harness.results import Result, result_of
from harness.sides import Heard, SideSpec, take_turns
from harness.tables import show

PROGRAM: Final = "benchmarks/fit.py"
LOSS_TOLERANCE: Final = 2e-3
MIB: Final = 2**20
MB: Final = 10**6


@final
@dataclass(frozen=True, kw_only=True)
class Kind:
    """A side.

    Attributes:
        title: its name in tables.
        module: its program.
        peer: the name of its environment; "" for the one that runs the benchmark.
        shown: the packages whose versions are stated.
        order: more of its order.
        environment: variables of its process.
        is_alone: whether it can train in one process.
        is_joint: whether it can train in several.
    """

    title: str
    module: str
    shown: tuple[str, ...]
    order: dict[str, Any]
    environment: dict[str, str]
    peer: str = ""
    is_alone: bool = True
    is_joint: bool = False


JAX: Final = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
TWO_DEVICES: Final = {**JAX, "JAX_NUM_CPU_DEVICES": "2"}


def _ours(title: str, *, way: str = "fit", strategy: str = "one-device", environment: dict[str, str] = JAX) -> Kind:
    return Kind(
        title=title,
        module="fitting.lockstep_side",
        shown=("lockstep-train", "jax", "keras"),
        order={"way": way, "strategy": strategy},
        environment=environment,
    )


def _torch(title: str, *, compiles: bool) -> Kind:
    return Kind(
        title=title,
        module="fitting.torch_side",
        peer="pytorch",
        shown=("torch",),
        order={"compiles": compiles},
        environment={"CUDA_VISIBLE_DEVICES": ""},
        is_joint=True,
    )


KINDS: Final = {
    "keras": Kind(title="Keras on JAX", module="fitting.keras_side", shown=("jax", "keras"), order={}, environment=JAX),
    "one-device": _ours("Lockstep, OneDevice"),
    "mirrored": _ours("Lockstep, Mirrored, 2 virtual devices", strategy="mirrored", environment=TWO_DEVICES),
    "loop": _ours("Lockstep, OneDevice, `strategy.run`", way="loop"),
    "pure": _ours("Lockstep, OneDevice, `strategy.compile`", way="pure"),
    "multi-worker": replace(
        _ours("Lockstep, MultiWorkerMirrored", strategy="multi-worker"), is_alone=False, is_joint=True
    ),
    "pytorch": _torch("PyTorch, eager", compiles=False),
    "pytorch-compiled": _torch("PyTorch, `torch.compile`", compiles=True),
    "tensorflow": Kind(
        title="Keras on TensorFlow",
        module="fitting.keras_side",
        peer="tensorflow",
        shown=("tensorflow-cpu", "keras"),
        order={},
        environment={"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    ),
}
OURS: Final = ("one-device", "multi-worker")
"""What the others are compared with: one process, and several."""
SMALL: Final = {"sides": ["keras", "one-device"], "cases": ["dense", "cnn", "lstm"], "batch_sizes": [64], "rounds": 3}
JOINT_CASES: Final = ("wide",)
"""What is trained in several processes by default: what they send counts."""


def prepare_pythons(names: list[str], folder: Path) -> dict[str, Path]:
    """Returns each side's Python."""
    peers = {peer: peer_python(peer, folder=folder) for peer in sorted({KINDS[name].peer for name in names} - {""})}
    return {name: peers.get(KINDS[name].peer, Path(sys.executable)) for name in names}


def check(case: str, heard: dict[str, Heard]) -> None:
    """Ends the benchmark where sides do not train the same model."""
    ready = {name: one.ready for name, one in heard.items() if one.ready}
    numbers = {name: said["num_parameters"] for name, said in ready.items()}
    if len(set(numbers.values())) > 1:
        sys.exit(f"{PROGRAM}: {case} has other parameters on some sides: {numbers}")
    losses = {name: said["losses"] for name, said in ready.items() if CASES[case].is_checked}
    for name, found in losses.items():
        expected = next(iter(losses.values()))
        if not all(math.isclose(one, two, rel_tol=LOSS_TOLERANCE) for one, two in zip(found, expected, strict=True)):
            sys.exit(f"{PROGRAM}: {case} has other losses on some sides, {name} for one: {losses}")


def spec_of(
    name: str, case: str, batch_size: int, *, python: Path, num_processes: int | None = None, **more: Any
) -> SideSpec:
    """Returns a side.

    Args:
        name: a name of `KINDS`.
        case: the model.
        batch_size: the rows of a step, of all processes together.
        python: its Python.
        num_processes: in how many it trains; None without `fitting.ranks`.
        more: more of its order.
    """
    kind = KINDS[name]
    module, order = kind.module, {**kind.order, "case": case, "batch_size": batch_size, **more}
    if num_processes is not None:
        module, order = "fitting.ranks", {**order, "module": module, "num_processes": num_processes}
    return SideSpec(title=kind.title, python=python, module=module, order=order, variables=kind.environment)


def step_results(heard: dict[str, Heard], case: str, batch_size: int, *, title: str, **more: Any) -> list[Result]:
    """Returns the milliseconds of a step, and what else was measured of each side."""
    num_steps = CASES[case].steps_of(batch_size)
    per_step = {"wall_s": ("step_ms", 1e3), "processor_s": ("processor_ms", 1e3), "sent_bytes": ("sent_mb", 1e-6)}
    results = []
    for name, one in heard.items():
        rounds = [
            {key: said[old] / num_steps * by for old, (key, by) in per_step.items() if old in said}
            for said in one.rounds
        ]
        known = {key: one.ready.get(key) for key in ("first_step_s", "losses", "num_parameters")}
        known["peak_mib"] = max((said["peak_bytes"] / MIB for said in one.rounds), default=None)
        found = {"value": "step_ms", "case": title, "side": name, "unit": "milliseconds a step", "error": one.error}
        results.append(result_of(rounds, **found, **known, **more))
    return results


def measure(case: str, batch_size: int, pythons: dict[str, Path], options: argparse.Namespace) -> list[Result]:
    """Measures all sides with one model and batch size, which is that of a process."""
    num_rows = batch_size * options.processes
    joint: dict[str, Any] = {"num_processes": options.processes} if options.processes > 1 else {}
    if options.link_mbit:
        joint["link_mbit"] = options.link_mbit
    specs = {name: spec_of(name, case, num_rows, python=python, **joint) for name, python in pythons.items()}
    logs = options.folder / "logs" / f"{case}-{batch_size}-{options.processes}"
    heard = take_turns(specs, num_rounds=options.rounds, logs=logs)
    check(case, heard)
    title = f"{CASES[case].title}, batch {batch_size}"
    if options.processes > 1:
        title += f" in each of {options.processes} processes"
    if options.link_mbit:
        title += f", links of {options.link_mbit} Mbit/s"
    return step_results(heard, case, num_rows, title=title)


def show_figures(results: list[Result]) -> None:
    """Prints a row for each case and side."""
    shown = {
        "model": columns.case,
        "side": lambda one: KINDS[one.side].title,
        "ms a step": columns.values(),
        "of ours": columns.of_ours(results, OURS),
        "processor ms": columns.more("processor_ms"),
        "first step, s": columns.more("first_step_s", 1),
        "peak, MiB": columns.more("peak_mib", 0),
    }
    columns.show_results(results, shown)


def show_traffic(results: list[Result], num_processes: int) -> None:
    """Prints what the first process sent for a step, and how that compares to a ring's minimum."""
    rows = []
    for one in results:
        if one.more.get("sent_mb") and one.more["num_parameters"] is not None:
            least = 2 * (num_processes - 1) / num_processes * 4 * one.more["num_parameters"] / MB
            middle = median(one.more["sent_mb"])
            rows.append((one.case, KINDS[one.side].title, f"{middle:,.1f}", f"{least:,.1f}", f"{middle / least:.3f}"))
    show(("model", "side", "MB sent a step", "a ring's minimum", "ratio"), rows)


def parse(program: Program) -> argparse.Namespace:
    program.add("--cases", type=chosen_from(list(CASES)), help=f"default: {','.join(CASES)}")
    program.add("--sides", type=chosen_from(list(KINDS)), help=f"of {','.join(KINDS)} (default: all)")
    program.add("--processes", type=count, default=1, help="in how many a side trains (default: 1)")
    program.add(
        "--link-mbit", type=count, help="each process in a network namespace, with a link of this rate; needs root"
    )
    program.add("--batch-sizes", type=counts, help="of all models (default: each model's own)")
    options = program.parse(small=SMALL)
    is_joint = options.processes > 1
    able = [name for name, kind in KINDS.items() if (kind.is_joint if is_joint else kind.is_alone)]
    unable = [name for name in options.sides or [] if name not in able]
    if unable:
        program.parser.error(f"--processes {options.processes}: not {', '.join(unable)}; allowed: {', '.join(able)}")
    if options.link_mbit and not is_joint:
        program.parser.error("--link-mbit: only with --processes")
    options.sides = options.sides or able
    options.cases = options.cases or list(JOINT_CASES if is_joint else CASES)
    return options


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="fit", num_rounds=5)
    options = parse(program)
    pythons = prepare_pythons(options.sides, options.folder)
    packages = {name: versions(python, KINDS[name].shown) for name, python in pythons.items()}
    show(("side", "versions"), [(KINDS[name].title, text) for name, text in packages.items()])
    results: list[Result] = []
    try:
        for case in options.cases:
            for batch_size in options.batch_sizes or CASES[case].batch_sizes:
                results += measure(case, batch_size, pythons, options)
    finally:
        show_figures(results)
        if options.link_mbit:
            show_traffic(results, options.processes)
        program.finish(results, packages=packages)


if __name__ == "__main__":
    main()
