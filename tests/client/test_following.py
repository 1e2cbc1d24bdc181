"""A request is sent again while the service restarts, and a client that others use finds it again."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from lockstep.client import Client, ServiceAddress, following
from lockstep.errors import NotFoundError, StorageError, UnavailableError
from lockstep.testing.ports import free_port


class FakeClient:
    """Raises what it is told, in order, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_lookups = 0

    def find_again(self) -> None:
        self.num_lookups += 1

    def job(self, name: str) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        return {"jobId": name}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.0)


def test_what_passes_is_waited_for() -> None:
    client = FakeClient(UnavailableError("the service"), StorageError("the bucket"))
    assert following.ask(cast("Client", client), lambda found: found.job("j")) == {"jobId": "j"}
    assert client.num_lookups == 3


@pytest.mark.parametrize(("error", "away_s"), [(UnavailableError("x"), -1.0), (NotFoundError("x"), 60.0)])
def test_what_stays_and_what_is_certain_is_raised(error: Exception, away_s: float) -> None:
    with pytest.raises(type(error)):
        following.ask(cast("Client", FakeClient(error)), lambda found: found.job("j"), away_s=away_s)


def test_a_client_is_found_again_while_other_threads_use_it() -> None:
    addresses = [ServiceAddress(url=f"http://127.0.0.1:{free_port()}", token=f"t{number}") for number in range(3)]
    current = addresses[0]
    client = Client(current, locate=lambda: current)
    unexpected: list[BaseException] = []
    ended = threading.Event()

    def use() -> None:
        while not ended.is_set():
            try:
                client.check_health()
            except UnavailableError:
                continue  # nobody listens there
            except BaseException as error:
                unexpected.append(error)
                return

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        current = addresses[number % 3]
        client.find_again()
        assert client.url == current.url
    ended.set()
    for thread in threads:
        thread.join(30)
    assert unexpected == [], "a connection that another thread uses is not closed under it"
    client.close()
