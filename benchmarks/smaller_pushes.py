"""Measures what making a push smaller costs, and on how slow a link that pays.

``python benchmarks/smaller_pushes.py [--rounds N] [--values 1000000,10000000]``. The worker's part is what compression
adds to a compiled step, the server's part what it does before it can apply the push. All ways in turn in each round,
in one process: nothing travels. Prints a table as Markdown, and writes JSON.

A push of ``b`` bytes less that takes a worker ``w`` and the server ``s`` seconds more pays on links below
``8 * b / (w + s)`` bits a second, where nothing else uses the link. Where ``n`` workers share the server and its link,
it is ``8 * n * b / (w + n * s)``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import jax
import numpy as np
from harness import columns
from harness.environments import own_versions
from harness.options import counts
from harness.program import Program
from harness.results import Result, measure_in_turn

from lockstep.parameter_server import TopK
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.exchanging.compressing import PushCompressor
from lockstep.parameter_server.optimizers import describe_optimizer
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Part, Push, Setup
from lockstep.parameter_server.server.expansion import expand
from lockstep.parameter_server.server.shards import DenseShards

# isort: split
import keras  # after lockstep, which has it run on JAX

NAME = "gradient.0:float32"
WAYS: dict[str, Compression] = {"bfloat16": "bfloat16", "TopK(0.01)": TopK(0.01), "TopK(0.001)": TopK(0.001)}


def make_setup(num_values: int) -> Setup:
    """Returns a server with one variable."""
    variable = keras.Variable(np.zeros(num_values, np.float32))
    placement = place([VariableSpec(path="weight", shape=(num_values,), dtype="float32")], num_servers=1)
    optimizer = describe_optimizer(keras.optimizers.SGD(0.1), [variable])
    return Setup(placement=placement, groups=(Group(variables=(0,), optimizer=optimizer),))


class Way:
    """A way to make pushes smaller.

    Args:
        setup: of the server.
        compression: how.
    """

    def __init__(self, setup: Setup, compression: Compression) -> None:
        self._setup = setup
        self._dense = DenseShards(setup.placement, server=0, groups=setup.groups)
        self._compressor = PushCompressor(setup, compression)
        self._parts: list[tuple[Part, ...]] = []
        self._compress: Any = jax.jit(self._trace)
        self._residuals = self._compressor.first_residuals()

    def _trace(self, gradient: Any, residuals: Any) -> Any:
        arrays, self._parts, residuals = self._compressor.compress([{NAME: gradient}], [(Part(),)], residuals)
        return arrays[0], residuals

    def compress(self, gradient: Any) -> dict[str, np.ndarray]:
        """Does the worker's part."""
        arrays, self._residuals = jax.block_until_ready(self._compress(gradient, self._residuals))
        return {name: np.asarray(array) for name, array in arrays.items()}

    def expand(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Does the server's part."""
        push = Push(closure=0, parts=self._parts[0])
        _, whole = expand(push, arrays, dense=self._dense, groups=self._setup.groups)
        return whole[NAME]


def timed(what: Callable[[Any], Any], given: Any) -> tuple[float, Any]:
    """Returns how many seconds a call took, and what it has returned."""
    start_s = time.perf_counter()
    found = what(given)
    return time.perf_counter() - start_s, found


def measure(num_values: int, num_rounds: int) -> list[Result]:
    """Measures all ways with pushes of so many gradients."""
    setup = make_setup(num_values)
    ways = {name: Way(setup, compression) for name, compression in WAYS.items()}
    random = np.random.default_rng(0)
    gradients = [jax.numpy.asarray(random.normal(size=num_values).astype(np.float32)) for _ in range(3)]
    numbers = Counter[str]()

    def round_of(_case: str, side: str) -> dict[str, float]:
        compress_s, arrays = timed(ways[side].compress, gradients[numbers[side] % 3])
        expand_s, whole = timed(ways[side].expand, arrays)
        assert whole.shape == (num_values,)
        numbers[side] += 1
        size = sum(array.nbytes for array in arrays.values())
        return {"size": size, "worker_ms": 1e3 * compress_s, "server_ms": 1e3 * expand_s}

    names = [(f"{num_values:,} gradients, {4 * num_values:,} bytes", name) for name in ways]
    return measure_in_turn(
        names,
        round_of,
        num_rounds=num_rounds,
        value="worker_ms",
        unit="milliseconds of a worker",
        warms_up=True,  # it is compiled
    )


def break_even(result: Result) -> str:
    """Shows below which rate of a link the smaller push pays, in Gbit/s."""
    taken_s = (median(result.values) + median(result.more["server_ms"])) / 1e3
    whole = 4 * int(result.case.split()[0].replace(",", ""))
    return f"{8 * (whole - result.more['size'][0]) / taken_s / 1e9:.1f}"


SHOWN: Final = {
    "push": columns.case,
    "compression": columns.side,
    "bytes of a push": columns.more("size", 0),
    "worker, ms": columns.values(1),
    "server, ms": columns.more("server_ms", 1),
    "pays on links below, Gbit/s": break_even,
}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="smaller_pushes", num_rounds=21)
    program.add("--values", type=counts, default=[1_000_000, 10_000_000], help="how many gradients a push has")
    options = program.parse(small={"rounds": 2, "values": [10_000]})
    results = [one for num_values in options.values for one in measure(num_values, options.rounds)]
    program.finish(results, SHOWN, packages={"Lockstep": own_versions()})


if __name__ == "__main__":
    main()
