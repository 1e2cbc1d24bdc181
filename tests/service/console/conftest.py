"""Fixtures of tests in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.service.console.browsers import WAIT_S, Browser

from lockstep.service.console import app as console_app
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served


@pytest.fixture(autouse=True)
def fresh_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has live parts made anew for each request, so that tests see at once what they have changed."""
    parts = {path: (render, 0.0) for path, (render, _) in console_app.PARTS.items()}
    monkeypatch.setattr(console_app, "PARTS", parts)


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
