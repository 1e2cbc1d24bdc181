"""A function of arrays, compiled for a few batch sizes."""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, cast, final

import jax
import numpy as np

from lockstep.errors import ModelError
from lockstep.serving.instances import Arrays, InputSpec, plain

SIZE_STEP: Final = 2
LONG_RUN_S: Final = 0.01
"""Batches that take less time are always used, in seconds."""
LEAST_GAIN: Final = 0.9
"""A longer batch is used if a row takes at most this part of the time that it takes in a smaller one."""
NUM_TIMED_RUNS: Final = 3
MAX_VARYING_PROGRAMS: Final = 64
"""The maximum number of programs that are kept for inputs whose shapes vary. The least recently used one is dropped."""


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Returns the batch sizes to compile programs for: the powers of 2 below the maximum, and the maximum.

    A batch is padded to the next larger size. Fewer sizes mean fewer programs to compile; more sizes mean less padding.
    """
    sizes = [1]
    while sizes[-1] * SIZE_STEP < max_batch_size:
        sizes.append(sizes[-1] * SIZE_STEP)
    return (*sizes, max_batch_size) if max_batch_size > 1 else (1,)


@final
class Programs:
    """Runs a function on batches of any size, in programs of a few sizes. Only one thread at a time may use it.

    Args:
        function: takes the constants, then a list with an array of shape ``[size, *shape]`` for each input, and returns
            an array of shape ``[size, ...]`` for each output. JAX can trace it.
        constants: the first arguments of the function, such as the model's weights.
        inputs: the specifications of the inputs.
        output_names: the names of the outputs.
        sizes: the batch sizes that programs may be compiled for, in ascending order.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        *,
        constants: Sequence[Any] = (),
        inputs: tuple[InputSpec, ...],
        output_names: tuple[str, ...],
        sizes: tuple[int, ...],
    ) -> None:
        self._function = jax.jit(function)
        self._constants = tuple(constants)
        self._inputs = inputs
        self._output_names = output_names
        self._sizes = sizes
        self._compiled: dict[int, Callable[..., Sequence[Any]]] = {}
        self._varying: OrderedDict[tuple[Any, ...], Callable[..., Sequence[Any]]] = OrderedDict()

    @property
    def max_batch_size(self) -> int:
        """The largest batch size. `warm_up` may make it smaller."""
        return self._sizes[-1]

    def warm_up(self) -> None:
        """Compiles the programs of all sizes that pay, and runs each; see `AbstractModel.warm_up`.

        A larger batch pays if its rows take less time each, or if all of it takes little time. From the first size on
        that does not, no size is used.
        """
        if not all(spec.is_fixed for spec in self._inputs):
            return
        with ThreadPoolExecutor(os.cpu_count()) as executor:
            compiling = {size: executor.submit(self._compile, size) for size in self._sizes}
            try:
                self._use_sizes_that_pay(compiling)
            except ModelError:
                raise
            except Exception as error:
                raise _not_run(error) from error
            finally:
                executor.shutdown(wait=False, cancel_futures=True)

    def _compile(self, size: int) -> Callable[..., Sequence[Any]]:
        return self._function.lower(*self._constants, self._zeros(size)).compile()

    def _zeros(self, size: int) -> list[np.ndarray]:
        return [np.zeros((size, *cast("tuple[int, ...]", spec.shape)), spec.dtype) for spec in self._inputs]

    def _use_sizes_that_pay(self, compiling: Mapping[int, Future[Callable[..., Sequence[Any]]]]) -> None:
        best_row_s = math.inf
        for number, (size, program) in enumerate(compiling.items()):
            self._compiled[size] = program.result()
            run_s = self._time(size)
            if run_s > LONG_RUN_S and run_s / size > LEAST_GAIN * best_row_s:
                del self._compiled[size]
                self._sizes = self._sizes[:number]
                return
            best_row_s = min(best_row_s, run_s / size)

    def _time(self, size: int) -> float:
        """Returns the time of a run, in seconds: the least of a few, since other programs are compiled meanwhile."""
        arrays = dict(zip([spec.name for spec in self._inputs], self._zeros(size), strict=True))
        self._run(arrays)  # the first run takes longer
        times = []
        for _ in range(NUM_TIMED_RUNS):
            start = time.perf_counter()
            self._run(arrays)
            times.append(time.perf_counter() - start)
            if times[-1] < LONG_RUN_S:
                break
        return min(times)

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the function on rows, in several batches if there are many; see `AbstractModel.predict`."""
        num_rows = len(arrays[self._inputs[0].name])
        step = self.max_batch_size
        parts = [
            self._run({name: array[start : start + step] for name, array in arrays.items()})
            for start in range(0, num_rows, step)
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self._output_names}

    def _run(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        num_rows = len(arrays[self._inputs[0].name])
        size = next(size for size in self._sizes if size >= num_rows)
        # Padded with the last row instead of zeros, because the model certainly accepts its values.
        padding = size - num_rows
        padded = [np.concatenate([a, np.repeat(a[-1:], padding, 0)]) if padding else a for a in self._ordered(arrays)]
        try:
            outputs = self._program(size, padded)(*self._constants, padded)
            found = [np.asarray(output)[:num_rows] for output in outputs]
        except Exception as error:
            raise _not_run(error) from error
        return {name: plain(array) for name, array in zip(self._output_names, found, strict=True)}

    def _program(self, size: int, arrays: Sequence[np.ndarray]) -> Callable[..., Sequence[Any]]:
        """Returns the program for a batch; compiles it if none was for these shapes, or not recently."""
        found = self._compiled.get(size)
        if found is not None:
            return found
        shapes = (size, *(array.shape[1:] for array in arrays))
        if shapes not in self._varying:
            self._varying[shapes] = self._function.lower(*self._constants, arrays).compile()
            if len(self._varying) > MAX_VARYING_PROGRAMS:
                self._varying.popitem(last=False)
        self._varying.move_to_end(shapes)
        return self._varying[shapes]

    def _ordered(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [arrays[spec.name] for spec in self._inputs]


def _not_run(error: Exception) -> ModelError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ModelError(f"the model could not be run: {reason[:400]}")
