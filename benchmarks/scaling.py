"""Measures what more devices, or more processes, cost a step at one global batch, beside Keras and PyTorch, in turn.

``python benchmarks/scaling.py [--cases a,b] [--devices 1,2,4,8] [--processes 1,2,4] [--rounds N]``. All of it runs on
this machine's cores: the devices are virtual, so more of them compute no faster. What is measured is what a strategy
adds. Keras's own ``DataParallel`` does the same arithmetic on the same devices, and PyTorch's DDP in as many processes.
Prints two tables as Markdown, medians over rounds, and writes JSON and a plot.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import matplotlib.pyplot as plt
from fit import JAX, spec_of, step_results
from fitting.cases import CASES
from harness.environments import own_versions, peer_python, versions
from harness.options import count, counts
from harness.program import Program
from harness.results import Result
from harness.sides import take_turns
from harness.tables import console, show

GLOBAL_BATCH: Final = 128
OURS: Final = {"devices": "Lockstep, Mirrored", "processes": "Lockstep, MultiWorkerMirrored"}
PEERS: Final = {"devices": "Keras, `DataParallel`", "processes": "PyTorch, DDP"}
DEFAULT_CASES: Final = ["cnn", "wide"]
SMALL: Final = {"cases": ["dense"], "devices": [1, 2], "processes": [1, 2], "rounds": 1}


def measure(case: str, kind: str, number: int, torch: Path, options: argparse.Namespace) -> list[Result]:
    """Measures both sides with one model on so many devices or processes."""
    here = Path(sys.executable)
    if kind == "devices":
        ours = spec_of("mirrored", case, options.batch, python=here)
        peer = spec_of("keras", case, options.batch, python=here, is_distributed=True)
        devices = {**JAX, "JAX_NUM_CPU_DEVICES": str(number)}
        specs = {name: replace(one, variables=devices) for name, one in (("ours", ours), ("peer", peer))}
    else:
        pythons = {"ours": ("multi-worker", here), "peer": ("pytorch", torch)}
        specs = {
            name: spec_of(side, case, options.batch, python=python, num_processes=number)
            for name, (side, python) in pythons.items()
        }
    logs = options.folder / "logs" / f"scaling-{case}-{kind}-{number}"
    heard = take_turns(specs, num_rounds=options.rounds, logs=logs)
    return step_results(heard, case, options.batch, title=case, kind=kind, number=number)


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
    program = Program(__doc__, folder="fit", num_rounds=5)
    program.add_choice("--cases", list(CASES), default=DEFAULT_CASES)
    program.add("--devices", type=counts, default=[1, 2, 4, 8], help="virtual devices (default: 1,2,4,8)")
    program.add("--processes", type=counts, default=[1, 2, 4], help="processes (default: 1,2,4)")
    program.add("--batch", type=count, default=GLOBAL_BATCH, help="rows of a step in all (default: %(default)s)")
    program.add("--plot", type=Path, help="where the plot is written (default: scaling.png in the folder)")
    options = program.parse(small=SMALL)
    torch = peer_python("pytorch", folder=options.folder)
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
        program.finish(results, packages={"ours": own_versions(), "peer": versions(torch, ("torch",))})


if __name__ == "__main__":
    main()
