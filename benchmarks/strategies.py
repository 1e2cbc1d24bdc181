"""Measures what each strategy keeps on a device and moves in a step, for one model: the tables of docs/strategies.

Nothing is timed: sizes come from the arrays that lie on the devices and from the compiled step of ``fit``. Each
strategy runs in a process of its own with virtual CPU devices; its step is then compiled for a TPU slice too, which is
not there. Prints two tables as Markdown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

NUM_DEVICES: Final = 4
WIDTH: Final = 1024
NUM_LAYERS: Final = 4
BATCH_SIZE: Final = 64
SLICE: Final = "v5e:2x2"
MIB: Final = 2**20
LAYOUT_MAP: Final = {
    r".*/dense(_2)?/kernel": (None, "model"),
    r".*/dense(_2)?/bias": ("model",),
    r".*/dense_[13]/kernel": ("model", None),
}
"""Two layers in turn, cut along their outputs and along their inputs: one sum for each two of them."""


def _sharded(**arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        from lockstep.strategies import ShardedStrategy

        return ShardedStrategy(**arguments)

    return make


def _named(name: str, *arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        from lockstep import strategies

        return getattr(strategies, name)(*arguments)

    return make


STRATEGIES: Final = {
    "`OneDeviceStrategy`": _named("OneDeviceStrategy"),
    "`MirroredStrategy`": _named("MirroredStrategy"),
    "`MultiWorkerMirroredStrategy`, one process": _named("MultiWorkerMirroredStrategy"),
    "`TPUStrategy`, simulated": _named("TPUStrategy"),
    "`CentralStorageStrategy`": _named("CentralStorageStrategy", [f"cpu:{n + 1}" for n in range(NUM_DEVICES)], "cpu:0"),
    "`ShardedStrategy(stage=1)`": _sharded(stage=1),
    "`ShardedStrategy(stage=2)`": _sharded(stage=2),
    "`ShardedStrategy(stage=3)`": _sharded(stage=3),
    "`ShardedStrategy(stage=1, model_parallel=2)`": _sharded(stage=1, model_parallel=2, layout_map=LAYOUT_MAP),
    "`ShardedStrategy(stage=3, model_parallel=2)`": _sharded(stage=3, model_parallel=2, layout_map=LAYOUT_MAP),
}


def measure(name: str) -> dict[str, Any]:
    """Trains one step under a strategy, in this process, and says what it takes.

    Args:
        name: one of `STRATEGIES`.

    Returns:
        Under "here" a row of the first table, under "there" one of the second; sizes in MiB.
    """
    from lockstep.strategies import simulate_devices

    simulate_devices(NUM_DEVICES + (1 if "Central" in name else 0))
    import jax
    import keras
    import numpy as np

    from lockstep.planning.hlo import collectives
    from lockstep.strategies import measure_memory, programs
    from lockstep.strategies.devices import name_of

    strategy = STRATEGIES[name]()
    seen: list[programs.Program] = []
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(NUM_LAYERS)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        model.compile("adam", "mse")
    rows = np.zeros((BATCH_SIZE, WIDTH), np.float32)
    with programs.watch(seen.append):
        model.fit(rows, rows, batch_size=BATCH_SIZE, verbose=0)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), seen[0].args
    )
    compiled = seen[0].step.lower(*shapes).compile()
    analysis = compiled.memory_analysis()
    parameters, optimizer, _ = measure_memory(model)
    computing = [name_of(device) for device in strategy.devices]
    crossing = 0
    if strategy.layout.updates_on_host:
        lent_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(seen[0].args[:-1]))
        crossing = lent_bytes * len(strategy.devices) + parameters.size_bytes  # the gradients' size is the parameters'
    return {
        "here": [
            max(parameters.device_bytes.get(device, 0) for device in computing) / MIB,
            max(optimizer.device_bytes.get(device, 0) for device in computing) / MIB,
            analysis.argument_size_in_bytes / MIB,
            analysis.temp_size_in_bytes / MIB,
            crossing / MIB,
            *_traffic(collectives(compiled.as_text())),
        ],
        "there": _compiled_elsewhere(seen[0]) if len(strategy.devices) == NUM_DEVICES else None,
    }


def _compiled_elsewhere(program: Any) -> list[Any]:
    from lockstep.planning.compiling import compile_for
    from lockstep.planning.targets import Target

    found = compile_for(program, target=Target.parse(SLICE))
    assert found.work is not None, found.refusal
    return _traffic(found.work.collectives)


def _traffic(collectives: Iterable[Any]) -> list[Any]:
    kinds = Counter[str]()
    for collective in collectives:
        kinds[collective.kind] += collective.count
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return [sum(collective.sent_bytes for collective in collectives) / MIB, named or "none"]


def _print_table(heads: Sequence[str], rows: Mapping[str, Sequence[Any]]) -> None:
    print("| " + " | ".join(["strategy", *heads]) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for name, row in rows.items():
        print("| " + " | ".join([name, *(f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row)]) + " |")
    print()


def main() -> None:
    """Prints the tables."""
    from lockstep.planning.targets import Target

    env = {**Target.parse(SLICE).environment(os.environ), "TF_CONFIG": ""}
    found = {}
    for name in STRATEGIES:
        command = [sys.executable, __file__, name]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
        found[name] = json.loads(process.stdout.splitlines()[-1])
    heads = ["parameters", "optimizer", "arguments", "temporaries", "host", "sent", "collectives"]
    _print_table(heads, {name: row["here"] for name, row in found.items()})
    print(f"Compiled for {SLICE}:\n")
    _print_table(heads[-2:], {name: row["there"] for name, row in found.items() if row["there"]})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
