"""A service in this process whose controller runs by itself, and the environment that names it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.home import Home
from lockstep.service.settings import Settings
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import HOME_TOKEN, Served

STEP_S = 0.05


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    home = Home(path=tmp_path / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket))) as made:
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(STEP_S):
                made.step()

        stepping = threading.Thread(target=run)
        stepping.start()
        yield made
        ended.set()
        stepping.join(60)
        assert not stepping.is_alive()


@pytest.fixture
def service(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    made = Served(bench)
    monkeypatch.setenv("LOCKSTEP_URL", made.url)
    monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
    monkeypatch.setenv("LOCKSTEP_HOME", str(bench.home.path))
    monkeypatch.delenv("LOCKSTEP_PROJECT", raising=False)
    yield made
    made.close()
