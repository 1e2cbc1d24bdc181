"""Profiles on demand, in the program: a request is noticed between two steps of fit, or of a custom loop."""

import gzip
import json
import os

import jax
import keras
import numpy as np
import pytest
from tests.training.test_backup import make_batches, make_linear

import lockstep
from lockstep.heartbeat import HEARTBEAT_VARIABLE, ProfileRequest, ProfileRequests, beats, write_request
from lockstep.runner.control import Control
from lockstep.spools import PROFILE_REQUEST
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, profiling
from lockstep.topology import TENSORBOARD_DIR


class Kept:
    """Stands where a socket does."""

    def __init__(self):
        self.reports = []

    def sendto(self, data, address):
        report = json.loads(data).get("profile")
        if report is not None and report not in self.reports:
            self.reports.append(report)


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "spool" / "heartbeat"))
    monkeypatch.setenv(TENSORBOARD_DIR, str(tmp_path / "bucket" / "tensorboard"))
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


@pytest.fixture
def reports(spool):
    sender = beats.current_sender()
    sender._socket.close()
    sender._socket = kept = Kept()
    return kept.reports


def wait_for_uploads():
    for thread in [thread for thread in profiling.threading.enumerate() if thread.name == "profile"]:
        thread.join(60)


def steps_in(folder):
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sum(event.get("name") == "train" for event in events)


class Asking(keras.callbacks.Callback):
    """Requests a profile after some steps."""

    def __init__(self, spool, request, *, after):
        super().__init__()
        self.spool, self.request, self.after = spool, request, after

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.after:
            write_request(self.spool, self.request)


@pytest.mark.parametrize("make", [OneDeviceStrategy, lambda: MirroredStrategy(jax.devices()[:2])])
def test_the_steps_after_a_request_are_recorded(spool, reports, tmp_path, make):
    request = ProfileRequest(request_id="p1", num_steps=3, name="worker-replica-0")
    model = make_linear(make())
    model.fit(make_batches(), epochs=2, verbose=0, callbacks=[Asking(spool, request, after=1)])
    wait_for_uploads()
    assert [report["state"] for report in reports] == ["recording", "uploading", "done"]
    assert reports[-1]["numSteps"] == 3
    assert reports[-1]["files"] == ["worker-replica-0.trace.json.gz", "worker-replica-0.xplane.pb"]
    folder = tmp_path / "bucket" / "tensorboard"
    assert all((folder / reports[-1]["folder"] / name).is_file() for name in reports[-1]["files"])
    assert steps_in(folder) == 3
    assert not profiling.is_trace_running()


def test_training_that_ends_leaves_the_steps_that_there_were(spool, reports):
    write_request(spool, ProfileRequest(request_id="p2", num_steps=1000))
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=1, verbose=0)
    wait_for_uploads()
    assert (reports[-1]["state"], reports[-1]["numSteps"]) == ("done", 6)


def test_a_custom_loop_is_recorded_and_a_profiler_of_its_own_is_named(spool, reports, tmp_path):
    step = jax.jit(lambda x: x @ x)
    x = np.eye(4, dtype="float32")
    write_request(spool, ProfileRequest(request_id="p3", num_steps=2))
    for number in range(5):
        lockstep.report_progress(step=number, loss=step(x).sum())
    wait_for_uploads()
    assert (reports[-1]["id"], reports[-1]["state"], reports[-1]["numSteps"]) == ("p3", "done", 2)
    write_request(spool, ProfileRequest(request_id="p4", num_steps=2))
    with jax.profiler.trace(tmp_path / "own"):
        lockstep.report_progress(step=6)
    assert (reports[-1]["id"], reports[-1]["state"]) == ("p4", "failed")
    assert "JAX's profiler could not be started" in reports[-1]["problem"]


def test_a_custom_loop_that_ends_leaves_the_steps_that_there_were(spool, reports):
    write_request(spool, ProfileRequest(request_id="p6", num_steps=1000))
    for number in range(4):
        lockstep.report_progress(step=number)
    profiling.current_recorder().end_with_process()  # as at the end of the process
    assert (reports[-1]["state"], reports[-1]["numSteps"]) == ("done", 3)


def test_a_bucket_that_takes_nothing_is_named(spool, reports, tmp_path):
    (tmp_path / "bucket").write_text("not a folder")
    write_request(spool, ProfileRequest(request_id="p5", num_steps=1))
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=1, verbose=0)
    wait_for_uploads()
    assert reports[-1]["state"] == "failed"
    assert "the profile could not be stored" in reports[-1]["problem"]


def test_only_a_whole_request_that_is_new_is_taken(tmp_path):
    path = tmp_path / PROFILE_REQUEST
    requests = ProfileRequests(path)
    assert requests.take() is None
    whole = ProfileRequest(request_id="a", num_steps=20).to_bytes()
    for part in (b"", whole[:10], whole[:-1]):  # the runner is writing it
        path.write_bytes(part)
        os.utime(path, ns=(1, 1))  # within one tick of the file system's clock
        assert requests.take() is None
    path.write_bytes(whole)
    os.utime(path, ns=(1, 1))
    assert requests.take() == ProfileRequest(request_id="a", num_steps=20)
    assert requests.take() is None
    for bad in ({"numSteps": 0}, {"numSteps": 1001}, {"name": "../up"}, {"id": ""}):
        assert ProfileRequest.from_bytes(json.dumps({**json.loads(whole), **bad}).encode()) is None


def test_a_runner_tells_requests_from_stop(tmp_path):
    request = ProfileRequest(request_id="a", num_steps=20)
    for text, is_stopped, taken in (
        (request.to_bytes() + b"\n", False, request),
        (request.to_bytes() + b"\nstop\n", True, request),
        (b"what\n", True, None),
        (b"st", False, None),
        (b"", True, None),
    ):
        path = tmp_path / "input"
        path.write_bytes(text)
        with path.open("rb") as file:
            control = Control(file.fileno())
            control.read()
        assert (control.is_stopped, control.take_profile(), control.take_profile()) == (is_stopped, taken, None)
