"""Reads of the database that requests share."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockstep.service.prediction.shared_reads import SharedReads

WAIT_S = 20.0


class Reader:
    """A read that ends when the test says so, and returns its number."""

    def __init__(self) -> None:
        self.number = 0
        self.may_end = threading.Event()

    def __call__(self) -> int:
        self.number += 1
        number = self.number
        assert self.may_end.wait(WAIT_S)
        return number

    async def begun(self, number: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.number < number:
                await asyncio.sleep(0.001)


def test_requests_at_the_same_time_share_one_read_and_later_ones_do_not() -> None:
    async def run() -> None:
        shared, reader = SharedReads(), Reader()
        sent = [asyncio.create_task(shared.read("key", reader)) for _ in range(50)]
        await reader.begun(1)
        another = asyncio.create_task(shared.read("another key", reader))
        await reader.begun(2)
        reader.may_end.set()
        assert await asyncio.gather(*sent) == [1] * 50
        assert await another == 2
        assert await shared.read("key", reader) == 3

    asyncio.run(run())


def test_a_read_goes_on_without_the_request_that_began_it() -> None:
    async def run() -> None:
        shared, reader = SharedReads(), Reader()
        first = asyncio.create_task(shared.read("key", reader))
        await reader.begun(1)
        second = asyncio.create_task(shared.read("key", reader))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        reader.may_end.set()
        assert await second == 1

    asyncio.run(run())


def test_a_read_anew_begins_after_one_that_is_in_progress() -> None:
    async def run() -> None:
        shared, reader = SharedReads(), Reader()
        before = asyncio.create_task(shared.read("key", reader))
        await reader.begun(1)
        anew = [asyncio.create_task(shared.read_anew("key", reader)) for _ in range(5)]
        await asyncio.sleep(0)
        reader.may_end.set()
        assert await before == 1
        assert await asyncio.gather(*anew) == [2] * 5

    asyncio.run(run())


def test_an_error_is_that_of_all_who_share_it_and_the_next_read_is_new() -> None:
    async def run() -> None:
        shared, may_fail = SharedReads(), threading.Event()

        def fail() -> int:
            assert may_fail.wait(WAIT_S)
            raise ZeroDivisionError

        sent = [asyncio.create_task(shared.read("key", fail)) for _ in range(3)]
        await asyncio.sleep(0)
        may_fail.set()
        found = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(error) for error in found] == [ZeroDivisionError] * 3
        assert await shared.read("key", lambda: 5) == 5

    asyncio.run(run())
