"""Processes of a cluster talk: arrays arrive as they were sent, by sockets and shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.parameter_server.linking import SILENCE_S, TIMEOUT_S, TOKEN, Serving, echo
from tests.waiting import wait_until

from lockstep.errors import CorruptDataError, InvalidInputError, UnavailableError
from lockstep.parameter_server.links import Link, Listener, Message, Request, client, frames, listener
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.links.segments import Segment


@pytest.mark.parametrize("segment_bytes", [0, 1 << 20, 4096], ids=["socket", "shared", "too small to share"])
def test_arrays_arrive_as_they_were_sent(serving: Serving, segment_bytes: int) -> None:
    link = serving.link(segment_bytes=segment_bytes)
    assert (serving.listener.peers[0].segment is not None) is (segment_bytes > 0)
    arrays = {
        "dense": np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32),
        "ids": np.arange(5, dtype=np.int64),
        "half": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.float64(2.5) * np.ones(()),
        "strided": np.arange(20, dtype=np.float32).reshape(4, 5)[:, ::2],
    }
    for number in range(3):
        answer = link.request(Message(kind="echo", fields={"number": number}, arrays=arrays))
        assert answer.fields == {"number": number}
        assert list(answer.arrays) == list(arrays)
        for name, array in arrays.items():
            found = answer.arrays[name]
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found, array)
            assert not found.flags.writeable
    link.close()


def echo_once(address: str, arrays: dict[str, np.ndarray[Any, Any]], *, silence_s: float) -> Message:
    """Has arrays sent there and back by a socket alone."""
    link = Link(
        address,
        peer_name="ps 0",
        token=TOKEN,
        name="worker 0",
        silence_s=silence_s,
        connect_s=TIMEOUT_S,
        segment_bytes=0,
    )
    try:
        return link.request(Message(kind="echo", arrays=arrays), timeout_s=TIMEOUT_S)
    finally:
        link.close()


def test_an_array_that_is_longer_than_a_frame_may_be_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (frames, client, listener):
        monkeypatch.setattr(module, "MAX_PART_BYTES", 1 << 16)
    serving = Serving(echo)
    sizes = (0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 1 << 16, 1 << 20)
    arrays = {f"a{size}": np.arange(size, dtype=np.float32) for size in sizes}
    answer = echo_once(serving.address, arrays, silence_s=SILENCE_S)
    assert list(answer.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(answer.arrays[name], array)
        assert not answer.arrays[name].flags.writeable
    serving.close()


class SlowNetwork:
    """Passes on what comes to its address, some bytes a second."""

    def __init__(self, address: str, *, bytes_per_s: int) -> None:
        self._to, self._bytes_per_s = address, bytes_per_s
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # else the kernel holds seconds of it
        self.address = "{}:{}".format(*self._door.getsockname())
        self._ends: list[socket.socket] = []
        self._carriers: list[threading.Thread] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._door.accept()
                host, port = self._to.split(":")
                there = socket.create_connection((host, int(port)))
                for ends in ((here, there), (there, here)):
                    self._carriers.append(threading.Thread(target=self._carry, args=ends, daemon=True))
                    self._carriers[-1].start()
                self._ends += [here, there]

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 15):
                time.sleep(len(data) / self._bytes_per_s)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._door.close()
        for carrier in self._carriers:
            carrier.join(TIMEOUT_S)
        for end in self._ends:
            end.close()


def test_an_array_that_is_long_on_its_way_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PART_BYTES", 1 << 17)
    serving = Serving(echo)
    network = SlowNetwork(serving.address, bytes_per_s=2 << 20)
    began_s = time.monotonic()
    sent = np.arange(1 << 20, dtype=np.float32)
    answer = echo_once(network.address, {"a": sent}, silence_s=SILENCE_S / 2)
    assert time.monotonic() - began_s > 3 * SILENCE_S / 2, "each way took longer than silence may"
    np.testing.assert_array_equal(answer.arrays["a"], sent)
    network.close()
    serving.close()


def test_an_answer_may_be_read_while_the_next_one_is_written(serving: Serving) -> None:
    link = serving.link(segment_bytes=1 << 20)
    messages = [Message(kind="echo", arrays={"a": np.full(9, number, np.float32)}) for number in (1, 2, 3)]
    answers = [link.request(message).arrays["a"] for message in messages[:2]]
    np.testing.assert_array_equal(answers[0], np.full(9, 1.0))
    np.testing.assert_array_equal(answers[1], np.full(9, 2.0))
    link.request(messages[2])
    np.testing.assert_array_equal(answers[0], np.full(9, 3.0), err_msg="the one after it takes its place")
    link.close()


def test_who_gave_up_waiting_for_an_answer_writes_over_nothing_that_is_still_to_be_read() -> None:
    held: list[Request] = []

    def handle(request: Request) -> Message | None:
        if request.message.kind == "hold":
            held.append(request)
            return None
        if request.message.kind == "release":
            for one in held:
                answer = Message(kind="held", arrays={"a": one.message.arrays["a"] + 0})
                assert serving.listener.reply(one, answer)
        return echo(request)

    def message(kind: str, value: int) -> Message:
        return Message(kind=kind, arrays={"a": np.full(9, value, np.float32)})

    serving = Serving(handle)
    link = serving.link(segment_bytes=1 << 20)
    link.begin(message("hold", 1))  # and nobody asks for its answer: another server has raised an error
    answers = [link.request(message("echo", value)).arrays["a"] for value in (2, 3)]
    third = link.request(message("release", 4)).arrays["a"]
    np.testing.assert_array_equal(held[0].message.arrays["a"], np.full(9, 1.0), err_msg="it may be read until then")
    np.testing.assert_array_equal(answers[1], np.full(9, 3.0), err_msg="the late answer has the place of another one")
    np.testing.assert_array_equal(third, np.full(9, 4.0))
    held.clear()
    for value in (5, 6, 7):
        np.testing.assert_array_equal(link.request(message("echo", value)).arrays["a"], np.full(9, value, np.float32))
    shared = serving.listener.peers[0].segment
    assert shared is not None
    assert np.full(9, 7, np.float32).tobytes() in bytes(shared.view), "memory is shared again"
    link.close()
    serving.close()


def test_shared_memory_is_what_is_meant_or_none() -> None:
    mine, name, proof = Segment.create(4096)
    assert Segment.open(name, size_bytes=4096, proof="00" * 32) is None, "another one of this name"
    assert Segment.open(name, size_bytes=8192, proof=proof) is None
    theirs = Segment.open(name, size_bytes=4096, proof=proof)
    assert theirs is not None
    mine.withdraw()
    assert Segment.open(name, size_bytes=4096, proof=proof) is None, "on another host there is none of the name"
    places = mine.put([memoryview(b"abc"), memoryview(b"")], start=0, end=2048)
    assert places is not None
    assert [bytes(part) for part in theirs.get(places, start=0, end=2048)] == [b"abc", b""]
    assert mine.put([memoryview(bytes(3000))], start=0, end=2048) is None
    with pytest.raises(CorruptDataError, match="places outside a shared segment"):
        theirs.get([2000, 100], start=0, end=2048)
    for bad in ("../../etc/passwd", "self/fd/1", f"{os.getpid()}/fd/3/..", ""):
        with pytest.raises(CorruptDataError, match="the name of a shared segment"):
            Segment.open(bad, size_bytes=4096, proof=proof)
    mine.close()
    theirs.close()


def test_without_memory_of_the_kind_all_goes_by_the_socket(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    link = serving.link(segment_bytes=1 << 20)
    assert serving.listener.peers[0].segment is None
    assert "this Python has no memfd_create" in caplog.text
    answer = link.request(Message(kind="echo", arrays={"a": np.arange(3.0)}))
    np.testing.assert_array_equal(answer.arrays["a"], [0, 1, 2])
    link.close()


@pytest.mark.parametrize(
    ("name", "proof", "told"),
    [
        ("../../etc/passwd", "00", "the name of a shared segment"),
        ("1/fd/0", "no number", "non-hexadecimal"),
        ("1/fd/0", "00", None),
    ],
    ids=["name", "proof", "another's"],
)
def test_who_offers_what_is_no_shared_memory_is_served_without(
    serving: Serving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    proof: str,
    told: str | None,
) -> None:
    mine, _, _ = Segment.create(1 << 20)
    monkeypatch.setattr(Segment, "create", lambda _size: (mine, name, proof))
    link = serving.link(segment_bytes=1 << 20)
    assert serving.listener.peers[0].segment is None
    assert told is None or told in caplog.text
    answer = link.request(Message(kind="echo", arrays={"a": np.arange(3.0)}))
    np.testing.assert_array_equal(answer.arrays["a"], [0, 1, 2])
    link.close()


def test_a_file_of_another_kind_is_not_taken_for_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    plain = os.open(tmp_path / "file", os.O_RDWR)
    unsealed = os.memfd_create("lockstep-ps")  # whoever made it could make it shorter, and end this process
    os.truncate(unsealed, 4096)
    for descriptor in (plain, unsealed):
        assert Segment.open(f"{os.getpid()}/fd/{descriptor}", size_bytes=4096, proof="00" * 32) is None
        os.close(descriptor)


def test_shared_memory_goes_with_the_processes_that_had_it_and_nobody_makes_it_shorter() -> None:
    script = """if True:
        import time
        from lockstep.parameter_server.links.segments import Segment
        segment, name, proof = Segment.create(4096)
        segment.view[100:103] = b"abc"
        print(name, proof, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name, proof = process.stdout.readline().split()
            theirs = Segment.open(name, size_bytes=4096, proof=proof)
            assert theirs is not None
            with pytest.raises(PermissionError):
                os.truncate(f"/proc/{name}", 64)
        finally:
            process.kill()
    assert bytes(theirs.view[100:103]) == b"abc", "who has it open keeps it"
    assert Segment.open(name, size_bytes=4096, proof=proof) is None
    theirs.close()


def test_an_error_of_the_other_sides_is_raised(serving: Serving) -> None:
    def refuse(request: Request) -> Message:
        raise InvalidInputError("no such variable", received=request.message.fields["name"])

    refusing = Serving(refuse)
    link = refusing.link()
    with pytest.raises(RemoteError, match="no such variable; received 'x'"):
        link.request(Message(kind="pull", fields={"name": "x"}))
    link.close()
    refusing.close()


def test_an_answer_may_come_after_others() -> None:
    first: list[Request] = []

    def handle(request: Request) -> Message | None:
        if request.message.kind == "wait":
            first.append(request)
            return None
        for waiting in first:
            assert serving.listener.reply(waiting, Message(kind="released"))
        return Message(kind="done")

    serving = Serving(handle)
    waits, goes = serving.link(name="w0"), serving.link(name="w1")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(waits.request(Message(kind="wait")).kind), daemon=True)
    thread.start()
    wait_until(lambda: first)
    assert goes.request(Message(kind="go")).kind == "done"
    thread.join(TIMEOUT_S)
    assert found == ["released"]
    waits.close()
    goes.close()
    serving.close()


def test_a_link_that_was_lost_stays_lost_though_somebody_listens_there_again() -> None:
    first = Serving(lambda _request: Message(kind="ok"))
    link, address = first.link(), first.address
    first.close()
    with pytest.raises(UnavailableError, match="it has gone"):
        link.request(Message(kind="pull"))
    following = Serving(lambda _request: Message(kind="ok"), address=address)
    other = following.link()
    assert other.request(Message(kind="pull")).kind == "ok"
    with pytest.raises(UnavailableError, match="it has gone"):
        link.request(Message(kind="done"), timeout_s=TIMEOUT_S)
    for one in (link, other):
        one.close()
    following.close()


def test_a_listener_that_is_not_there_yet_is_waited_for() -> None:
    with pytest.raises(UnavailableError, match=r"w cannot reach ps 0 at 127.0.0.1:1: no answer within 0.2 s"):
        Link("127.0.0.1:1", peer_name="ps 0", token=TOKEN, name="w", silence_s=SILENCE_S, connect_s=0.2)


def test_who_waits_for_a_listener_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(client, "LOG_INTERVAL_S", 0.1)
    with pytest.raises(UnavailableError):
        Link("127.0.0.1:1", peer_name="ps 0", token=TOKEN, name="worker 1", silence_s=SILENCE_S, connect_s=0.5)
    assert "worker 1 waits for ps 0 at 127.0.0.1:1, which has not answered for 0 s" in caplog.text
    assert len(caplog.records) < 5, "every so often"


PEER = """
import sys, time
from lockstep.parameter_server.links import Link, Listener, Message
side, address, silence_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
token = b"t" * 32
if side == "client":
    link = Link(address, peer_name="ps 0", token=token, name="victim", silence_s=silence_s, connect_s=30)
    print("up", flush=True)
    time.sleep(600)
listener = Listener(address, name="ps 0", token=token, silence_s=silence_s)
print(listener.address, flush=True)
while True:
    listener.step(lambda request: None)
"""


def test_a_listener_that_goes_before_it_has_answered_is_waited_for_again() -> None:
    """It had read who is there; its successor knows nothing of that."""
    listener = Listener("127.0.0.1:0", name="ps 0", token=TOKEN, silence_s=SILENCE_S)
    made: list[Link] = []
    options = {"peer_name": "ps 0", "token": TOKEN, "name": "worker 0", "silence_s": SILENCE_S, "connect_s": TIMEOUT_S}
    thread = threading.Thread(target=lambda: made.append(Link(listener.address, **options)), daemon=True)  # type: ignore[arg-type]
    thread.start()
    assert listener._authenticator.socket.poll(int(TIMEOUT_S * 1000))
    listener._authenticator.answer()
    assert listener._socket.poll(int(TIMEOUT_S * 1000)), "what it says first has come"
    listener.close()
    successor = Serving(echo, address=listener.address)
    thread.join(TIMEOUT_S)
    (link,) = made
    assert link.request(Message(kind="echo", fields={"x": 1})).fields == {"x": 1}
    link.close()
    successor.close()


@pytest.fixture
def victims() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    made: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([sys.executable, "-c", PEER, *arguments], stdout=subprocess.PIPE, text=True)
        made.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in made:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_peer_that_is_gone_is_noticed(
    serving: Serving, victims: Callable[..., tuple[subprocess.Popen[str], str]], how: signal.Signals
) -> None:
    process, said = victims("client", serving.address, str(SILENCE_S))
    assert said == "up"
    assert [peer.name for peer in serving.listener.peers] == ["victim"]
    process.send_signal(how)
    wait_until(lambda: serving.gone == ["victim"])
    assert serving.listener.peers == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_listener_that_is_gone_is_noticed(
    victims: Callable[..., tuple[subprocess.Popen[str], str]], how: signal.Signals
) -> None:
    process, address = victims("server", "127.0.0.1:0", str(SILENCE_S))
    link = Link(address, peer_name="ps 0", token=TOKEN, name="w", silence_s=SILENCE_S, connect_s=TIMEOUT_S)
    process.send_signal(how)
    with pytest.raises(UnavailableError, match=f"w cannot reach ps 0 at {address}: it has gone"):
        link.request(Message(kind="anything"))
    link.close()
