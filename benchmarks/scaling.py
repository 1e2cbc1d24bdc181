"""Measures what more devices, or more processes, cost a step at one global batch, beside Keras and PyTorch, in turn.

``python benchmarks/scaling.py [--cases a,b] [--devices 1,2,4,8] [--processes 1,2,4] [--rounds N]``. All of it runs on
this machine's cores: the devices are virtual, so more of them compute no faster. What is measured is what a strategy
adds. Keras's own ``DataParallel`` does the same arithmetic on the same devices, and PyTorch's DDP in as many processes.
Prints two tables as Markdown, medians over rounds, and writes JSON and a plot.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import matplotlib.pyplot as plt
from fit import JAX
from fitting.cases import CASES
from harness.environments import own_versions, peer_python, versions
from harness.options import add_choice, count, counts, make_parser, parse_options
from harness.results import Result, show_machine, write_results
from harness.sides import SideSpec, take_turns
from harness.tables import console, show

GLOBAL_BATCH: Final = 128
MILLISECONDS: Final = 1000
OURS: Final = {"devices": "Lockstep, Mirrored", "processes": "Lockstep, MultiWorkerMirrored"}
PEERS: Final = {"devices": "Keras, `DataParallel`", "processes": "PyTorch, DDP"}
DEFAULT_CASES: Final = ["cnn", "wide"]
SMALL: Final = {"cases": ["dense"], "devices": [1, 2], "processes": [1, 2], "rounds": 1}


def sides(kind: str, number: int, order: dict[str, Any], torch: Path) -> dict[str, SideSpec]:
    """Returns our side and the peer's on so many devices or processes."""
    if kind == "devices":
        variables = {**JAX, "JAX_NUM_CPU_DEVICES": str(number)}
        ours = {**order, "way": "fit", "strategy": "mirrored"}
        return {
            "ours": SideSpec(title=OURS[kind], module="fitting.lockstep_side", order=ours, variables=variables),
            "peer": SideSpec(
                title=PEERS[kind],
                module="fitting.keras_side",
                order={**order, "is_distributed": True},
                variables=variables,
            ),
        }
    several = {**order, "num_processes": number}
    return {
        "ours": SideSpec(
            title=OURS[kind],
            module="fitting.ranks",
            order={**several, "module": "fitting.lockstep_side", "way": "fit", "strategy": "multi-worker"},
            variables=JAX,
        ),
        "peer": SideSpec(
            title=PEERS[kind],
            python=torch,
            module="fitting.ranks",
            order={**several, "module": "fitting.torch_side", "compiles": False},
            variables={"CUDA_VISIBLE_DEVICES": ""},
        ),
    }


def measure(case: str, kind: str, number: int, torch: Path, options: argparse.Namespace) -> list[Result]:
    """Measures both sides with one model on so many devices or processes."""
    specs = sides(kind, number, {"case": case, "batch_size": options.batch}, torch)
    logs = options.folder / "logs" / f"scaling-{case}-{kind}-{number}"
    num_steps = CASES[case].steps_of(options.batch)
    return [
        Result(
            case=case,
            side=name,
            unit="milliseconds a step",
            values=[said["wall_s"] / num_steps * MILLISECONDS for said in one.rounds],
            more={"kind": kind, "number": number, "first_step_s": one.ready.get("first_step_s")},
            error=one.error,
        )
        for name, one in take_turns(specs, num_rounds=options.rounds, logs=logs).items()
    ]


def show_figures(results: list[Result], kind: str) -> None:
    """Prints a row for each model and number."""
    found = {(one.case, one.more["number"], one.side): one for one in results if one.more["kind"] == kind}
    rows = []
    for case, number in dict.fromkeys((case, number) for case, number, _ in found):
        ours, peer = found[case, number, "ours"], found[case, number, "peer"]
        alone = found.get((case, 1, "ours"))
        ratio = "" if ours.median is None or peer.median is None else f"{ours.median / peer.median:.2f}"
        grown = "" if alone is None or not alone.median or not ours.median else f"{ours.median / alone.median:.2f}"
        rows.append((CASES[case].title, str(number), ours.text(1), peer.text(1), ratio, grown))
    if rows:
        show(("model", kind, f"{OURS[kind]}, ms a step", f"{PEERS[kind]}, ms", "of the peer", "of one alone"), rows)


def plot(results: list[Result], path: Path) -> None:
    """Draws the medians with the least and the most: a panel for each kind."""
    kinds = [kind for kind in OURS if any(one.more["kind"] == kind for one in results)]
    figure, panels = plt.subplots(1, len(kinds), figsize=(5.5 * len(kinds), 5), squeeze=False, layout="constrained")
    for panel, kind in zip(panels[0], kinds, strict=True):
        for number, case in enumerate(dict.fromkeys(one.case for one in results)):
            for side, title, style in (("ours", OURS[kind], "o-"), ("peer", PEERS[kind].replace("`", ""), "s--")):
                points = [
                    one
                    for one in results
                    if (one.case, one.side, one.more["kind"]) == (case, side, kind) and one.values
                ]
                medians = [one.median or 0.0 for one in points]
                below = [middle - min(one.values) for middle, one in zip(medians, points, strict=True)]
                above = [max(one.values) - middle for middle, one in zip(medians, points, strict=True)]
                panel.errorbar(
                    [one.more["number"] for one in points],
                    medians,
                    yerr=(below, above),
                    fmt=style,
                    color=f"C{number}",
                    capsize=3,
                    label=f"{CASES[case].title}: {title}",
                )
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted({one.more["number"] for one in results if one.more["kind"] == kind}))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xlabel(f"{'virtual ' if kind == 'devices' else ''}{kind}, on the same cores")
        panel.set_ylabel("milliseconds a step")
        panel.grid(visible=True, which="both", alpha=0.3)
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    console.print(f"plot: {path}")


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__, num_rounds=5, folder="fit")
    add_choice(parser, "--cases", list(CASES), default=DEFAULT_CASES)
    parser.add_argument("--devices", type=counts, default=[1, 2, 4, 8], help="virtual devices (default: 1,2,4,8)")
    parser.add_argument("--processes", type=counts, default=[1, 2, 4], help="processes (default: 1,2,4)")
    parser.add_argument(
        "--batch", type=count, default=GLOBAL_BATCH, help="rows of a step in all (default: %(default)s)"
    )
    parser.add_argument("--plot", type=Path, help="where the plot is written (default: scaling.png in the folder)")
    options = parse_options(parser, small=SMALL)
    torch = peer_python("pytorch", folder=options.folder)
    show_machine(rounds=options.rounds, batch=options.batch)
    results: list[Result] = []
    try:
        for kind, numbers in (("devices", options.devices), ("processes", options.processes)):
            for case in options.cases:
                for number in numbers:
                    results += measure(case, kind, number, torch, options)
    finally:
        for kind in OURS:
            show_figures(results, kind)
        plot(results, options.plot or options.folder / "scaling.png")
        write_results(options, results, packages={"ours": own_versions(), "peer": versions(torch, ("torch",))})


if __name__ == "__main__":
    main()
