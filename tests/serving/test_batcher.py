"""Requests that come together run together, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest

from lockstep.errors import ModelError, OverloadedError
from lockstep.serving import batcher as batcher_module
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.batcher import NUM_TIMES, SHORT_RUN_S, Batcher
from lockstep.serving.instances import Arrays

DEADLINE_S = 20.0


class GatedModel:
    """Doubles its input; each run waits until the gate is open, and is written down."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.runs: list[list[float]] = []
        self.started = threading.Semaphore(0)
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        self.runs.append(arrays["x"][:, 0].tolist())
        self.started.release()
        assert self.gate.wait(DEADLINE_S)
        if (arrays["x"] < 0).any():
            raise ModelError("negative")
        return {"y": arrays["x"] * 2}

    async def wait_for_run(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=DEADLINE_S)


def rows(*values: float, width: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.repeat(np.array(values, float)[:, None], width, 1)}


async def turn(batcher: Batcher, *arrays: Arrays) -> list[asyncio.Task[Arrays]]:
    """Submits, and lets the event loop run until every request waits."""
    tasks = [asyncio.create_task(batcher.submit(each)) for each in arrays]
    await asyncio.sleep(0)  # one turn of the loop, no time
    return tasks


def test_requests_that_come_while_the_model_runs_share_its_next_run() -> None:
    async def check() -> None:
        model = GatedModel()
        async with Batcher(model.predict, policy=BatchPolicy(max_batch_size=4, max_latency_s=0)) as batcher:
            first = await turn(batcher, rows(0))
            await model.wait_for_run()
            others = await turn(batcher, rows(1), rows(2, 3), rows(4), rows(5))
            model.gate.set()
            answers = await asyncio.gather(*first, *others)
            assert [answer["y"][:, 0].tolist() for answer in answers] == [[0], [2], [4, 6], [8], [10]]
            assert model.runs == [[0], [1, 2, 3, 4], [5]]
            assert batcher.num_requests == 5
            sizes = {"batchesUpTo1": 2, "batchesUpTo2": 2, "batchesUpTo4": 3, "batchesUpTo64": 3}
            assert {"batches": 3, "instances": 6, **sizes}.items() <= batcher.batches.to_metrics().items()

    asyncio.run(check())


def test_a_request_waits_for_company_up_to_the_full_batch() -> None:
    async def check() -> None:
        model = GatedModel(is_open=True)
        async with Batcher(model.predict, policy=BatchPolicy(max_batch_size=2, max_latency_s=DEADLINE_S)) as batcher:
            tasks = await turn(batcher, rows(1), rows(2))
            await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S / 2)
            assert model.runs == [[1, 2]]

    asyncio.run(check())


def test_others_run_between_the_parts_of_a_request_longer_than_a_batch() -> None:
    async def check() -> None:
        model = GatedModel()
        async with Batcher(model.predict, policy=BatchPolicy(max_batch_size=2, max_latency_s=0)) as batcher:
            first = await turn(batcher, rows(0))
            await model.wait_for_run()
            others = await turn(batcher, rows(1, 2, 3, 4, 5), rows(6), rows(7))
            model.gate.set()
            answers = await asyncio.gather(*first, *others)
            assert [answer["y"][:, 0].tolist() for answer in answers] == [[0], [2, 4, 6, 8, 10], [12], [14]]
            assert model.runs == [[0], [1, 2], [6, 7], [3, 4], [5]]

    asyncio.run(check())


def test_a_part_that_fails_ends_its_request() -> None:
    async def check() -> None:
        model = GatedModel(is_open=True)
        policy = BatchPolicy(max_batch_size=2, max_latency_s=0)
        async with Batcher(model.predict, policy=policy) as batcher:
            with pytest.raises(ModelError, match="negative"):
                await asyncio.wait_for(batcher.submit(rows(1, 2, -3, 4, 5, 6)), DEADLINE_S)
            assert (await batcher.submit(rows(7)))["y"].tolist() == [[14]]
            assert model.runs == [[1, 2], [-3, 4], [7]]

    asyncio.run(check())


def test_instances_of_different_shapes_do_not_share_a_run() -> None:
    async def check() -> None:
        model = GatedModel()
        async with Batcher(model.predict, policy=BatchPolicy(max_latency_s=0)) as batcher:
            first = await turn(batcher, rows(0))
            await model.wait_for_run()
            others = await turn(batcher, rows(1), rows(2, width=3), rows(3))
            model.gate.set()
            answers = await asyncio.gather(*first, *others)
            assert [answer["y"].shape for answer in answers] == [(1, 1), (1, 1), (1, 3), (1, 1)]
            assert model.runs == [[0], [1], [2], [3]]

    asyncio.run(check())


def test_too_many_waiting_requests_are_refused_and_cancelled_ones_make_room() -> None:
    async def check() -> None:
        model = GatedModel()
        policy = BatchPolicy(max_batch_size=1, max_latency_s=0, max_waiting=2)
        async with Batcher(model.predict, policy=policy) as batcher:
            first = await turn(batcher, rows(0))
            await model.wait_for_run()
            waiting = await turn(batcher, rows(1), rows(2))
            with pytest.raises(OverloadedError, match="2 waiting"):
                await batcher.submit(rows(3))
            waiting[0].cancel()
            (late,) = await turn(batcher, rows(4))
            model.gate.set()
            answers = await asyncio.gather(*first, waiting[1], late)
            assert [answer["y"][0, 0] for answer in answers] == [0, 4, 8]
            assert model.runs == [[0], [2], [4]]

    asyncio.run(check())


def test_a_failed_run_is_its_askers_alone() -> None:
    async def check() -> None:
        model = GatedModel(is_open=True)
        async with Batcher(model.predict, policy=BatchPolicy(max_latency_s=0)) as batcher:
            with pytest.raises(ModelError, match="negative"):
                await batcher.submit(rows(-1))
            assert (await batcher.submit(rows(3)))["y"] == 6

    asyncio.run(check())


def test_leaving_cancels_who_waits() -> None:
    async def check() -> None:
        model = GatedModel()
        async with Batcher(model.predict, policy=BatchPolicy(max_batch_size=1, max_latency_s=0)) as batcher:
            tasks = await turn(batcher, rows(0), rows(1))
            await model.wait_for_run()
            model.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, dict | asyncio.CancelledError) for result in results)
        assert isinstance(results[1], asyncio.CancelledError) or model.runs == [[0], [1]]

    asyncio.run(check())


class ThreadNotingModel:
    """Doubles its input at once, or after a while, and writes down in which thread."""

    def __init__(self, *, run_s: float) -> None:
        self.run_s = run_s
        self.threads: list[int] = []

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        self.threads.append(threading.get_ident())
        time.sleep(self.run_s)
        return {"y": arrays["x"] * 2}


@pytest.mark.parametrize(("run_s", "on_loop"), [(0.0, True), (2 * SHORT_RUN_S, False)])
def test_only_runs_that_were_short_each_time_are_made_on_the_event_loop(
    run_s: float, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher_module, "SHORT_RUN_S", SHORT_RUN_S if run_s else DEADLINE_S)

    async def check() -> list[int]:
        model = ThreadNotingModel(run_s=run_s)
        async with Batcher(model.predict, policy=BatchPolicy()) as batcher:
            for number in range(NUM_TIMES + 2):
                np.testing.assert_array_equal((await batcher.submit(rows(number)))["y"], [[2 * number]])
        return model.threads

    threads = asyncio.run(check())
    own = threading.get_ident()
    assert [thread == own for thread in threads] == [False] * NUM_TIMES + [on_loop] * 2


def test_requests_are_read_between_the_short_runs_of_a_long_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "SHORT_RUN_S", DEADLINE_S)

    async def check() -> int:
        async with Batcher(ThreadNotingModel(run_s=0).predict, policy=BatchPolicy(max_batch_size=1)) as batcher:
            for number in range(NUM_TIMES):
                await batcher.submit(rows(number))
            long = asyncio.create_task(batcher.submit(rows(*range(100))))
            num_turns = 0
            while not long.done():
                await asyncio.sleep(0)  # one turn of the loop, no time
                num_turns += 1
        return num_turns

    assert asyncio.run(check()) >= 100
