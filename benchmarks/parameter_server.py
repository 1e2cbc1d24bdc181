"""Measures parameter servers beside TensorFlow's: the same models, batches and first values, in turn, on loopback.

``python benchmarks/parameter_server.py [--tensorflow PYTHON] [--rounds N] [--cases a,b] [--workers 1,2]``. Each side
has a coordinator, a server and workers, each a process of its own. Without a Python that has TensorFlow an environment
is made in the folder, once. Prints tables as Markdown, medians over the rounds, and writes JSON. Takes more than an
hour on two cores, which should do nothing else.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from harness import columns
from harness.environments import own_versions, peer_python, versions
from harness.options import counts
from harness.program import Program
from harness.results import Result, measure_in_turn
from harness.sides import SideSpec, fresh_round
from pushing.cases import CASES
from pushing.data import prepare

WAITING: Final = "Lockstep, overlaps=False, 20 steps an execution"
"""Takes the very steps that TensorFlow takes."""
OURS: Final = "Lockstep, 20 steps an execution"
SHOWN: Final = ["dense-64", "zipf-256", "uniform-1024"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to train.

    Attributes:
        module: the script, in `pushing`.
        order: what it is told besides the case and the folder.
        data: the data that it is for.
        loss_tolerance: how far one worker's loss may be from the others': all take the same steps from the same values,
            and sums of floats alone differ; but where steps overlap, each is by values that are one step older.
    """

    module: str
    order: Mapping[str, Any]
    data: tuple[str, ...] = ("dense", "zipf", "uniform")
    loss_tolerance: float = 0.005


OVERLAPPING: Final = {"overlaps": True, "num_together": 1}
ONE: Final = {"num_together": 1, "rows": "once"}
TWENTY: Final = {"num_together": 20, "rows": "once"}
CONTENDERS: Final = {
    WAITING: Contender(module="ours", order={"overlaps": False, "num_together": 20}),
    "Lockstep": Contender(module="ours", order=OVERLAPPING, loss_tolerance=0.03),
    OURS: Contender(module="ours", order={**OVERLAPPING, "num_together": 20}, loss_tolerance=0.03),
    "TensorFlow": Contender(module="theirs", order=ONE),
    "TensorFlow, 20 steps a closure": Contender(module="theirs", order=TWENTY),
    "TensorFlow, 20 steps a closure, rows not made unique": Contender(
        module="theirs", order={**TWENTY, "rows": "each"}, data=("uniform",)
    ),
}


def spec_of(case: str, num_workers: int, side: str, *, folder: Path, tensorflow: Path) -> SideSpec:
    """Returns a side: all of its processes."""
    contender = CONTENDERS[side]
    is_ours = contender.module == "ours"
    title = f"{case}-{num_workers}-{list(CONTENDERS).index(side)}"
    order = {"case": case, "folder": str(folder), "module": f"pushing.{contender.module}", "num_workers": num_workers}
    return SideSpec(
        title=title,
        python=Path(sys.executable) if is_ours else tensorflow,
        module="pushing.cluster",
        order={**order, **contender.order, "ends": is_ours, "logs": str(folder / "logs" / title)},
    )


def run(spec: SideSpec) -> dict[str, Any]:
    """Trains once; returns the steps a second, and what they took."""
    case = CASES[spec.order["case"]]
    said = fresh_round(spec, log=Path(spec.order["logs"]) / "cluster.log")
    speed = case.num_steps / said.pop("wall_s")
    del said["processor_s"]  # of the process that starts the others
    used_ms = {f"{role}_ms": said.pop(role) / case.num_steps * 1e3 for role in ("ps", "worker", "chief")}
    return {"speed": speed, "examples": speed * case.batch_size, **used_ms, **said}


def check_losses(results: Sequence[Result]) -> str:
    """Returns where trainings that are the same came to another loss, or nothing."""
    expected: dict[str, float] = {}
    for one in results:
        losses: list[float] = one.more.get("loss", [])
        if not one.case.endswith("workers: 1") or not losses:
            continue
        tolerance = CONTENDERS[one.side].loss_tolerance
        if tolerance == Contender.loss_tolerance:  # else it is by older values, and is compared with the others
            expected.setdefault(one.case, losses[0])
        wanted = expected.get(one.case, losses[0])
        if any(abs(loss - wanted) > tolerance * wanted for loss in losses):
            return f"{one.case}: {one.side} came to {losses}, the others to {wanted}: over {tolerance:.1%} apart"
    return ""


def show_figures(results: Sequence[Result]) -> None:
    """Prints what was measured, and what was counted."""
    both = {"what": columns.case, "side": columns.side}
    shown = {
        **both,
        "steps/s": columns.values(0),
        "examples/s": columns.more("examples", 0),
        "processor ms a step: server": columns.more("ps_ms"),
        "workers": columns.more("worker_ms"),
        "coordinator": columns.more("chief_ms"),
        "loss": columns.more("loss", 4),
        "staleness": columns.more("staleness", 1),
    }
    theirs = [one for one in results if not one.side.startswith("Lockstep")]
    for title, ours in (("times as fast", OURS), ("at its steps", WAITING)):
        ratio = columns.of_ours(results, ours, rates=True)
        shown[title] = lambda one, ratio=ratio: ratio(one) if one in theirs else ""
    columns.show_results(results, shown)
    columns.show_results(results, {**both, "counted": columns.more("counted")})


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, num_rounds=5)
    program.add("--tensorflow", type=Path, help="a Python that has TensorFlow")
    program.add_choice("--cases", list(CASES), default=SHOWN)
    program.add("--workers", type=counts, default=[1, 2], help="default: 1,2")
    program.add_choice("--sides", ["ours", "theirs"])
    options = program.parse(small={"cases": ["dense-64"], "workers": [1], "rounds": 1})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    folder = options.folder / "pushing"
    prepare(folder)
    packages, tensorflow = {"ours": own_versions()}, options.tensorflow
    if "theirs" in options.sides:
        tensorflow = tensorflow or peer_python("tensorflow", folder=options.folder)
        packages["theirs"] = versions(tensorflow, ["tensorflow-cpu"])
    specs = {
        (f"{CASES[case].title}; workers: {num_workers}", side): spec_of(
            case, num_workers, side, folder=folder, tensorflow=tensorflow
        )
        for case, num_workers, (side, contender) in product(options.cases, options.workers, CONTENDERS.items())
        if contender.module in options.sides and CASES[case].data in contender.data
    }
    results = measure_in_turn(
        specs, lambda *name: run(specs[name]), num_rounds=options.rounds, value="speed", unit="steps a second"
    )
    show_figures(results)
    program.finish(results, packages=packages)
    problem = check_losses(results)
    if problem:
        program.fail(problem)


if __name__ == "__main__":
    main()
