"""A callback that says at the end of ``fit`` how fast it was, where its time went, and what it used."""

# Keras sets a callback's model and parameters before it calls any other method.
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportUnknownMemberType=false

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, final

import jax
import keras
from typing_extensions import override

from lockstep.errors import BackendError, InvalidInputError, counted
from lockstep.strategies import fitting, programs
from lockstep.strategies.epochs import current_layout
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.observing import AbstractStepObserver, Execution, Wait
from lockstep.strategies.tracing import Trace
from lockstep.training.collective_times import collective_s
from lockstep.training.event_files import EventFiles
from lockstep.training.fit_report import FitReport
from lockstep.training.peaks import find_peak
from lockstep.training.step_times import StepTimes
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

PROFILE_AFTER: Final = 10
"""The number of steps before those in which collectives are measured."""


@final
class Summary(keras.callbacks.Callback, AbstractStepObserver):
    """Writes a summary when ``fit`` ends: speed, where the time went, memory, and model FLOPs utilisation.

    The times are taken without waiting for the devices: see `lockstep.training.step_times`. How long the devices
    communicate is measured by JAX's profiler over a few steps, and the same share is assumed of the others. Those few
    steps are slower, and do not count as steps in the summary's rates. With one device, and with a step that does not
    communicate, nothing is profiled.

    In a job of several processes, only the first process writes, and measures itself. After ``fit``, `report` has the
    numbers, in every process.

    Args:
        log_dir: a TensorBoard folder, as of `lockstep.training.TensorBoard`: the numbers are written there as scalars
            under ``summary/``, and the lines as a text. None for neither.
        profile_steps: the number of steps in which collectives are measured; 0 to measure none.
        write: writes a line, which includes the line break; writes to standard output by default.

    Raises:
        InvalidInputError: ``profile_steps`` is negative.
        StorageWriteError: (in ``fit``) TensorBoard's files cannot be written.
    """

    def __init__(
        self,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        profile_steps: int = 3,
        write: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        if profile_steps < 0:
            raise InvalidInputError("profile_steps", received=profile_steps, allowed="0 or more steps")
        self.async_safe = True  # Keras may call the methods for batches from other threads, in any order
        self._log_dir = log_dir
        self._profile_steps = profile_steps
        self._write = write or _write_out
        self._run: fitting.KerasCall | None = None
        self._layout: AbstractLayout | None = None
        self._begin(None)
        replace(Stage.STRATEGY)  # a model without a strategy is measured too

    def _begin(self, run: fitting.KerasCall | None) -> None:
        self._run = run
        self._began_s = time.monotonic()
        self._times = StepTimes(now_s=self._began_s)
        self._compiled: _CompiledStep | None = None
        self._trace: Trace | None = None
        self._trace_folder = Path()
        self._trace_began: tuple[int, float] = (0, 0.0)
        self._collective_share: float | None = None
        self._collective_note = ""
        self.report: FitReport | None = None

    @override
    def set_model(self, model: Any) -> None:
        super().set_model(model)
        run = fitting.current_call()
        if run is None or run.method != "fit" or run.model is not model or run is self._run:
            return
        self._begin(run)
        self._layout = current_layout()
        run.observe(self)
        # Keras makes the step after this, and announces it before its first run.
        run.exit_stack.enter_context(programs.watch(self._inspect))

    def _inspect(self, program: programs.Program) -> None:
        if self._compiled is None and hasattr(program.step, "trace"):  # a step that runs eagerly is not compiled
            self._compiled = _CompiledStep(program)

    @override
    def before_execution(self, execution: Execution) -> None:
        self._measure_collectives(execution)
        if self._trace is not None:
            self._trace.begin_step(execution.num_before)
        rows = execution.num_rows * execution.num_steps
        self._times.begin(num_steps=execution.num_steps, num_rows=rows, now_s=time.monotonic())

    @override
    def waited(self, kind: Wait, *, began_s: float, ended_s: float) -> None:
        self._times.wait(kind, began_s=began_s, ended_s=ended_s)

    @override
    def after_epoch(self) -> None:
        self._times.interrupt()
        if self._trace is not None:
            self._trace.end_step()

    @override
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the end of an execution: its results have arrived."""
        self._times.complete(now_s=time.monotonic())

    @override
    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Records that validation begins."""
        self._times.begin_validation(now_s=time.monotonic())

    @override
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Records that validation has ended."""
        self._times.end_validation(now_s=time.monotonic())

    @override
    def end(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        now_s = time.monotonic()
        self._times.end(now_s=now_s)
        if self._trace is not None:
            self._stop_trace()
            self._collective_note = f"not measured: fit ended within the {self._profile_steps} steps of the profile"
        if self._times.num_steps == 0:  # all epochs were trained already, or the first step failed
            return
        self.report = self._make_report(total_s=now_s - self._began_s)
        if jax.process_index() == 0:
            for line in self.report.lines:
                self._write(line + "\n")
            if self._log_dir is not None:
                self._write_events(self.report, log_dir=self._log_dir)

    def _measure_collectives(self, execution: Execution) -> None:
        """Begins or ends the profile of a few steps from which the time of collectives is known."""
        if self._trace is not None:
            first_step, began_s = self._trace_began
            if execution.num_before - first_step >= self._profile_steps:
                execution.settle()
                took_s = time.monotonic() - began_s
                self._stop_trace(took_s=took_s, num_steps=execution.num_before - first_step)
            return
        is_due = self._collective_share is None and not self._collective_note
        if not is_due or execution.num_before < PROFILE_AFTER or jax.process_index() != 0:
            return
        if self._profile_steps == 0 or self._compiled is None or not self._compiled.has_collectives:
            self._collective_share = 0.0 if self._compiled and not self._compiled.has_collectives else None
            self._collective_note = "not measured" if self._collective_share is None else "the step has none"
            return
        execution.settle()
        self._trace_folder = Path(tempfile.mkdtemp(prefix="lockstep-summary-"))
        try:
            self._trace = Trace(self._trace_folder)
        except BackendError as error:
            shutil.rmtree(self._trace_folder, ignore_errors=True)
            self._collective_note = f"not measured: {error}"
            return
        self._times.pause(is_paused=True)
        self._trace_began = (execution.num_before, time.monotonic())

    def _stop_trace(self, *, took_s: float = 0.0, num_steps: int = 0) -> None:
        trace, self._trace = self._trace, None
        assert trace is not None, "a trace is running"
        try:
            trace.stop()
            if took_s:
                spent_s = collective_s(self._trace_folder, num_devices=jax.local_device_count())
                self._collective_share = min(1.0, spent_s / took_s)
                each = f"{1000 * spent_s / num_steps:.3g} ms a step"
                self._collective_note = f"{each}, measured by a profile of {counted(num_steps, 'step')}"
        except (BackendError, RuntimeError, ValueError) as error:  # the profile's file may be unreadable
            self._collective_note = f"not measured: {error}"
        finally:
            shutil.rmtree(self._trace_folder, ignore_errors=True)
            self._times.pause(is_paused=False)

    def _make_report(self, *, total_s: float) -> FitReport:
        assert self._run is not None, "fit has begun"
        times, compiled = self._times, self._compiled
        layout = self._layout
        devices = list(layout.devices) if layout is not None else jax.local_devices()[:1]
        share = self._collective_share
        waits_s = times.waits_s
        known_s = times.first_s + times.busy_s + times.validation_s + sum(waits_s.values())
        rate = times.steady_rows / times.steady_s if times.steady_s else None
        step_s = times.steady_s / times.steady_steps if times.steady_steps else None
        peak_bytes, memory_note = _peak_memory(compiled)
        operations = None if compiled is None else compiled.num_operations
        utilisation, note = self._utilisation(operations, step_s=step_s, devices=devices)
        return FitReport(
            name=self.model.name,
            strategy="" if layout is None else layout.name,
            device=devices[0].device_kind,
            num_devices=len(devices),
            num_steps=times.num_steps,
            num_examples=times.num_rows,
            examples_per_s=rate,
            step_p50_s=times.percentile_s(50),
            step_p95_s=times.percentile_s(95),
            total_s=total_s,
            compute_s=times.busy_s * (1 - (share or 0.0)),
            collective_s=None if share is None else times.busy_s * share,
            collective_note=self._collective_note or f"not measured: fewer than {PROFILE_AFTER} steps",
            data_s=waits_s[Wait.DATA],
            checkpoint_s=waits_s[Wait.CHECKPOINT],
            validation_s=times.validation_s,
            first_s=times.first_s,
            other_s=max(0.0, total_s - known_s),
            peak_memory_bytes=peak_bytes,
            memory_note=memory_note,
            step_operations=operations,
            utilisation=utilisation,
            utilisation_note=note,
        )

    def _utilisation(
        self, operations: float | None, *, step_s: float | None, devices: list[Any]
    ) -> tuple[float | None, str]:
        """Returns the model FLOPs utilisation, and what it is of or why it is not known."""
        kind = devices[0].device_kind
        peak, dtype = find_peak(kind), keras.tree.flatten(self.model.compute_dtype)[0]
        rate = None if peak is None else peak.rate(dtype)
        if peak is None or rate is None:
            return None, f"not known: no published peak of {kind} in {dtype}"
        if not operations or step_s is None:
            return None, "not known"
        note = f"of {rate / 1e12:,.4g} TFLOP/s, the peak of {peak.name} in {dtype}"
        return operations / step_s / (rate * len(devices)), note

    def _write_events(self, report: FitReport, *, log_dir: str | os.PathLike[str]) -> None:
        files = EventFiles(log_dir)
        try:
            writer = files.writer("train")
            step = int(self.model.optimizer.iterations.value) if self.model.optimizer is not None else 0
            for tag, value in report.scalars.items():
                writer.add_scalar(tag, value, step)
            writer.add_text("summary", "".join(f"    {line}\n" for line in report.lines), step)
        finally:
            files.close()


@final
class _CompiledStep:
    """What is known of a training step before its first run. JAX keeps what is compiled here for the run.

    Args:
        program: the step.

    Attributes:
        num_operations: the operations in the step's matrix products and convolutions, over all devices.
        has_collectives: whether the devices communicate in the step.
        memory_bytes: the memory of a device that the compiler planned; None if it does not tell.
    """

    def __init__(self, program: programs.Program) -> None:
        from lockstep.planning.hlo import collectives
        from lockstep.planning.operations import matrix_operations

        traced = program.step.trace(*program.args)
        self.num_operations = float(matrix_operations(traced.jaxpr))
        compiled = traced.lower().compile()
        self.has_collectives = bool(collectives(compiled.as_text()))
        self.memory_bytes: int | None = None
        stats = compiled.memory_analysis()
        if stats is not None:
            held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
            self.memory_bytes = held + stats.temp_size_in_bytes + stats.generated_code_size_in_bytes


def _peak_memory(compiled: _CompiledStep | None) -> tuple[int | None, str]:
    """Returns the peak memory of the fullest device of this process in bytes, and where the number is from."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [found["peak_bytes_in_use"] for found in stats if found and "peak_bytes_in_use" in found]
    if peaks:
        return max(peaks), "since the program began, as the devices report it"
    if compiled is not None and compiled.memory_bytes is not None:
        return compiled.memory_bytes, "as the compiler planned the step"
    return None, "not known: these devices do not report it"


def _write_out(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()  # people read the log during training
