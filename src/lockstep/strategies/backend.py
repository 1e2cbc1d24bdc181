"""Prepares the backend before the first computation: Keras on JAX, XLA's options, the cache of compiled programs.

Importing this module imports neither JAX nor Keras.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import os
import sys
from typing import Final

from lockstep.errors import BackendError
from lockstep.home import Home
from lockstep.upstream.jax_processes import backend_started
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

BACKEND_VARIABLE: Final = "KERAS_BACKEND"
CACHE_VARIABLE: Final = "JAX_COMPILATION_CACHE_DIR"

MIN_CACHED_COMPILE_S: Final = 0.5
"""Programs that compile in less time are not cached, because reading them back takes as long."""


def require_jax_backend() -> None:
    """Checks that Keras runs, or will run, on JAX.

    Raises:
        BackendError: Keras was imported on another backend, or ``KERAS_BACKEND`` names another one.
    """
    keras = sys.modules.get("keras")
    # A module that is still being imported has no config yet; its backend depends on the variable below.
    if keras is not None and hasattr(keras, "config"):
        backend = str(keras.config.backend())
        if backend != "jax":
            raise BackendError(
                "Keras was imported on another backend than JAX",
                received=backend,
                allowed="jax",
                action=f"import lockstep before keras, or set {BACKEND_VARIABLE}=jax",
            )
        return
    named = os.environ.get(BACKEND_VARIABLE, "jax")
    if named != "jax":
        raise BackendError(
            f"{BACKEND_VARIABLE} names another backend than JAX",
            received=named,
            allowed="jax",
            action=f"unset {BACKEND_VARIABLE}, or set it to jax",
        )


def prepare_backend() -> None:
    """Sets XLA's options and the cache of compiled programs. Strategies call it before they look for devices.

    Further calls do nothing. Settings of the user stay: flags are only added to ``XLA_FLAGS``, and a cache directory
    that JAX was given (``JAX_COMPILATION_CACHE_DIR`` or ``jax.config``) is kept. If it is "", the cache is off.

    Raises:
        BackendError: Keras does not run on JAX.
    """
    require_jax_backend()
    import jax  # slow to import, and only after the check above

    from lockstep.strategies import xla_cpu  # imports JAX

    if not backend_started():
        xla_cpu.add_flags()
    replace(Stage.BACKEND)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None and CACHE_VARIABLE not in os.environ:
        directory = Home.from_env().cache / "xla"
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_CACHED_COMPILE_S)
