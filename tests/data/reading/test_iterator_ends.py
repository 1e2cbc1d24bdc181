"""Iterators over batches end with who iterates: no thread stays, and nothing is said."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from tests.data.reading.test_batches import make
from tests.waiting import wait_until


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lockstep-read-ahead")]


@pytest.mark.parametrize("end", ["exhaust", "close", "drop", "fail"])
def test_the_reading_threads_end_with_the_iterator(end: str) -> None:
    gc.collect()  # iterators that earlier tests left in the frames of errors
    wait_until(lambda: not reading_threads())

    def transform(records: list[int]) -> np.ndarray:
        if end == "fail" and 3 in records:
            raise ValueError("no such record")
        return np.array(records)

    iterator = iter(make(100, transform=transform, read_ahead=2))
    next(iterator)
    assert 1 <= len(reading_threads()) <= 2
    if end == "exhaust":
        assert len(list(iterator)) == 33
    elif end == "close":
        iterator.close()
        with pytest.raises(ValueError, match="closed"):
            next(iterator)
    elif end == "fail":
        with pytest.raises(ValueError, match="no such record"):
            next(iterator)
    else:
        del iterator
        gc.collect()
    wait_until(lambda: not reading_threads())


LEFT_BEHIND = """
import sys

import keras
import numpy as np

from lockstep.data import Batches
from lockstep.strategies import MirroredStrategy


def pairs(records):
    return np.array(records, np.float32)[:, None], np.array(records, np.float32)[:, None]


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return pairs([index])


data, how = sys.argv[1:]
batches = {
    "threads": lambda: Batches(range(200), batch_size=4, transform=pairs),
    "processes": lambda: Batches(range(200), batch_size=4, transform=pairs, num_processes=1),
    "repeated": lambda: Batches(range(200), batch_size=4, transform=pairs).repeat(),
    "py_dataset": lambda: Pairs(workers=2),
}[data]()
if how == "distributed":
    batches = MirroredStrategy(["cpu:0"]).experimental_distribute_dataset(batches)
iterator = iter(batches)
next(iterator)
if how == "exit":
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("data", "how"),
    [
        ("threads", "left"),
        ("threads", "exit"),
        ("threads", "distributed"),
        ("processes", "left"),
        ("repeated", "left"),
        ("py_dataset", "distributed"),
    ],
)
@pytest.mark.heavy
def test_an_iterator_that_is_left_behind_ends_with_the_program_in_silence(data: str, how: str) -> None:
    env = dict(os.environ, KERAS_BACKEND="jax", JAX_NUM_CPU_DEVICES="1")
    command = [sys.executable, "-c", LEFT_BEHIND, data, how]
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (3 if how == "exit" else 0, "")
