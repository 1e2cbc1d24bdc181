"""Profiles on demand: records the steps of a running training when its runner requests it.

The runner's request is a file, which is looked at between two steps. The trace is written to a temporary folder, and a
child process uploads it to the job's TensorBoard folder while training continues.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

from typing_extensions import override

from lockstep.errors import BackendError, LockstepError
from lockstep.heartbeat import (
    HeartbeatSender,
    ProfileReport,
    ProfileRequest,
    ProfileState,
    current_sender,
    observe_progress,
)
from lockstep.strategies.observing import AbstractStepObserver, Execution, Wait
from lockstep.strategies.tracing import Trace, is_trace_running, wait_for
from lockstep.topology import Topology

UPLOAD_TIMEOUT_S: Final = 600.0
_PROFILES: Final = "plugins/profile"
"""The folder of profiles in a TensorBoard folder, as TensorBoard's profile page expects it."""


@final
class ProfileRecorder(AbstractStepObserver):
    """Records the profiles that are requested of this process.

    Args:
        sender: tells the requests, and reports about them.
        url: the URL of the job's TensorBoard folder; None if the job has none.
    """

    def __init__(self, sender: HeartbeatSender, *, url: str | None) -> None:
        self._sender = sender
        self._url = url
        self._report: ProfileReport | None = None
        self._name = ""
        self._postponed: ProfileRequest | None = None
        self._trace: Trace | None = None
        self._folder = Path()
        self._num_steps = 0
        self._first_step = self._last_step = 0

    @override
    def before_execution(self, execution: Execution) -> None:
        self.before_step(execution.num_before, settle=execution.settle)

    def before_step(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        """Looks for a request, or completes a profile that has all of its steps.

        Args:
            num_steps: the number of steps that have begun before.
            settle: waits until all of these steps are computed.
        """
        self._last_step = num_steps
        if self._trace is None:
            request = self._sender.profile_requests.take() or self._postponed
            if request is not None:
                self._begin(request, num_steps, settle=settle)
        elif num_steps - self._first_step >= self._num_steps:
            self._finish(num_steps, settle=settle)
        if self._trace is not None:
            self._trace.begin_step(num_steps)

    @override
    def waited(self, kind: Wait, *, began_s: float, ended_s: float) -> None:
        pass  # the trace has the same

    @override
    def after_epoch(self) -> None:
        if self._trace is not None:
            self._trace.end_step()

    @override
    def end(self, num_steps: int, *, settle: Callable[[], None]) -> None:
        if self._trace is not None:
            self._finish(num_steps, settle=settle)

    def end_with_process(self) -> None:
        """Completes a profile whose loop did not say that it ended."""
        if self._trace is not None:
            self._finish(self._last_step, settle=_wait_for_nothing, waits=True)

    def _begin(self, request: ProfileRequest, num_steps: int, *, settle: Callable[[], None]) -> None:
        self._postponed = None
        self._report = ProfileReport(
            request_id=request.request_id, state=ProfileState.RECORDING, num_steps=request.num_steps
        )
        self._name, self._num_steps, self._first_step = request.name, request.num_steps, num_steps
        if self._url is None:
            self._tell(state=ProfileState.FAILED, problem="the job has no TensorBoard folder")
            return
        if is_trace_running():  # that of a summary, which takes a few steps
            self._postponed = request
            return
        settle()  # the steps before are not part of it
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-profile-"))
        try:
            self._trace = Trace(self._folder)
        except BackendError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._tell(state=ProfileState.FAILED, problem=str(error))
            return
        self._tell()

    def _finish(self, num_steps: int, *, settle: Callable[[], None], waits: bool = False) -> None:
        trace, self._trace = self._trace, None
        assert trace is not None, "a trace is running"
        settle()
        try:
            trace.stop()
        except BackendError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._tell(state=ProfileState.FAILED, problem=str(error))
            return
        self._tell(state=ProfileState.UPLOADING, num_steps=max(0, num_steps - self._first_step))
        if waits:
            self._upload()
        else:  # no daemon: the end of the program waits for it
            threading.Thread(target=self._upload, name="profile", daemon=False).start()

    def _upload(self) -> None:
        assert self._url is not None, "otherwise nothing was recorded"
        target = f"{_PROFILES}/{datetime.now(tz=UTC):%Y_%m_%d_%H_%M_%S}"
        try:
            files = _name_files(self._folder / target, self._folder / _PROFILES, name=self._name)
            _upload_folder(self._folder, url=self._url)
            self._tell(state=ProfileState.DONE, folder=target, files=files)
        except (LockstepError, OSError) as error:
            self._tell(state=ProfileState.FAILED, problem=f"the profile could not be stored: {error}")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, **changes: Any) -> None:
        assert self._report is not None, "it was requested"
        self._report = replace(self._report, **changes)
        self._sender.report_profile(self._report)


def _wait_for_nothing() -> None:
    pass


def _name_files(target: Path, found: Path, *, name: str) -> tuple[str, ...]:
    """Moves the files of the only profile in a folder to another, named after a replica. Returns their names.

    Raises:
        BackendError: the profiler has left no files.
    """
    paths = sorted(path for path in found.rglob("*") if path.is_file())
    if not paths:
        raise BackendError("JAX's profiler wrote no files")
    target.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for path in paths:
        kind = next((kind for kind in (".xplane.pb", ".trace.json.gz") if path.name.endswith(kind)), path.suffix)
        path.rename(target / f"{name}{kind}")
        names.append(f"{name}{kind}")
    for folder in [path for path in found.iterdir() if path != target]:
        shutil.rmtree(folder, ignore_errors=True)
    return tuple(names)


def _upload_folder(folder: Path, *, url: str) -> None:
    """Uploads the files of a folder by a child process, so that training continues meanwhile.

    Raises:
        BackendError: the upload has failed.
        OSError: the process could not be started.
    """
    command = [sys.executable, "-P", "-m", "lockstep.storage", str(folder), url]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=UPLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"the bucket did not take it within {UPLOAD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise BackendError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")


_lock = threading.Lock()
_recorders: dict[int, ProfileRecorder] = {}


def current_recorder() -> ProfileRecorder | None:
    """Returns the recorder of this process; None if nobody can request a profile of it."""
    sender = current_sender()
    if sender is None:
        return None
    with _lock:
        if id(sender) not in _recorders:
            recorder = _recorders[id(sender)] = ProfileRecorder(sender, url=Topology.from_env().outputs.tensorboard_dir)
            atexit.register(recorder.end_with_process)
        return _recorders[id(sender)]


def _observe(step: int, metrics: Mapping[str, Any]) -> None:
    """Looks for requests in a custom loop, which reports its steps itself."""
    recorder = current_recorder()
    if recorder is not None:
        recorder.before_step(step, settle=lambda: wait_for(dict(metrics)))


observe_progress(_observe)
