"""Measures what `BackupAndRestore` costs a training that saves once a minute: the row of benchmarks/README.md.

Trains a model of dense layers with Adam by ``fit`` on one CPU device, and saves every few seconds, so that there are
many saves to measure. The time from one save to the next is compared with that of as many undisturbed steps: the
difference is what one save costs, with all that the thread that writes takes from the steps beside it. On an
accelerator the steps run beside that thread, so a CPU is the worst case. Figures are those of single saves.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from harness import columns
from harness.environments import own_versions
from harness.program import Program
from harness.results import Result

from lockstep.data import Batches
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import BackupAndRestore

# isort: split
import keras

MIB: Final = 2**20
BYTES_A_PARAMETER: Final = 12
"""Of a float32 parameter and Adam's two moments."""
NUM_LAYERS: Final = 8
BATCH_SIZE: Final = 64
MINUTE_S: Final = 60.0


@final
class Rows:
    """As many empty records as are needed."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> bytes:
        return b""


@final
class Clock(keras.callbacks.Callback):
    """Notes when each step has ended, and whether the last save was written by then.

    Args:
        folder: the folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ends_s: list[float] = []
        self.processor_s: list[float] = []
        self.num_written: list[int] = []
        self._folder = folder
        self._seen: set[str] = set()

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: the notes are of this run."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Does nothing."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the time."""
        self._seen.update(path.name for path in self._folder.glob("*") if path.name.isdigit())
        self.num_written.append(len(self._seen))
        self.ends_s.append(time.perf_counter())
        self.processor_s.append(time.process_time())


def make_model(size_mib: int) -> tuple[Any, int]:
    """Returns a model whose state has about this size, and the width of its layers."""
    width = round((size_mib * MIB / BYTES_A_PARAMETER / NUM_LAYERS) ** 0.5)
    with OneDeviceStrategy().scope():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(NUM_LAYERS)]
        model = keras.Sequential([keras.Input((width,)), *layers])
        model.compile("adam", "mse")
    return model, width


def measure(size_mib: int, *, window_s: float, num_saves: int) -> Result:
    """Trains and saves.

    Args:
        size_mib: the size of the state, in MiB.
        window_s: the time between two saves, in seconds. It has to be longer than it takes to write one.
        num_saves: the number of saves that count.
    """
    model, width = make_model(size_mib)
    inputs = np.random.default_rng(0).random((BATCH_SIZE, width), np.float32)

    def read(records: Sequence[bytes]) -> Any:
        return inputs[: len(records)], inputs[: len(records)]

    data = Batches(Rows(), batch_size=BATCH_SIZE, transform=read, seed=0)
    first = Clock(Path("nowhere"))
    model.fit(data, steps_per_epoch=12, verbose=0, callbacks=[first])
    num_steps = max(8, round(window_s / statistics.median(np.diff(first.ends_s[2:]))))
    with tempfile.TemporaryDirectory() as name:
        clock = Clock(Path(name))
        backup = BackupAndRestore(name, save_freq=num_steps)
        model.fit(data, steps_per_epoch=num_steps * (num_saves + 2), verbose=0, callbacks=[clock, backup])
    return cost_of(clock, num_steps=num_steps, size_mib=size_mib)


def cost_of(clock: Clock, *, num_steps: int, size_mib: float) -> Result:
    """Returns what the saves have cost: one was begun at the end of every `num_steps` steps.

    Args:
        clock: what was noted.
        num_steps: the number of steps from one save to the next.
        size_mib: the size of the state, in MiB.
    """
    steps_s, steps_cpu_s = np.diff(clock.ends_s), np.diff(clock.processor_s)  # number n is the step after end n
    begun = range(num_steps - 1, len(clock.ends_s) - num_steps, num_steps)
    quiet: list[int] = []
    written_s: list[float] = []
    for number, start in enumerate(begun):
        window = range(start, start + num_steps)
        after = [step for step in window if clock.num_written[step] > number]
        if not after:
            raise SystemExit("a save takes longer than the time between two: pass a larger --window")
        written_s.append(clock.ends_s[after[0]] - clock.ends_s[start])
        quiet.extend(after[1:])
    step_s, step_cpu_s = float(np.median(steps_s[quiet])), float(np.median(steps_cpu_s[quiet]))
    windows = [slice(start, start + num_steps) for start in begun]
    return Result(
        case=f"{size_mib:,.0f}",
        side="Lockstep",
        unit="seconds that a save costs all steps",
        values=[float(steps_s[window].sum()) - num_steps * step_s for window in windows],
        more={
            "step_ms": 1000 * step_s,
            "blocked_ms": [1000 * (float(steps_s[start]) - step_s) for start in begun],
            "written_s": written_s,
            "processor_s": [float(steps_cpu_s[window].sum()) - num_steps * step_cpu_s for window in windows],
        },
    )


SHOWN: Final = {
    "state, MiB": columns.case,
    "all steps take longer by, s a save": columns.values(),
    "at one save a minute": lambda one: f"{100 * (one.median or 0.0) / MINUTE_S:.2f}%",
    "a step, ms": columns.more("step_ms", 0),
    "the step that begins a save takes longer by, ms": columns.more("blocked_ms", 0),
    "written after, s": columns.more("written_s"),
    "processor s a save": columns.more("processor_s"),
}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="checkpoints")
    program.add("--sizes", type=int, nargs="+", default=[32, 128, 512], help="sizes of the state, in MiB")
    program.add("--window", type=float, default=10.0, help="seconds between two saves")
    program.add("--saves", type=int, default=6, help="the number of saves that count")
    options = program.parse(small={"sizes": [4], "window": 3.0, "saves": 1})
    results = [measure(size_mib, window_s=options.window, num_saves=options.saves) for size_mib in options.sizes]
    program.finish(results, SHOWN, packages={"Lockstep": own_versions("orbax-checkpoint")})


if __name__ == "__main__":
    main()
