"""Measures what making a push smaller costs, and on how slow a link that pays.

``python benchmarks/smaller_pushes.py [--rounds N] [--values 1000000,10000000]``. The worker's part is what compression
adds to a compiled step, the server's part what it does before it can apply the push. All ways in turn in each round,
in one process: nothing travels. Prints a table as Markdown: medians over the rounds.

A push of ``b`` bytes less that takes a worker ``w`` and the server ``s`` seconds more pays on links below
``8 * b / (w + s)`` bits a second, where nothing else uses the link. Where ``n`` workers share the server and its link,
it is ``8 * n * b / (w + n * s)``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="how often each is done (default: 21)")
    parser.add_argument("--values", default="1000000,10000000", help="how many gradients a push has")
    options = parser.parse_args()
    print("| gradients | compression | bytes of a push | worker, ms | server, ms | pays on links below, Gbit/s |")
    print("|---|---|---|---|---|---|")
    for num_values in map(int, options.values.split(",")):
        setup = make_setup(num_values)
        ways = {name: Way(setup, compression) for name, compression in WAYS.items()}
        random = np.random.default_rng(0)
        gradients = [jax.numpy.asarray(random.normal(size=num_values).astype(np.float32)) for _ in range(3)]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        sizes: dict[str, int] = {}
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                compress_s, arrays = timed(way.compress, gradients[number % 3])
                expand_s, whole = timed(way.expand, arrays)
                assert whole.shape == (num_values,)
                sizes[name] = sum(array.nbytes for array in arrays.values())
                if number:  # the first one is compiled
                    times[name].append((compress_s, expand_s))
        for name, found in times.items():
            worker_s, server_s = (median(one[side] for one in found) for side in (0, 1))
            break_even = 8 * (4 * num_values - sizes[name]) / (worker_s + server_s)
            print(
                f"| {num_values:,} | `{name}` | {sizes[name]:,} of {4 * num_values:,} | {worker_s * 1e3:.1f} "
                f"| {server_s * 1e3:.1f} | {break_even / 1e9:.1f} |"
            )


if __name__ == "__main__":
    main()
