"""A job that prints very much: nothing lost, nothing twice, whoever dies in between."""

from __future__ import annotations

import time

import pytest

from lockstep.jobs.running.states import TERMINAL
from lockstep.service.telemetry.logs import Cursor, read_log
from lockstep.testing.bench import Bench

TIMEOUT_S = 120.0
POLL_S = 0.1
PAGE_SIZE = 5000
PAGES_OF_A_LIFE = 5


@pytest.mark.parametrize("num_lines", [60_000, 1_000_000])
@pytest.mark.heavy
def test_every_line_comes_once_though_the_service_is_killed_again_and_again(bench: Bench, num_lines: int) -> None:
    bench.create("talks", f"for i in range({num_lines}): print(i)")
    bench.step_until("talks", lambda job: job.gang_order is not None)
    numbers: list[int] = []
    num_pages = num_pages_of_a_running_job = 0
    cursor, complete = "", False
    deadline = time.monotonic() + TIMEOUT_S
    while not complete:
        assert time.monotonic() < deadline
        bench.controller.step()
        job = bench.job("talks")
        page = read_log(job, cursor=Cursor.decode(cursor), size=PAGE_SIZE, now_s=time.time())
        numbers += [int(entry.stored.text) for entry in page.entries]
        cursor, complete = page.cursor, page.complete
        if page.entries:
            num_pages += 1
            num_pages_of_a_running_job += job.state not in TERMINAL
            if num_pages % PAGES_OF_A_LIFE == 0:
                bench.restart()  # all that the service had in memory is gone; the reader has its cursor
        else:
            time.sleep(POLL_S)
    assert numbers == list(range(num_lines))
    assert num_pages_of_a_running_job > 0, "it was read while it ran"
    assert num_pages > 2 * PAGES_OF_A_LIFE
