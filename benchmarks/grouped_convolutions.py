"""Measures a training step of grouped convolutions over several devices: as XLA divides it, and as Lockstep does.

Three layers of one kind, 3 x 3, over images that are divided over four virtual CPU devices, in JAX alone. For each way:
operations of a device and what it sends, from the compiled program; milliseconds of a step, the median of rounds in
which both ways take turns. The devices share this machine's cores, so that what each device does again takes longer.
Prints a table as Markdown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

NUM_DEVICES: Final = 4
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = str(NUM_DEVICES)
os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402 - reads the environment when it is imported
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from fitting.layout_side import name_collectives  # noqa: E402
from harness import columns  # noqa: E402
from harness.environments import own_versions  # noqa: E402
from harness.program import Program  # noqa: E402
from harness.results import measure_in_turn  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from lockstep.planning.hlo import collectives  # noqa: E402
from lockstep.upstream.replacing import replace  # noqa: E402
from lockstep.upstream.table import Stage  # noqa: E402

NUM_ROWS: Final = 16
SIZE: Final = 14
CHANNELS: Final = 64
NUM_LAYERS: Final = 3
MIB: Final = 2**20
KINDS: Final = {"dense": 1, "2-groups": 2, "32-groups": 32, "depthwise": CHANNELS}
"""The number of groups: 32 as ResNeXt has, and one for each channel as MobileNet has."""


def make_step(groups: int) -> Callable[[Any, Any], Any]:
    """Returns a function of kernels and images, which gives the kernels after a step."""

    def loss(kernels: Any, images: Any) -> Any:
        for kernel in kernels:
            images = lax.conv_general_dilated(
                images,
                kernel,
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups,
            )
            images = jax.nn.relu(images)
        return jnp.mean(images**2)

    def step(kernels: Any, images: Any) -> Any:
        return [kernel - 0.1 * part for kernel, part in zip(kernels, jax.grad(loss)(kernels, images), strict=True)]

    return step


def arguments(groups: int) -> tuple[Any, Any]:
    """Returns kernels, which all devices have, and images, divided over them."""
    generator = np.random.default_rng(0)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    shape = (3, 3, CHANNELS // groups, CHANNELS)
    kernels = [generator.normal(scale=0.1, size=shape).astype(np.float32) for _ in range(NUM_LAYERS)]
    images = generator.normal(size=(NUM_ROWS, SIZE, SIZE, CHANNELS)).astype(np.float32)
    return (
        jax.device_put(kernels, NamedSharding(mesh, PartitionSpec())),
        jax.device_put(images, NamedSharding(mesh, PartitionSpec("batch"))),
    )


def compile_all(cases: Sequence[str]) -> dict[str, Any]:
    """Compiles a step of each case, as convolutions are lowered at present."""
    # A function of its own each time: programs are kept by function.
    return {
        case: jax.jit(make_step(groups)).lower(*arguments(groups)).compile()
        for case, groups in KINDS.items()
        if case in cases
    }


def describe(compiled: Any) -> dict[str, Any]:
    """Returns operations of a device, what it sends, and collectives."""
    found = collectives(compiled.as_text())
    return {
        "mflop": compiled.cost_analysis()["flops"] / 1e6,
        "sent_mib": sum(one.sent_bytes for one in found) / MIB,
        "collectives": name_collectives(found),
    }


def timed(compiled: Any, given: tuple[Any, Any]) -> float:
    """Returns the milliseconds of a step."""
    start = time.perf_counter()
    jax.block_until_ready(compiled(*given))
    return 1e3 * (time.perf_counter() - start)


SHOWN: Final = {
    "layers": columns.case,
    "divided by": columns.side,
    "Mflop of a device": columns.more("mflop", 0),
    "sent MiB": columns.more("sent_mib", 1),
    "collectives": columns.more("collectives"),
    "step ms": columns.values(0),
}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="grouped_convolutions", num_rounds=5)
    program.add_choice("--cases", list(KINDS))
    options = program.parse(small={"cases": ["dense", "depthwise"], "rounds": 1})
    ways = {"XLA": compile_all(options.cases)}
    replace(Stage.BACKEND)
    ways["Lockstep"] = compile_all(options.cases)
    results = []
    for case in options.cases:
        given = arguments(KINDS[case])
        described = {way: describe(programs[case]) for way, programs in ways.items()}
        results += measure_in_turn(
            [(case, way) for way in ways],
            lambda case, way, given=given, described=described: {
                "step_ms": timed(ways[way][case], given),
                **described[way],
            },
            num_rounds=options.rounds,
            value="step_ms",
            unit="milliseconds a step",
            warms_up=True,
        )
    program.finish(results, SHOWN, packages={"both": own_versions()})


if __name__ == "__main__":
    main()
