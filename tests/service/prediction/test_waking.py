"""Requests to versions without a server: held, answered when one is ready, or refused with a time to try again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from lockstep.errors import OverloadedError, UnavailableError
from lockstep.service.prediction import waking as waking_module
from lockstep.service.prediction.routing import NoServerReadyError, Routes, ServerAddress
from lockstep.service.prediction.waking import RETRY_AFTER_S, HeldRequest, Waking
from lockstep.service.settings import sqlite_url
from lockstep.service.store import DemandStore, ModelStore, ScalingPolicy, VersionRecord, VersionState, open_database
from lockstep.service.store.prediction.demands import MAX_AGE_S
from lockstep.service.store.tables import DEMANDS
from lockstep.testing.bench import Bench

POLICY = ScalingPolicy(min_servers=0, max_servers=2, wake_timeout_s=20.0)
ADDRESS = ServerAddress(uid="u", version_uid="v", url="http://127.0.0.1:1", token="t")


class Site:
    """A version without a server, and the holding of its requests. A test says when a server is ready."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        database = open_database(sqlite_url(bench.home))
        self.demands, self.other = DemandStore(database), DemandStore(database)
        models = ModelStore(database)
        models.create_model(project="p", name="m", description="", labels={})
        models.create_version(
            project="p",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri="/m",
            machine_type="n1-standard-4",
            scaling=POLICY,
        )
        made = models.get_version(project="p", model="m", name="v1")
        self.version = replace(made, state=VersionState.READY, num_servers=0)
        self.answer: list[ServerAddress] | Exception = NoServerReadyError(self.version)
        self.notes: list[int] = []
        routes = Routes(models=models, jobs=bench.store, vault=bench.vault)
        monkeypatch.setattr(Routes, "find", lambda _routes, **_asked: self.find())
        monkeypatch.setattr(waking_module, "NOTE_INTERVAL_S", 0.02)
        self.waking = Waking(routes=routes, demands=self.demands)

    def find(self) -> list[ServerAddress]:
        self.notes.append(self.demands.waiting().get(self.version.uid, 0))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def send(self, *, version: VersionRecord | None = None, size_bytes: int = 1, gone: bool = False) -> Any:
        async def receive() -> dict[str, str]:
            if not gone:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        error = NoServerReadyError(version or self.version)
        async with self.waking.hold(error, size_bytes=size_bytes) as held:
            return await held.wait(receive)

    async def until(self, number: int) -> None:
        async with asyncio.timeout(20):
            while self.notes[-1:] != [number]:
                await asyncio.sleep(0.01)

    async def until_forgotten(self) -> None:
        async with asyncio.timeout(20):
            while self.demands.waiting():
                await asyncio.sleep(0.01)


@pytest.fixture
def site(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(bench, monkeypatch)


def test_requests_are_held_until_a_server_is_ready_and_count_as_demand(site: Site) -> None:
    async def run() -> None:
        sent = [asyncio.create_task(site.send()) for _ in range(3)]
        await site.until(3)
        site.other.note(site.version.uid, num_waiting=4)
        await site.until(7)
        site.other.clear(site.version.uid)
        assert not any(task.done() for task in sent)
        site.answer = [ADDRESS]
        assert await asyncio.gather(*sent) == [[ADDRESS]] * 3
        await site.until_forgotten()
        assert site.waking._num_held == 0 == site.waking._num_bytes

    asyncio.run(run())


def test_a_request_that_waits_in_vain_is_told_when_to_try_again(site: Site) -> None:
    impatient = replace(site.version, scaling=replace(POLICY, wake_timeout_s=0.1))
    with pytest.raises(
        UnavailableError, match="has no prediction server that is ready; one is being started"
    ) as caught:
        asyncio.run(site.send(version=impatient))
    assert caught.value.retry_after_s == RETRY_AFTER_S


def test_a_request_that_is_not_held_starts_a_server_nevertheless(site: Site) -> None:
    never = replace(site.version, scaling=replace(POLICY, wake_timeout_s=0.0))
    for _ in range(3):
        with pytest.raises(UnavailableError) as caught:
            asyncio.run(site.send(version=never))
        assert caught.value.retry_after_s == RETRY_AFTER_S
    assert site.demands.waiting() == {site.version.uid: 1}
    assert not site.notes, "nobody looks for a server"


@pytest.mark.parametrize("state", [VersionState.FAILED, VersionState.CREATING])
@pytest.mark.parametrize("scaling", [None, POLICY])
def test_a_version_that_is_not_ready_is_not_waited_for(
    site: Site, state: VersionState, scaling: ScalingPolicy | None
) -> None:
    with pytest.raises(NoServerReadyError):
        asyncio.run(site.send(version=replace(site.version, state=state, scaling=scaling)))
    assert not site.demands.waiting()


def test_a_caller_is_not_told_why_a_version_is_not_ready_yet(site: Site) -> None:
    creating = replace(site.version, state=VersionState.CREATING, error_message="gs://private does not answer")
    assert str(NoServerReadyError(creating)).endswith("none of its servers is ready; try again soon")
    failed = replace(creating, state=VersionState.FAILED)
    assert str(NoServerReadyError(failed)).endswith("; gs://private does not answer")


def test_the_server_of_a_version_that_does_not_scale_is_waited_for_and_that_is_no_demand(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = replace(site.version, scaling=None, num_servers=1)
    site.answer = NoServerReadyError(fixed)

    async def run() -> None:
        sent = asyncio.create_task(site.send(version=fixed))
        async with asyncio.timeout(20):
            while len(site.notes) < 2:
                await asyncio.sleep(0.01)
        assert not sent.done()
        site.answer = [ADDRESS]
        assert await sent == [ADDRESS]
        site.answer = NoServerReadyError(fixed)
        monkeypatch.setattr(waking_module, "REPLACING_S", 0.1)
        with pytest.raises(UnavailableError, match="one is being started"):
            await site.send(version=fixed)

    asyncio.run(run())
    assert set(site.notes) == {0}


def test_servers_that_could_not_be_reached_are_looked_for_again_until_the_time_is_over(site: Site) -> None:
    site.answer = [ADDRESS]

    found: list[list[ServerAddress]] = []

    async def receive() -> None:
        await asyncio.Event().wait()

    async def look_again(held: HeldRequest) -> None:
        while True:
            found.append(await held.wait(receive))
            await held.pause()

    async def run() -> None:
        error = NoServerReadyError(replace(site.version, scaling=replace(POLICY, wake_timeout_s=0.3)))
        async with site.waking.hold(error, size_bytes=1) as held:
            with pytest.raises(UnavailableError, match="one is being started"):
                await look_again(held)

    asyncio.run(run())
    assert len(found) > 2
    assert len(site.notes) - len(found) in (0, 1), "it looked each time; the time may be over after the last look"
    assert site.waking._num_held == 0 == site.waking._num_bytes
    assert not any(site.waking.held().values())


def test_held_requests_end_when_their_version_fails(site: Site) -> None:
    async def run() -> None:
        sent = [asyncio.create_task(site.send()) for _ in range(2)]
        await site.until(2)
        site.answer = NoServerReadyError(replace(site.version, state=VersionState.FAILED, error_message="the reason"))
        for task in sent:
            with pytest.raises(UnavailableError, match="the reason"):
                await task
        await site.until_forgotten()

    asyncio.run(run())


def test_a_client_that_has_gone_is_no_demand(site: Site) -> None:
    async def run() -> None:
        with pytest.raises(UnavailableError, match="the client has gone"):
            await site.send(gone=True)
        await site.until_forgotten()
        assert site.waking._num_held == 0

    asyncio.run(run())


def test_held_requests_are_bounded_in_number_and_bytes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking_module, "MAX_HELD_REQUESTS", 2)
    monkeypatch.setattr(waking_module, "MAX_HELD_BYTES", 100)

    async def run() -> None:
        sent = [asyncio.create_task(site.send(size_bytes=200))]  # a single one is never rejected
        await site.until(1)
        with pytest.raises(OverloadedError, match="200 bytes of others") as caught:
            await site.send()
        assert caught.value.retry_after_s == RETRY_AFTER_S
        site.answer = [ADDRESS]
        await asyncio.gather(*sent)
        site.answer = NoServerReadyError(site.version)
        sent = [asyncio.create_task(site.send(size_bytes=50)) for _ in range(2)]
        await site.until(2)
        with pytest.raises(OverloadedError, match="2 of them"):
            await site.send(size_bytes=0)
        site.answer = [ADDRESS]
        await asyncio.gather(*sent)

    asyncio.run(run())


def test_what_a_service_that_died_recorded_does_not_count_for_long(site: Site) -> None:
    site.demands.note(site.version.uid, num_waiting=3)
    assert site.demands.waiting() == {site.version.uid: 3}
    with site.demands._engine.begin() as connection:
        connection.execute(update(DEMANDS).values(time_s=DEMANDS.c.time_s - MAX_AGE_S))
    assert site.demands.waiting() == {}
