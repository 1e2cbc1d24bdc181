"""Streams of what a log grows by: each entry once, one look for all who read, and an end of each stream."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.service.console.signed_in import following, signed_in, submit
from tests.service.recorded_jobs import record_job, write_log

import lockstep.service.__main__ as service_module
from lockstep.errors import AuthenticationError, NotFoundError, StorageError
from lockstep.jobs.running.states import JobState
from lockstep.service.console import event_streams
from lockstep.service.console.event_streams import EventStreams, Growth
from lockstep.service.store import JobRecord
from lockstep.storage.local import LocalBucket
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

JOB = "/projects/local/jobs/j"


class Log:
    """A log of numbers, which counts how often it is looked at. A position is how many a reader has."""

    def __init__(self) -> None:
        self.num_entries = 0
        self.num_looks = 0
        self.is_over = False
        self.errors: list[Exception] = []

    async def look(self, position: str) -> Growth:
        self.num_looks += 1
        if self.errors:
            raise self.errors.pop(0)
        end = self.num_entries
        new = " ".join(map(str, range(int(position), end)))
        return Growth(content=new, position=str(end), is_over=self.is_over)


class Streams:
    """Streams of a log."""

    def __init__(self) -> None:
        self.log = Log()
        self.is_ending = False
        self.is_signed_in = True
        self.streams = EventStreams(is_ending=lambda: self.is_ending)

    async def admit(self) -> None:
        if not self.is_signed_in:
            raise AuthenticationError("you are not signed in")

    def open(self, *, position: int = 0, session: str = "session") -> AsyncIterator[str]:
        response = self.streams.respond("key", self.log.look, position=str(position), session=session, admit=self.admit)
        return response.body_iterator  # type: ignore[return-value]


def data(event: Any) -> str:
    return "\n".join(re.findall(r"^data: (.*)$", event.decode(), re.MULTILINE))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "LOOK_S", 0.01)
    monkeypatch.setattr(event_streams, "RETRY_S", 0.01)


def test_many_readers_cause_one_look_and_each_receives_each_entry_once() -> None:
    async def run() -> None:
        served = Streams()
        received: list[list[str]] = [[] for _ in range(50)]

        async def read(number: int) -> None:
            async for event in served.open(session=str(number)):
                received[number] += data(event).split()

        readers = [asyncio.ensure_future(read(number)) for number in range(50)]
        for end in range(10, 110, 10):
            served.log.num_entries = end
            async with asyncio.timeout(10):
                while not all(len(entries) == end for entries in received):
                    await asyncio.sleep(0.005)
        num_looks = served.log.num_looks
        served.log.is_over = True
        await asyncio.wait_for(asyncio.gather(*readers), 10)
        assert all(entries == [str(number) for number in range(100)] for entries in received)
        assert len(served.streams) == 0
        assert num_looks < 10 * 50, "each reader would look for itself"

    asyncio.run(run())


def test_a_log_is_not_looked_at_when_all_readers_have_left() -> None:
    async def run() -> None:
        served = Streams()
        readers = [asyncio.ensure_future(anext(aiter(served.open(session=str(number))))) for number in range(2)]
        await asyncio.sleep(0.05)
        assert (len(served.streams), served.log.num_looks > 1) == (2, True)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        num_looks = served.log.num_looks
        await asyncio.sleep(0.05)
        assert (len(served.streams), served.log.num_looks) == (0, num_looks)

    asyncio.run(run())


def test_a_log_that_cannot_be_read_is_told_once_and_read_again() -> None:
    async def run() -> None:
        served = Streams()
        served.log.errors = [StorageError("no answer")] * 3
        served.log.num_entries = 2
        events = served.open()
        assert "no answer" in data(await anext(events))
        found = data(await anext(events))
        assert found.startswith("0 1<span")
        assert ">…</span>" in found, "the note is taken back"
        served.log.errors = [NotFoundError("there is no such job")]
        end = await anext(events)
        assert "there is no such job" in data(end)
        assert b"event: over" in end
        assert [event async for event in events] == []

    asyncio.run(run())


def test_a_stream_ends_with_its_session_and_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "ADMIT_S", 0.0)
    monkeypatch.setattr(event_streams, "PING_S", 0.02)

    async def run() -> None:
        served = Streams()
        first, second = served.open(), served.open()
        assert [await anext(first), await anext(second)] == [b": ping\n\n"] * 2
        served.is_signed_in = False
        assert [event async for event in first] == []
        served.is_signed_in, served.is_ending = True, True
        assert b"data" not in b"".join([event async for event in second])  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(run(), 10))


def test_of_many_streams_of_a_browser_the_last_ones_end_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "SHORT_S", 0.02)

    async def run() -> None:
        served = Streams()
        served.log.num_entries = 1
        long = [served.open(position=1) for _ in range(event_streams.MAX_STREAMS_OF_SESSION)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in long]  # type: ignore[arg-type]
        await asyncio.sleep(0.03)
        short = [event async for event in served.open()]
        assert [data(event) for event in short] == ["0"]
        assert [event async for event in served.open(position=1)] == [b": ping\n\n"]
        assert not any(task.done() for task in waiting)
        assert [data(event) async for event in _first(served.open(session="another"))] == ["0"]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    asyncio.run(asyncio.wait_for(run(), 10))


async def _first(events: AsyncIterator[str]) -> AsyncIterator[str]:
    yield await anext(events)
    await events.aclose()  # type: ignore[attr-defined]


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with signed_in(service) as made:
        yield made


def running_job(bench: Bench) -> JobRecord:
    job = record_job(bench, "j")
    bench.store.update(job.uid, state=JobState.RUNNING, end_time_s=None, replicas=[])
    return job


def lines(html: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+)", html)]


def test_a_page_receives_new_entries_and_goes_on_where_its_last_stream_ended(
    browser: httpx.Client, bench: Bench
) -> None:
    job = running_job(bench)
    write_log(job, 0, 9)
    page = browser.get(JOB).text
    assert ('data-follow="on"' in page, lines(page)) == (True, list(range(10)))
    with following(browser, page) as stream:
        write_log(job, 10, 11)
        first = next(stream)
    assert lines(first.html) == [10, 11]
    write_log(job, 12, 12)
    with following(browser, page, last=first.position) as stream:
        assert lines(next(stream).html) == [12]
        write_log(job, 13, 14)
        assert lines(next(stream).html) == [13, 14]
    with following(browser, page) as stream:  # a reader that lost all it had since the page
        seen = lines(next(stream).html)
        while seen[-1] < 14:
            seen += lines(next(stream).html)
    assert seen == [10, 11, 12, 13, 14]


def test_a_filter_holds_for_what_comes_and_the_position_moves_past_what_it_hides(
    browser: httpx.Client, bench: Bench
) -> None:
    job = running_job(bench)
    write_log(job, 0, 9)
    page = browser.get(JOB, params={"filter": 'textPayload:"line 20"'}).text
    with following(browser, page) as stream:
        write_log(job, 10, 19)
        hidden = next(stream)
        write_log(job, 20, 29)
        shown = next(event for event in stream if event.html)
    assert (hidden.html, lines(shown.html)) == ("", [20])
    assert hidden.position != shown.position


def test_a_bucket_that_does_not_answer_is_told_in_the_stream(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running_job(bench)
    write_log(job, 0, 9)
    page = browser.get(JOB).text
    read = LocalBucket._read

    def fail(*_args: object, **_options: object) -> bytes:
        raise StorageError("the bucket does not answer")

    monkeypatch.setattr(LocalBucket, "_read", fail)
    with following(browser, page) as stream:
        assert "the bucket does not answer" in next(stream).html
        monkeypatch.setattr(LocalBucket, "_read", read)
        write_log(job, 10, 10)
        assert lines(next(stream).html) == [10]


def test_a_stream_is_only_for_those_who_are_signed_in(
    browser: httpx.Client, service: Served, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "ADMIT_S", 0.0)
    monkeypatch.setattr(event_streams, "PING_S", 0.05)
    write_log(running_job(bench), 0, 9)
    page = browser.get(JOB).text
    with signed_in(service) as other, following(other, page) as stream:
        assert submit(other, "/signout", {}).status_code == 303
        assert list(stream) == []
        refused = other.get(f"{JOB}/log/live", headers={"hx-request": "true"})
        assert (refused.status_code, refused.headers["hx-redirect"]) == (401, "/signin")


def test_streams_end_when_the_service_does(browser: httpx.Client, service: Served, bench: Bench) -> None:
    write_log(running_job(bench), 0, 9)
    with following(browser, browser.get(JOB).text) as stream:
        service.context.ending.set()
        assert list(stream) == []


def test_a_service_that_is_told_to_end_ends_its_streams_first(
    browser: httpx.Client, service: Served, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(running_job(bench), 0, 9)
    page = browser.get(JOB).text
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests' process keeps its own
    server = service_module._server(service.context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, cookies=browser.cookies) as reader, following(reader, page) as stream:
            server.handle_exit(signal.SIGTERM, None)
            assert list(stream) == [], "a stream that is cut off raises an error"
        thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_cursor_of_nobody_ends_the_stream(browser: httpx.Client, bench: Bench) -> None:
    write_log(running_job(bench), 0, 9)
    with following(browser, f'hx-sse:connect="{JOB}/log/live?cursor=abc"') as stream:
        problem, over = stream
    assert "cursor was not issued by this service" in problem.html
    assert over.name == "over"
