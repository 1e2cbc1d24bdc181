"""What is printed: a submitter's words are shown, and no terminal obeys them."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from typer.testing import CliRunner

from lockstep.cli import console, deploy, describe, jobs, logs, main
from lockstep.cli.sanitizing import SanitizingConsole, sanitized
from lockstep.errors import ModelError

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b2J\x1bc\u202e\r\x08\x1b]8;;http://x\x1b\\evil\udcff"
"""Title, clear, clipboard, C1, reset, a right-to-left override, carriage return, backspace, link, lone surrogate."""
SHOWN = "�]0;PWNED��[2J�]52;c;cm0gLXJm��2J�c����]8;;http://x�\\evil�"
PLAIN = "größe 한국어 日本語\u3000 \u05e9\u05dc\u05d5\u05dd \u0645\u06cc\u200c\u062e 👩\u200d🔬 \t [bold] :smile:\nnext"


def is_obeyed(text: str) -> bool:
    text = re.sub("\x1b\\[[0-9;]*m", "", text)
    return any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\udcff" for c in text)


def test_what_a_terminal_obeys_is_replaced_and_letters_stay() -> None:
    assert sanitized(EVIL) == SHOWN
    assert sanitized(PLAIN) == PLAIN


@pytest.mark.parametrize("keeps_colours", [False, True])
def test_colours_are_left_out_or_ended(keeps_colours: bool) -> None:
    text = "a \x1b[1;31mred\x1b[38;2;1;2;3m \x1b[31"
    kept = "a \x1b[1;31mred\x1b[38;2;1;2;3m �[31\x1b[0m"
    assert sanitized(text, keeps_colours=keeps_colours) == (kept if keeps_colours else "a red �[31")


def test_no_control_character_is_let_through() -> None:
    bidi = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    controls = [chr(c) for c in (*range(32), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"]
    for character in (*controls, *bidi):
        for keeps_colours in (False, True):
            assert sanitized(f"a{character}b", keeps_colours=keeps_colours) == "a�b"


def test_all_that_a_console_renders_is_sanitized() -> None:
    file = io.StringIO()
    shown = SanitizingConsole(file=file, width=400, color_system=None)
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    shown.print(EVIL)
    shown.print(table)
    with Progress(TextColumn("{task.description}"), console=shown) as progress:
        progress.add_task(EVIL, total=1)
        progress.refresh()
    with shown.status(EVIL):
        pass
    assert not is_obeyed(file.getvalue())
    assert file.getvalue().count("PWNED") >= 5


class FakeClient:
    """A service of which every word is a submitter's."""

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, _: str) -> dict[str, Any]:
        own = {
            "submittedBy": EVIL,
            "waitingFor": EVIL,
            "progress": {"text": EVIL, "time": 0.0},
            "endReason": EVIL,
            "numRestarts": 1,
            "replicas": [],
            "bill": {"text": EVIL, "note": EVIL},
            "accrued": None,
            "nodes": None,
            "simulated": False,
            "outputs": {"model": EVIL, "checkpoints": EVIL},
            "webhooks": [],
        }
        return {"jobId": EVIL, "state": "FAILED", "errorMessage": EVIL, "labels": {EVIL: EVIL}, "lockstep": own}

    def jobs(self, **_: object) -> list[dict[str, Any]]:
        return [{**self.job(""), "createTime": "2030-01-01T00:00:00Z"}]

    def job_events(self, _: str) -> list[dict[str, Any]]:
        return [{"time": "2030-01-01T00:00:00Z", "state": "FAILED", "detail": EVIL}]

    def log_entries(self, _: str, **__: object) -> list[dict[str, Any]]:
        return [
            {
                "labels": {"attempt": "0"},
                "severity": "INFO",
                "timestamp": "2030-01-01T00:00:00Z",
                "resource": {"labels": {"task_name": "master-replica-0"}},
                "textPayload": EVIL,
            }
        ]


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("arguments", [["logs", "j"], ["describe", "j"], ["describe", "j", "--json"]])
def test_no_verb_lets_a_job_drive_the_terminal(
    arguments: list[str], is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (logs, describe, jobs):
        monkeypatch.setattr(module, "connect", lambda _project: FakeClient())
    monkeypatch.setattr(console.OUTPUT, "_force_terminal", is_terminal)
    done = CliRunner().invoke(main.app, arguments, catch_exceptions=False, color=is_terminal)
    assert done.exit_code == 0
    assert "evil" in done.stdout
    assert not is_obeyed(done.stdout)
    if "--json" in arguments:
        assert json.loads(done.stdout)["jobId"] == EVIL


def test_no_error_drives_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> None:
        raise ModelError(f"version v1 cannot be served: {EVIL}")

    monkeypatch.setattr(deploy, "connect", fail)
    monkeypatch.setattr(sys, "argv", ["lockstep", "deploy", "m", "--job", "j"])
    with pytest.raises(SystemExit):
        main.main()
    errors = capsys.readouterr().err
    assert "�]0;PWNED��[2J" in errors
    assert not is_obeyed(errors)
