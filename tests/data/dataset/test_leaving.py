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
left = [iter(ways[way]()) for way in WAYS]
print(*(next(one).size for one in left))
"""
READ_IN_A_THREAD = """
import time
from lockstep.data import Dataset
def wait(value):
    time.sleep(0.05)
    return value
data = Dataset.range(10**6).filter(lambda value: value >= 0).map(wait)
left = iter(data.prefetch(1).cache().prefetch(64))
print(next(left))
"""
WAYS = ["numbered", "followed", "interleaved", "cached"]


# One program leaves all of them behind; each has one of its own, too.
@pytest.mark.parametrize("ways", [WAYS, *([way] for way in WAYS)], ids=lambda ways: "-".join(ways))
@pytest.mark.heavy
def test_it_ends_with_the_program(ways):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("WAYS", repr(ways))], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == len(ways)


@pytest.mark.heavy
def test_a_cache_that_a_thread_waits_for_ends_after_the_iterator_of_that_thread():
    done = subprocess.run([sys.executable, "-c", READ_IN_A_THREAD], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
