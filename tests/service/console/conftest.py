"""Fixtures of tests in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.service.console.browsers import WAIT_S, Browser

from lockstep.testing.bench import Bench
from lockstep.testing.served import Served


@pytest.fixture
def browser(service: Served) -> Iterator[Browser]:
    made = Browser(service.url)
    yield made
    made.driver.quit()


@pytest.fixture
def controller(bench: Bench) -> Iterator[None]:
    """Runs the controller beside the test."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            bench.step()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join(WAIT_S)
