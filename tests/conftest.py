"""What has to come before JAX and Ray: virtual devices, and engines with tokens, for whichever folder runs first."""

import gc
import itertools
import os
import signal
import zlib
from pathlib import Path
from typing import Any

from lockstep.topology import virtual_devices_env
from lockstep.upstream.jax_processes import knows_xla_option

NUM_DEVICES = int(os.environ.get("LOCKSTEP_TEST_DEVICES", "8"))  # tests of strategies that take all of them set it

_variables = virtual_devices_env(NUM_DEVICES)
# Programs that tests start choose their own number of devices, so only these two are left in the environment.
os.environ.update({name: value for name, value in _variables.items() if name != "JAX_NUM_CPU_DEVICES"})
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # nothing is kept in the home folder of whoever runs the tests
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # nobody reads where a program's operations come from
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
from xdist.scheduler import LoadFileScheduling  # noqa: E402

jax.config.update("jax_num_cpu_devices", NUM_DEVICES)


ON_ONE_SERVICE = (
    "tests/cli/test_service_life.py",
    "tests/cli/test_keys.py",
    "tests/cli/test_secrets.py",
    "tests/cli/test_submit_prediction.py",
    "tests/cli/test_watching.py",
    "tests/cli/test_deployed_model.py",
)
"""Files that share one service of the command line, so they run one after the other in one worker: elsewhere each would
start one of its own."""
WAITING_S = {
    ON_ONE_SERVICE[0]: 200,
    "tests/clusters/test_embedded.py": 80,
    "tests/cli/test_head_deaths.py": 60,
    "tests/clusters/test_machines.py": 20,
}
"""Files that mostly wait for processes, and how long they take, in seconds. One after the other, they fill the time in
which other workers compute."""
RUN_S = 500
"""How long all tests take with three workers, in seconds, on a machine of the same speed."""
LONG = (
    "tests/migration/test_scripts.py",
    "tests/strategies/test_every_layer.py",
    "tests/strategies/test_stateful_steps.py",
)
"""Files that compute for a minute or more, so they come early."""
for _name in (*WAITING_S, *ON_ONE_SERVICE, *LONG):
    assert (Path(__file__).parent.parent / _name).is_file(), f"{_name} is gone"

_STARTS = dict(zip(WAITING_S, itertools.accumulate(WAITING_S.values(), initial=0), strict=False))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files so that those which compute and those which wait for processes are mixed."""

    def place(item: pytest.Item) -> tuple[float, str]:
        name = item.nodeid.partition("::")[0]
        if name in ON_ONE_SERVICE:
            return _STARTS[ON_ONE_SERVICE[0]] / RUN_S, f"{ON_ONE_SERVICE.index(name)}"
        if name in _STARTS:
            return _STARTS[name] / RUN_S, name
        return (0.0 if name in LONG else zlib.crc32(name.encode()) / 2**32), name

    items.sort(key=place)


class _OneServiceScheduling(LoadFileScheduling):
    """Hands whole files to workers, as `--dist loadfile` does, and the files that share a service together."""

    def _split_scope(self, nodeid: str) -> str:
        name = super()._split_scope(nodeid)
        return ON_ONE_SERVICE[0] if name in ON_ONE_SERVICE else name


@pytest.hookimpl(optionalhook=True)  # there are runs without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Returns how tests are handed to workers; None for what pytest-xdist does itself."""
    return _OneServiceScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Leaves modules and collected tests out of the garbage collections that Keras and we ask for: a second each."""
    gc.collect()
    gc.freeze()
