"""What a strategy keeps on a device and moves in a step of ``fit``: ``python -m fitting.layout_side ORDER``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from harness.protocol import read_order, say

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


def make_strategy(order: dict[str, Any]) -> Any:
    """Makes the strategy of an order, on virtual devices."""
    from lockstep import strategies

    kind, arguments = getattr(strategies, order["strategy"]), order["arguments"]
    is_central = order["strategy"] == "CentralStorageStrategy"
    strategies.simulate_devices(NUM_DEVICES + is_central)
    if is_central:
        return kind([f"cpu:{number + 1}" for number in range(NUM_DEVICES)], "cpu:0")
    return kind(**arguments, **({"layout_map": LAYOUT_MAP} if "model_parallel" in arguments else {}))


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Trains one step under a strategy, in this process, and returns what it takes; sizes in MiB."""
    strategy = make_strategy(order)
    import jax
    import keras
    import numpy as np

    from lockstep.planning.hlo import collectives
    from lockstep.strategies import measure_memory, programs
    from lockstep.strategies.devices import name_of

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
    sent_mib, named = _traffic(collectives(compiled.as_text()))
    elsewhere = _compiled_elsewhere(seen[0]) if len(strategy.devices) == NUM_DEVICES else (None, "")
    return {
        "parameters": max(parameters.device_bytes.get(device, 0) for device in computing) / MIB,
        "optimizer": max(optimizer.device_bytes.get(device, 0) for device in computing) / MIB,
        "arguments": analysis.argument_size_in_bytes / MIB,
        "temporaries": analysis.temp_size_in_bytes / MIB,
        "host": crossing / MIB,
        "sent": sent_mib,
        "collectives": named or "none",
        f"sent, {SLICE}": elsewhere[0],
        f"collectives, {SLICE}": elsewhere[1],
    }


def _compiled_elsewhere(program: Any) -> tuple[float, str]:
    from lockstep.planning.compiling import compile_for
    from lockstep.planning.targets import Target

    found = compile_for(program, target=Target.parse(SLICE))
    assert found.work is not None, found.refusal
    return _traffic(found.work.collectives)


def _traffic(collectives: Iterable[Any]) -> tuple[float, str]:
    return sum(collective.sent_bytes for collective in collectives) / MIB, name_collectives(collectives)


def name_collectives(collectives: Iterable[Any]) -> str:
    """Says how many collectives there are of each kind."""
    kinds = Counter[str]()
    for collective in collectives:
        kinds[collective.kind] += collective.count
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


if __name__ == "__main__":
    say(measure(read_order()))
