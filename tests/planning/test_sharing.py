"""In a process that plans, all copies of a variable are one buffer: a slice of many chips would not fit otherwise."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 16)
import lockstep
import keras
from lockstep.strategies import MirroredStrategy
from lockstep.upstream.replacing import Stage, replace

replace(Stage.PLAN)
with MirroredStrategy([f"cpu:{number}" for number in range(16)]).scope():
    variable = keras.Variable("glorot_uniform", shape=(1024, int(sys.argv[1])), dtype="float32")
print(len({shard.data.unsafe_buffer_pointer() for shard in variable.value.addressable_shards}))
"""


# Keras computes the initial value of a variable on every device where all copies together take 250 MiB or more.
@pytest.mark.parametrize(
    "num_columns", [pytest.param(64, id="small", marks=pytest.mark.heavy), pytest.param(4096, id="large")]
)
def test_all_copies_of_a_variable_are_one_buffer(num_columns):
    command = [sys.executable, "-c", SCRIPT, str(num_columns)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout.split()[-1] == "1"
