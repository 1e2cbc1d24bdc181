"""In a process that plans, a variable takes little memory: a slice of many chips would not fit otherwise."""

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
@pytest.mark.parametrize("num_columns", [pytest.param(64, id="small"), pytest.param(4096, id="large")])
@pytest.mark.heavy
def test_all_copies_of_a_variable_are_one_buffer(num_columns):
    command = [sys.executable, "-c", SCRIPT, str(num_columns)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout.split()[-1] == "1"


LARGE = """
import resource
import jax
jax.config.update("jax_num_cpu_devices", 4)
import lockstep
import keras
from lockstep.strategies import MirroredStrategy, ShardedStrategy
from lockstep.upstream.replacing import Stage, replace

replace(Stage.PLAN)
devices = [f"cpu:{number}" for number in range(4)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for strategy in (MirroredStrategy(devices), ShardedStrategy(devices)):
    with strategy.scope():
        variable = keras.Variable("glorot_uniform", shape=(2**15, 2**14), dtype="bfloat16")
        print(variable.value.sharding.shard_shape(variable.shape), variable.value.dtype)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 2**10)
"""


def test_a_large_variable_takes_no_memory_whole_or_divided():
    found = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=100, check=True)
    *shards, grown_mib = found.stdout.split("\n")[:3]
    assert shards == ["(32768, 16384) bfloat16", "(8192, 16384) bfloat16"]
    assert int(grown_mib) < 200, "of 1 GiB in each of the two"
