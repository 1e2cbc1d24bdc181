"""JAX's profiler during training: one trace at a time, whose steps are marked for TensorBoard's profile page."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final, final

import jax

from lockstep.errors import BackendError

_STEP: Final = "train"
"""The name that TensorBoard's profile page expects of a training step."""

_running = threading.Lock()


def is_trace_running() -> bool:
    """Whether this module is recording a trace in this process."""
    return _running.locked()


@final
class Trace:
    """A trace that is being recorded. It begins when the object is made. Only one may run in a process.

    The calls of Python functions are not recorded, because that would slow the steps down.

    Args:
        folder: the folder for the files, which are written to ``plugins/profile/TIME`` in it.

    Raises:
        BackendError: another trace is running.
    """

    def __init__(self, folder: Path) -> None:
        if not _running.acquire(blocking=False):
            raise BackendError("another profile is being recorded", action="try again when it is complete")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except BaseException as error:
            _running.release()
            if not isinstance(error, Exception):
                raise
            raise BackendError(
                f"JAX's profiler could not be started: {error}", action="end the program's own profile first"
            ) from error
        self._step: Any = None
        self._is_over = False

    def begin_step(self, number: int) -> None:
        """Marks the end of the step before, and the beginning of a step. Call it in the thread that runs the steps.

        Args:
            number: the number of the step, from 0.
        """
        self.end_step()
        self._step = jax.profiler.StepTraceAnnotation(_STEP, step_num=number)
        self._step.__enter__()

    def end_step(self) -> None:
        """Marks the end of the current step, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def stop(self) -> None:
        """Ends the trace, and writes its files. Idempotent.

        Raises:
            BackendError: the files cannot be written, or the program has ended the trace itself.
        """
        if self._is_over:
            return
        self._is_over = True
        self.end_step()
        try:
            jax.profiler.stop_trace()
        except Exception as error:
            raise BackendError(f"JAX's profiler wrote no profile: {error}") from error
        finally:
            _running.release()


def wait_for(arrays: Any) -> None:
    """Waits until the arrays of a structure are computed; those whose buffers were reused are left out."""
    leaves = jax.tree.leaves(arrays)
    jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array) and not leaf.is_deleted()])
