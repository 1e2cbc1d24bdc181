"""An iterator that is left behind ends with the program, without a word."""

import subprocess
import sys

import pytest

SCRIPT = """
import lockstep
from lockstep.data import Dataset
data = Dataset.range(10**6).map(lambda v: v + 1, num_parallel_calls=2)
ways = {
    "numbered": lambda: data.batch(8).prefetch(4),
    "followed": lambda: data.filter(lambda v: v % 3 == 0).batch(8).prefetch(4),
    "interleaved": lambda: Dataset.range(9).interleave(lambda v: data.prefetch(2)).prefetch(2),
    "cached": lambda: data.filter(lambda v: v > 3).prefetch(2).cache().prefetch(2),
}
left = iter(ways[WAY]())
print(next(left).size)
"""


@pytest.mark.parametrize("way", ["numbered", "followed", "interleaved", "cached"])
def test_it_ends_with_the_program(way):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("WAY", repr(way))], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
