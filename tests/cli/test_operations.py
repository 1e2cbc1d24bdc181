"""How commands wait for operations: for as long as these take, on a clock of the test."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockstep.cli import operations
from lockstep.cli.operations import timeout_of, wait_for_operation
from lockstep.client import Client
from lockstep.client.following import AWAY_S
from lockstep.errors import InvalidInputError, UnavailableError

HOUR_S = 3600.0
OPERATION = {"name": "projects/local/operations/o", "metadata": {}}


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeClient:
    """A service with one version and one operation, which is done at a given time, and that is away for a while."""

    def __init__(self, clock: Clock, *, done_s: float, away: tuple[float, float] = (0.0, 0.0)) -> None:
        self.clock = clock
        self.done_s = done_s
        self.away = away
        self.num_requests = 0
        self.is_lost = False

    def find_again(self) -> None:
        self.is_lost = False

    def version(self, _: str, *, name: str) -> dict[str, Any]:
        self._respond()
        waits = "a machine" if self.clock.now_s < HOUR_S / 2 else f"{name} to load"
        return {"state": "CREATING", "lockstep": {"waitingFor": waits}}

    def operation(self, name: str) -> dict[str, Any]:
        self._respond()
        return {"name": name, "metadata": {}, **({"done": True} if self.clock.now_s >= self.done_s else {})}

    def _respond(self) -> None:
        self.num_requests += 1
        if self.away[0] <= self.clock.now_s < self.away[1]:
            self.is_lost = True
        if self.is_lost:  # another service has another port: its address has to be found again
            raise UnavailableError("the service does not respond")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(operations, "time", made)
    return made


def wait(client: FakeClient, **options: Any) -> Any:
    return wait_for_operation(cast("Client", client), OPERATION, model="m", version="v1", **options)


def test_an_operation_is_waited_for_as_long_as_it_takes_and_what_it_waits_for_is_shown(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(clock, done_s=HOUR_S)
    assert wait(client)["done"]
    assert clock.now_s >= HOUR_S
    assert client.num_requests < 3 * HOUR_S, "a long wait sends no more than two requests in a second"
    assert capsys.readouterr().err == "-- m/v1 is CREATING: a machine\n-- m/v1 is CREATING: v1 to load\n"


def test_a_timeout_of_the_users_ends_the_wait_and_says_why_and_what_to_do(clock: Clock) -> None:
    said = (
        "the operation was not done within 600 s: m/v1 is CREATING: a machine; it continues, see `lockstep models "
        "describe m/v1`; then do this"
    )
    with pytest.raises(UnavailableError) as caught:
        wait(FakeClient(clock, done_s=HOUR_S), timeout_s=600.0, afterwards="then do this")
    assert str(caught.value) == said
    assert 600.0 <= clock.now_s < 602.0


def test_a_service_that_is_restarted_meanwhile_is_found_again(clock: Clock) -> None:
    client = FakeClient(clock, done_s=HOUR_S, away=(700.0, 700.0 + AWAY_S / 2))
    assert wait(client)["done"]


def test_a_service_that_stays_away_is_an_error(clock: Clock) -> None:
    with pytest.raises(UnavailableError, match="does not respond"):
        wait(FakeClient(clock, done_s=2 * HOUR_S, away=(700.0, HOUR_S)))
    assert 700.0 + AWAY_S < clock.now_s < 710.0 + AWAY_S


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0)])
def test_a_timeout_is_read(text: str | None, seconds: float | None) -> None:
    assert timeout_of(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1.5h", "-1s", "2026-01-31", "1w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--timeout; received .*; allowed: a duration such as 30s, 10m, 2h"):
        timeout_of(text)
