"""Measures parameter servers beside TensorFlow's: the same models, batches and first values, in turn, on loopback.

``python benchmarks/parameter_server.py [--tensorflow PYTHON] [--rounds N] [--cases a,b] [--workers 1,2]``. Each side
has a coordinator, a server and workers, each a process of its own. Without a Python that has TensorFlow
(``python3 -m venv tf && tf/bin/pip install tensorflow-cpu==2.21.0`` makes one) it is installed in the folder, once.
Prints tables as Markdown: medians over the rounds. Takes more than an hour on two cores, which should do nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pushing.cases import CASES
from pushing.cluster import Run, run
from pushing.data import prepare
from records import with_tensorflow

HERE: Final = Path(__file__).resolve().parent
WAITING: Final = "Lockstep, overlaps=False, 20 steps an execution"
"""Takes the very steps that TensorFlow takes."""
OURS: Final = "Lockstep, 20 steps an execution"
SHOWN: Final = ("dense-64", "zipf-256", "uniform-1024")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to train.

    Attributes:
        module: the script, in `pushing`.
        options: what it is told after the case and the folder.
        data: the data that it is for.
        loss_tolerance: how far one worker's loss may be from the others': all take the same steps from the same values,
            and sums of floats alone differ; but where steps overlap, each is by values that are one step older.
    """

    module: str
    options: tuple[str, ...] = ()
    data: tuple[str, ...] = ("dense", "zipf", "uniform")
    loss_tolerance: float = 0.005


CONTENDERS: Final = {
    WAITING: Contender(module="ours", options=("waiting", "20")),
    "Lockstep": Contender(module="ours", options=("overlapping", "1"), loss_tolerance=0.03),
    OURS: Contender(module="ours", options=("overlapping", "20"), loss_tolerance=0.03),
    "TensorFlow": Contender(module="theirs", options=("1", "once")),
    "TensorFlow, 20 steps a closure": Contender(module="theirs", options=("20", "once")),
    "TensorFlow, 20 steps a closure, rows not made unique": Contender(
        module="theirs", options=("20", "each"), data=("uniform",)
    ),
}


def measure(name: str, contender: Contender, num_workers: int, *, folder: Path, tensorflow: str) -> Run:
    is_ours = contender.module == "ours"
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    python = sys.executable if is_ours else tensorflow
    return run(
        [python, "-m", f"pushing.{contender.module}", name, str(folder), *contender.options],
        num_workers=num_workers,
        environment={"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
        ends=is_ours,
    )


def speed(name: str, runs: Sequence[Run]) -> float:
    """Steps a second: the median of the rounds."""
    return median(CASES[name].num_steps / run.wall_s for run in runs)


def check_losses(results: Mapping[tuple[str, int, str], Sequence[Run]]) -> None:
    """Ends where trainings that are the same came to another loss."""
    expected: dict[str, float] = {}
    for (name, workers, side), runs in results.items():
        if workers != 1:
            continue
        losses: list[float] = [run.told["loss"] for run in runs]
        tolerance = CONTENDERS[side].loss_tolerance
        if tolerance == Contender.loss_tolerance:  # else it is by older values, and is compared with the others
            expected.setdefault(name, losses[0])
        wanted: float = expected.get(name, losses[0])
        if any(abs(loss - wanted) > tolerance * wanted for loss in losses):
            sys.exit(f"{name}: {side} came to {losses}, the others to {wanted}: more than {tolerance:.1%} apart")


def counted(name: str, run: Run) -> str:
    """Says what was done to the server: in TensorFlow's step by its graph, in ours by what it was asked, all in all."""
    if "counts" in run.told:
        return ", ".join(f"{count} {what} a step" for what, count in run.told["counts"].items())
    (asked,) = re.findall(r"was asked: (.*)", run.log)
    (applied,) = re.findall(r"has applied (\d+) pushes", run.log)
    return f"{2 * CASES[name].num_steps} steps: {applied} pushes applied; asked: {asked}"


def show(results: Mapping[tuple[str, int, str], Sequence[Run]]) -> None:
    print(
        "| what | workers | side | steps/s | least | most | examples/s | processor ms a step: server | workers "
        "| coordinator | loss | staleness | times as fast | at its steps |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for (name, workers, side), runs in results.items():
        case, steps = CASES[name], [CASES[name].num_steps / run.wall_s for run in runs]
        ratios = [
            "" if side.startswith("Lockstep") or ours is None else f"{speed(name, ours) / median(steps):.2f}"
            for ours in (results.get((name, workers, one)) for one in (OURS, WAITING))
        ]
        used = [
            f"{median(run.processor_s[role] for run in runs) / case.num_steps * 1e3:.2f}"
            for role in ("ps", "worker", "chief")
        ]
        loss = median(run.told["loss"] for run in runs)
        staleness = f"{median(run.told['staleness'] for run in runs):.1f}" if "staleness" in runs[0].told else ""
        print(
            f"| {case.title} | {workers} | {side} | {median(steps):,.0f} | {min(steps):,.0f} | {max(steps):,.0f} "
            f"| {median(steps) * case.batch_size:,.0f} | {' | '.join(used)} | {loss:.4f} | {staleness} "
            f"| {' | '.join(ratios)} |"
        )
    print("\n| what | workers | side | counted |\n|---|---|---|---|")
    for (name, workers, side), runs in results.items():
        print(
            f"| {CASES[name].title} | {workers} | {side} | {'; '.join(sorted({counted(name, run) for run in runs}))} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(SHOWN), help=f"some of {','.join(CASES)}")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--sides", default="ours,theirs")
    parser.add_argument("--folder", type=Path, default=HERE / ".data", help="where data and environments are kept")
    options = parser.parse_args()
    unknown = set(options.cases.split(",")).difference(CASES)
    if unknown:
        parser.error(f"there is no such case: received {','.join(sorted(unknown))}; allowed: {','.join(CASES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    prepare(options.folder / "pushing")
    tensorflow = options.tensorflow or with_tensorflow(options.folder)
    results: dict[tuple[str, int, str], list[Run]] = {}
    for _ in range(options.rounds):  # all in turn, so that what else the machine does meets all alike
        for name in options.cases.split(","):
            for workers in map(int, options.workers.split(",")):
                for side, contender in CONTENDERS.items():
                    if contender.module not in options.sides.split(",") or CASES[name].data not in contender.data:
                        continue
                    found = measure(name, contender, workers, folder=options.folder / "pushing", tensorflow=tensorflow)
                    results.setdefault((name, workers, side), []).append(found)
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    show(results)
    check_losses(results)


if __name__ == "__main__":
    main()
