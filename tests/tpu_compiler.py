from importlib.metadata import version

import pytest

from lockstep.planning.compiling import LEAST_VERSIONS


def needs_tpu_compiler() -> None:
    """Skips the current test, or module, where TPU programs cannot be compiled."""
    pytest.importorskip("libtpu", reason="needs libtpu, which compiles for TPUs: pip install 'lockstep-train[tpu]'")
    for package, least in LEAST_VERSIONS.items():
        found = version(package)
        if [int(part) for part in found.split(".")[:3]] < [int(part) for part in least.split(".")]:
            pytest.skip(f"needs {package} {least}, and has {found}", allow_module_level=True)
