"""``lockstep.report``: a program's measurements, as event files of TensorBoard among the outputs of its job."""

from __future__ import annotations

import contextlib
import importlib
import logging
import numbers
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast, final

from lockstep.data import frame
from lockstep.errors import InvalidInputError, StorageWriteError
from lockstep.jobs.input.hyperparameters import DEFAULT_METRIC
from lockstep.jobs.tuning import TrialEnvironment
from lockstep.processes.exits import finish_at_exit
from lockstep.storage import join_url, local_path, open_bucket
from lockstep.topology import TENSORBOARD_DIR, Topology

RUN: Final = "report"
"""The name of the run that the measurements belong to: the folder of the event files."""
UPLOAD_S: Final = 5.0
"""The shortest time between two uploads to a remote bucket, in seconds. Local files are written at once."""
MAX_STEP: Final = 2**53

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_reporters: dict[str, _Reporter] = {}


def report(values: float | Mapping[str, float], *, step: int | None = None) -> None:
    """Reports a measurement of a trial: the value of its metric, or several metrics by name.

    For example::

        lockstep.report(accuracy)
        lockstep.report({"accuracy": accuracy, "loss": loss}, step=epoch)

    The search compares the last value of its metric, ``hyperparameterMetricTag``. A value without a name is one of this
    metric. Every measurement is also a point of a curve in the console and in TensorBoard, in the run ``report``.

    In a job that is no trial, the function writes the same curves, and a value without a name gets the contract's
    default, ``training/hptuning/metric``. Outside of a job it does nothing. In a job of several processes, only the
    chief writes. Scripts with the callback `lockstep.training.TensorBoard` need no reports: a search reads its files.

    Args:
        values: a number, or numbers by name. Arrays of one number count as numbers. A value may be NaN or infinite: the
            search ignores it.
        step: the step, such as the epoch, from 0; by default, the one after the last reported step.

    Raises:
        InvalidInputError: a value is not a number, a name is empty, or the step is not a whole number from 0.
        StorageWriteError: the files cannot be written.
    """
    topology = Topology.from_env()
    folder = os.environ.get(TENSORBOARD_DIR)
    trial = TrialEnvironment.from_env(os.environ)
    scalars = _scalars(values, metric=DEFAULT_METRIC if trial is None else trial.metric)
    number = _step(step)
    if not folder:
        logger.debug("not in a job, so nothing is reported: %s", scalars)
        return
    if not topology.is_chief:
        return
    with _lock:
        if folder not in _reporters:
            _reporters[folder] = _Reporter(folder)
        _reporters[folder].add(scalars, step=number)


def _scalars(values: object, *, metric: str) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {metric: _number(values, name="the value")}
    named = cast("Mapping[object, object]", values)
    wrong = [name for name in named if not isinstance(name, str) or not name]
    if wrong or not named:
        raise InvalidInputError(
            "the names of metrics", received=list(named), allowed="one text or more, none of them empty"
        )
    return {str(name): _number(value, name=str(name)) for name, value in named.items()}


def _number(value: object, *, name: str) -> float:
    is_text = isinstance(value, str | bytes)
    with contextlib.suppress(Exception):  # arrays of several numbers and deleted arrays raise different errors
        if not is_text:
            return float(cast("Any", value))
    raise InvalidInputError(f"lockstep.report: {name}", received=value, allowed="a number")


def _step(step: object) -> int | None:
    if step is None:
        return None
    if isinstance(step, numbers.Integral) and 0 <= int(step) < MAX_STEP:
        return int(step)
    raise InvalidInputError("lockstep.report: step", received=step, allowed="a whole number from 0")


@final
class _Reporter:
    """Writes the measurements of this process.

    Args:
        folder: the URL of the job's folder for TensorBoard.
    """

    def __init__(self, folder: str) -> None:
        self._url = join_url(folder, RUN)
        self._folder = local_path(self._url)
        self._name = ""
        self._step = -1
        self._data = bytearray()
        self._uploaded_s = float("-inf")

    def add(self, scalars: Mapping[str, float], *, step: int | None) -> None:
        self._step = self._step + 1 if step is None else step
        proto = _import("tensorboardX.proto.event_pb2")
        now_s = time.time()
        events = [proto.Event(wall_time=now_s, step=self._step, summary=_summary(scalars))]
        if not self._name:
            # TensorBoard knows its files by this form of names. A restarted program writes a file of its own, which
            # makes void what earlier starts reported from this step on.
            self._name = f"events.out.tfevents.{now_s:010.0f}.{socket.gethostname()}.{os.getpid()}"
            start = proto.SessionLog(status=proto.SessionLog.START)
            events = [
                proto.Event(wall_time=now_s, file_version="brain.Event:2"),
                proto.Event(wall_time=now_s, step=self._step, session_log=start),
                *events,
            ]
            if self._folder is None:
                finish_at_exit(self._upload, what=f"the last reports to {self._url}")
        data = b"".join(frame(event.SerializeToString()) for event in events)
        if self._folder is not None:
            self._append(Path(self._folder, self._name), data)
            return
        self._data += data  # objects of a bucket cannot be appended to
        if time.monotonic() - self._uploaded_s >= UPLOAD_S:
            self._upload()

    def _append(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise StorageWriteError(f"reports cannot be written to {self._url}: {error}") from error

    def _upload(self) -> None:
        open_bucket(self._url).write(self._name, bytes(self._data))
        self._uploaded_s = time.monotonic()


def _summary(scalars: Mapping[str, float]) -> Any:
    """Returns values as tensors: a simple value has 32 bits, and a search compares them."""
    summary, tensor = _import("tensorboardX.proto.summary_pb2"), _import("tensorboardX.proto.tensor_pb2")
    double = _import("tensorboardX.proto.types_pb2").DT_DOUBLE
    metadata = summary.SummaryMetadata(plugin_data=summary.SummaryMetadata.PluginData(plugin_name="scalars"))
    values = [
        summary.Summary.Value(tag=name, metadata=metadata, tensor=tensor.TensorProto(dtype=double, double_val=[value]))
        for name, value in scalars.items()
    ]
    return summary.Summary(value=values)


def _import(module: str) -> Any:
    """Imports a module of tensorboardX on use: most programs that import Lockstep report nothing."""
    return importlib.import_module(module)
