"""WebSockets end with their key, and lose nothing before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.errors import AuthenticationError, UnavailableError
from lockstep.service.api import sockets

TIMEOUT_S = 10.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CHECK_INTERVAL_S", 0.001)


class Key:
    """A key that is asked about."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.num_asked = 0

    async def check(self) -> None:
        self.num_asked += 1
        if self.error is not None:
            raise self.error

    async def asked_again(self) -> None:
        seen = self.num_asked
        while self.num_asked < seen + 2:
            await asyncio.sleep(0)


def _run(test: Callable[[Key, asyncio.Queue[Any], Any], Any]) -> None:
    async def run() -> None:
        key, client = Key(), asyncio.Queue[Any]()
        async with asyncio.timeout(TIMEOUT_S), sockets.while_valid(client.get, check=key.check) as receive:
            await test(key, client, receive)

    asyncio.run(run())


def test_a_revoked_key_ends_what_waits_for_the_client() -> None:
    async def test(key: Key, client: asyncio.Queue[Any], receive: Any) -> None:
        waiting = asyncio.ensure_future(receive())
        await key.asked_again()
        assert not waiting.done()
        key.error = AuthenticationError("revoked")
        gone = {"type": "websocket.disconnect", "code": 1008, "reason": ""}
        assert await waiting == gone
        client.put_nowait("too late")
        assert await receive() == gone

    _run(test)


def test_a_database_that_does_not_answer_ends_nothing() -> None:
    async def test(key: Key, client: asyncio.Queue[Any], receive: Any) -> None:
        key.error = UnavailableError("away")
        await key.asked_again()
        client.put_nowait("hello")
        assert await receive() == "hello"

    _run(test)


def test_a_message_survives_an_application_that_stops_waiting() -> None:
    async def test(_key: Key, client: asyncio.Queue[Any], receive: Any) -> None:
        impatient = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        for message in ("first", "second"):
            client.put_nowait(message)
        assert [await receive(), await receive()] == ["first", "second"]

    _run(test)


def test_nothing_is_left_running() -> None:
    left: set[asyncio.Task[Any]] = set()

    async def run() -> None:
        key = Key()
        async with sockets.while_valid(asyncio.Queue[Any]().get, check=key.check) as receive:
            waiting = asyncio.ensure_future(receive())
            await key.asked_again()
            waiting.cancel()
        seen = key.num_asked
        for _ in range(100):
            await asyncio.sleep(0)
        left.update(asyncio.all_tasks() - {asyncio.current_task()})
        assert key.num_asked <= seen + 1

    asyncio.run(run())
    assert left == set()
