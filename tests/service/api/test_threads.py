"""Readers of a slow bucket keep nobody waiting but each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from lockstep.jobs.security.access import Scope
from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.telemetry.logs import read_log
from lockstep.service.threads import Pool
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

NUM_READERS = 60
"""More than there are threads of all kinds."""
WAIT_S = 30.0


@contextmanager
def slow_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Has every read of a log wait until the end; the semaphore counts those that wait."""
    waiting, answers = threading.Semaphore(0), threading.Event()

    def read_slowly(*args: object, **kwargs: object) -> object:
        waiting.release()
        assert answers.wait(WAIT_S)
        return read_log(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(logs_api, "read_log", read_slowly)
    try:
        yield waiting
    finally:
        answers.set()


def test_others_are_answered_while_many_read_a_log_whose_bucket_does_not_answer(
    service: Served, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("j", "pass")
    key = service.key(Scope.VIEWER, project="local")
    limits = httpx.Limits(max_connections=2 * NUM_READERS)
    with (
        httpx.Client(
            base_url=service.url, headers={"authorization": f"Bearer {HOME_TOKEN}"}, timeout=WAIT_S, limits=limits
        ) as client,
        ThreadPoolExecutor(NUM_READERS) as readers,
    ):
        with slow_bucket(monkeypatch) as waiting:
            asked = [readers.submit(client.get, "/v1/projects/local/jobs/j/logEntries") for _ in range(NUM_READERS)]
            for _ in range(Pool.BUCKET.value[1]):
                assert waiting.acquire(timeout=WAIT_S)
            assert not waiting.acquire(blocking=False), "no more than that read at once"
            assert client.get("/healthz").status_code == 200
            assert client.get("/v1/projects/local/jobs/j").status_code == 200
            with service.client(key) as viewer:  # whose key is looked up
                assert viewer.get("/v1/projects/local/jobs").status_code == 200
            signed_in = client.post("/signin", data={"key": key}, headers={"origin": service.url})
            assert signed_in.status_code == 303
            assert client.get("/jobs").status_code == 200
        assert {answer.result(WAIT_S).status_code for answer in asked} == {200}
