"""The page about health: what the checks of the machine found, escaped, with commands to copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from lockstep.doctor import Diagnosis, Finding, Remark, Severity, Surroundings
from lockstep.service.checkup import Checkup
from lockstep.testing.served import HOME_TOKEN, Served

WAIT_S = 60.0
REMEDY = "rm -r '<script>alert(1)</script>' && echo \"done\""
FOUND = Diagnosis(
    findings=(
        Finding(check="disk", severity=Severity.ERROR, what="<b>full", received="1 MiB", needed="1 GiB", remedy=REMEDY),
        Finding(check="limits", severity=Severity.WARNING, what="few files", received="1", needed="2", remedy="ulimit"),
    ),
    passed=(Remark(check="kernel", text="fine"),),
    skipped=(Remark(check="drivers", text="no GPU"),),
)


@pytest.fixture
def may_end(service: Served) -> threading.Event:
    event = threading.Event()

    def examine(_: Surroundings) -> Diagnosis:
        assert event.wait(WAIT_S)
        return FOUND

    object.__setattr__(service.context, "checkup", Checkup(examine=examine))
    return event


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=WAIT_S) as made:
        made.post("/signin", data={"key": HOME_TOKEN})
        yield made


def test_faults_of_the_machine_are_shown_with_commands_to_copy(browser: httpx.Client, may_end: threading.Event) -> None:
    waiting = browser.get("/health").text
    assert "The checks run." in waiting
    assert 'hx-get="/health/checks" hx-trigger="every 2s"' in waiting
    may_end.set()
    while "hx-trigger" in (shown := browser.get("/health/checks").text):
        pass
    assert "<strong>Error</strong> disk: &lt;b&gt;full" in shown
    assert "<strong>Warning</strong> limits: few files" in shown
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2, "as code, and for screen readers"
    assert "2 faults were found" in shown
    assert "Checks that passed: 1" in shown
    assert "style=" not in shown
    assert "onclick" not in shown
    whole = browser.get("/health").text
    assert "few files" in whole
