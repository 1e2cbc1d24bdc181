"""Measures what each strategy keeps on a device and moves in a step, for one model: the tables of docs/strategies.

Nothing is timed: sizes come from the arrays that lie on the devices and from the compiled step of ``fit``. Each
strategy runs in a process of its own with virtual CPU devices; its step is then compiled for a TPU slice too, which is
not there. Prints two tables as Markdown, and writes JSON.
"""

from __future__ import annotations

from typing import Any, Final

from fitting.layout_side import SLICE
from harness import columns
from harness.environments import own_versions
from harness.program import Program
from harness.results import Result
from harness.sides import SideSpec, running
from harness.tables import console

from lockstep.planning.targets import Target

STRATEGIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "one-device": ("OneDeviceStrategy", {}),
    "mirrored": ("MirroredStrategy", {}),
    "multi-worker": ("MultiWorkerMirroredStrategy", {}),
    "tpu": ("TPUStrategy", {}),
    "central": ("CentralStorageStrategy", {}),
    "sharded-1": ("ShardedStrategy", {"stage": 1}),
    "sharded-2": ("ShardedStrategy", {"stage": 2}),
    "sharded-3": ("ShardedStrategy", {"stage": 3}),
    "sharded-1-model": ("ShardedStrategy", {"stage": 1, "model_parallel": 2}),
    "sharded-3-model": ("ShardedStrategy", {"stage": 3, "model_parallel": 2}),
}
NOTES: Final = {"multi-worker": ", one process", "tpu": ", simulated"}
SIZES: Final = ("parameters", "optimizer", "arguments", "temporaries", "host", "sent")


def title(name: str) -> str:
    """Returns what the tables call a strategy."""
    kind, arguments = STRATEGIES[name]
    given = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return f"`{kind}{f'({given})' if given else ''}`{NOTES.get(name, '')}"


def main() -> None:
    """Prints the tables."""
    program = Program(__doc__, folder="strategies")
    program.add_choice("--strategies", list(STRATEGIES))
    options = program.parse(small={"strategies": ["one-device", "sharded-1"]})
    variables = {**Target.parse(SLICE).environment({}), "TF_CONFIG": "", "JAX_PLATFORMS": "cpu"}
    results = []
    for name in options.strategies:
        kind, arguments = STRATEGIES[name]
        order = {"strategy": kind, "arguments": arguments}
        spec = SideSpec(title=name, module="fitting.layout_side", order=order, variables=variables)
        with running(spec, log=program.logs() / f"{name}.log") as side:
            results.append(Result(case="a step", side=title(name), unit="MiB", more=side.hear()))
    shown = {"strategy": columns.side, **{size: columns.more(size, 1) for size in SIZES}}
    columns.show_results(results, {**shown, "collectives": columns.more("collectives")})
    console.print(f"Compiled for {SLICE}:\n")
    shown = {name: columns.more(f"{name}, {SLICE}", 1) for name in ("sent", "collectives")}
    elsewhere = [one for one in results if one.more[f"collectives, {SLICE}"]]
    columns.show_results(elsewhere, {"strategy": columns.side, **shown})
    program.finish(results, packages={"Lockstep": own_versions()})


if __name__ == "__main__":
    main()
