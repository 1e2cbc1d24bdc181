"""What has to come before JAX and Ray: virtual devices, and engines with tokens, for whichever folder runs first."""

import gc
import os
import signal
import zlib
from pathlib import Path

from lockstep.topology import virtual_devices_env
from lockstep.upstream.jax_processes import knows_xla_option

NUM_DEVICES = int(os.environ.get("LOCKSTEP_TEST_DEVICES", "8"))  # tests of strategies that take all of them set it

_variables = virtual_devices_env(NUM_DEVICES)
# Programs that tests start choose their own number of devices, so only these two are left in the environment.
os.environ.update({name: value for name, value in _variables.items() if name != "JAX_NUM_CPU_DEVICES"})
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # nothing is kept in the home folder of whoever runs the tests
os.environ["RAY_AUTH_MODE"] = "token"  # Ray looks once, when the first test module that needs it is collected

# `make test` has XLA compile with less effort; `make test-all` has the programs as users have them.
if os.environ.get("LOCKSTEP_TEST_COMPILE") == "quick":
    _options = ["--xla_cpu_parallel_codegen_split_count=1"]
    if knows_xla_option("--xla_cpu_use_fusion_emitters", "false"):
        _options += ["--xla_cpu_use_fusion_emitters=false", "--xla_backend_optimization_level=0"]
    else:  # jaxlib 0.12 knows no other way; without any optimisation two programs of one step differ in the last bit
        _options += ["--xla_backend_optimization_level=1"]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_options]).strip()

# A background shell and nohup have their programs ignore these, and so do the programs that tests start and interrupt.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

import jax  # noqa: E402 - reads the environment when it is imported
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", NUM_DEVICES)


SLOWEST = (
    "tests/clusters/test_embedded.py",
    "tests/cli/test_service_life.py",
    "tests/cli/test_head_deaths.py",
    "tests/strategies/test_every_layer.py",
    "tests/migration/test_scripts.py",
    "tests/cli/test_outage.py",
    "tests/cli/test_watching.py",
)
"""These take a minute or more, so they come first."""
assert all((Path(__file__).parent.parent / name).is_file() for name in SLOWEST), "a file of SLOWEST is gone"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files so that those which compute and those which wait for processes are mixed."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        name = item.nodeid.partition("::")[0]
        return name not in SLOWEST, zlib.crc32(name.encode())

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leaves modules and collected tests out of the garbage collections that Keras and we ask for: a second each."""
    gc.collect()
    gc.freeze()
