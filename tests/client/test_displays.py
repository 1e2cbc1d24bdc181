"""What is shown of a job while somebody waits for it."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

from lockstep.client import displays
from lockstep.client.displays import LineDisplay, NotebookDisplay, TerminalDisplay, choose_display


def test_a_terminals_line_is_replaced_and_never_wider_than_the_terminal() -> None:
    stream = io.StringIO()
    display = TerminalDisplay(stream, width=12)
    display.show(None, line="j: QUEUED", state="QUEUED")
    display.show(None, line="j: RUNNING, step 10", state="RUNNING")
    display.close()
    assert stream.getvalue() == "\r\x1b[2Kj: QUEUED\r\x1b[2Kj: RUNNING…\n"
    untouched = io.StringIO()
    TerminalDisplay(untouched, width=12).close()
    assert untouched.getvalue() == ""


def test_lines_are_written_when_the_state_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    display = LineDisplay(stream)
    for line, state in (("a", "QUEUED"), ("b", "QUEUED"), ("c", "RUNNING"), ("d", "RUNNING")):
        display.show(None, line=line, state=state)
    assert stream.getvalue() == "a\nc\n"
    monkeypatch.setattr(displays, "LINE_S", -1.0)
    display.show(None, line="e", state="RUNNING")
    display.close()
    assert stream.getvalue() == "a\nc\ne\n"


def test_a_notebooks_output_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    handle = types.SimpleNamespace(update=lambda job: shown.append(("update", job)))

    def show(job: object, *, display_id: bool) -> Any:
        shown.append(("display", job, display_id))
        return handle

    display = NotebookDisplay(show)
    display.show("job", line="", state="QUEUED")
    display.show("job", line="", state="QUEUED")
    display.show("job", line="", state="RUNNING")
    assert shown == [("display", "job", True), ("update", "job")]
    monkeypatch.setattr(displays, "UPDATE_S", -1.0)
    display.show("job", line="", state="RUNNING")
    display.close()
    assert len(shown) == 3


def test_the_display_fits_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(choose_display(), LineDisplay)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert isinstance(choose_display(), TerminalDisplay)
    # IPython without a kernel is a terminal's.
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    shower = types.ModuleType("IPython.display")
    shower.display = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shower)
    assert isinstance(choose_display(), TerminalDisplay)
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    assert isinstance(choose_display(), NotebookDisplay)
