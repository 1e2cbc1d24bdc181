"""What the host does in a step of ``fit`` and of loops, in calls of functions: the same on every machine."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from lockstep.strategies import OneDeviceStrategy


def test_a_step_costs_the_host_less_than_kerass_own():
    program = Path(__file__).with_name("counting_process.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True)
    calls = json.loads(done.stdout)
    # Keras 3.15 makes about 550, OneDeviceStrategy 258, and MirroredStrategy, which places rows on two devices, 714.
    # A loop with `strategy.run` makes 360 under OneDeviceStrategy, a pure step of `strategy.compile` 284.
    assert calls["OneDeviceStrategy"] < 0.6 * calls["Keras"], calls
    assert calls["looping"] < 0.8 * calls["Keras"], calls
    assert calls["stepping"] < 0.65 * calls["Keras"], calls
    assert calls["MirroredStrategy"] < 1.5 * calls["Keras"], calls


class Counting(keras.callbacks.Callback):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []
        setattr(self, name, self._note)

    def _note(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.seen.append((batch, (logs or {}).get("loss", -1.0)))


class Inheriting(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []

    def on_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.seen.append((batch, (logs or {}).get("loss", -1.0)))


@pytest.mark.parametrize("name", ["on_train_batch_end", "on_batch_end", "on_test_batch_end", "on_predict_batch_end"])
def test_a_callback_that_has_a_method_for_batches_gets_each_batch(name):
    with OneDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows, targets = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    counting = Inheriting() if name == "on_batch_end" else Counting(name)
    if name == "on_predict_batch_end":
        model.predict(rows, batch_size=2, verbose=0, callbacks=[counting])
    elif name == "on_test_batch_end":
        model.evaluate(rows, targets, batch_size=2, verbose=0, callbacks=[counting])
    else:
        model.fit(rows, targets, batch_size=2, verbose=0, callbacks=[keras.callbacks.History(), counting])
    assert [batch for batch, _ in counting.seen] == [0, 1, 2, 3]
    assert all(loss >= 0 for _, loss in counting.seen) or name == "on_predict_batch_end"
