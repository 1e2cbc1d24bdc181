"""Every module of Lockstep can be imported with the installed versions of Keras, JAX, and what else it stands on."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import lockstep

# A command that is run as a file, and the modules that `python -m` runs.
NOT_IMPORTED = ("lockstep.testing.container_command", "__main__")


def import_all() -> int:
    """Imports every module, and prints those that fail; returns the number of failures."""
    num_failed = 0
    for module in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
        if module.name.endswith(NOT_IMPORTED):
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:
            num_failed += 1
            print(f"{module.name}: {error!r}")
    return num_failed


@pytest.mark.skipif("LOCKSTEP_TEST_VERSIONS" not in os.environ, reason="other tests import them with these versions")
def test_every_module_can_be_imported() -> None:
    # In a process of its own: some modules set up Keras or JAX for the whole process.
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


if __name__ == "__main__":
    sys.exit(min(import_all(), 1))
