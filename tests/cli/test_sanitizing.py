"""What is printed: a submitter's words are shown, and no terminal obeys them."""

from __future__ import annotations

import builtins
import io
import json
import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from typer.testing import CliRunner
from typing_extensions import get_type_hints, is_typeddict

from lockstep.cli import console, deploy, main
from lockstep.cli.app import app
from lockstep.cli.sanitizing import SanitizingConsole, sanitized
from lockstep.errors import ModelError
from lockstep.service.api import forms

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


MOMENT = "2030-01-01T00:00:00Z"
MOMENTS = {"since", "until", "time", "timestamp"}
AMOUNTS = {
    "machineSeconds",
    "machineHours",
    "serverHours",
    "unusedServerHours",
    "seconds",
    "mlUnits",
    "storedGibMonths",
    "attempt",
}


class EvilWords(dict[str, Any]):
    """A dictionary whose keys are a submitter's too; whatever else is asked for is there."""

    def __missing__(self, _: str) -> Any:
        return next(iter(self.values()))


def evil(form: Any, name: str = "") -> Any:
    """Returns an answer of the service's of which every word is a submitter's, by the form that answers are checked by.

    Args:
        form: a type of `lockstep.service.api.forms`.
        name: the key that it stands under: what a verb takes for a time or a number is one.
    """
    arguments = get_args(form)
    match get_origin(form):
        case None:
            pass
        case builtins.list:
            return [[0.0, 1.0]] if name == "points" else [evil(arguments[0], name)]
        case builtins.dict:
            # The labels of a log entry are what a verb takes one for.
            return EvilWords({EVIL: "1" if name == "labels" and arguments[1] is str else evil(arguments[1])})
        case _:  # one that may be left out or None is there
            return evil(next(each for each in arguments if each is not type(None)), name)
    if is_typeddict(form):
        return {key: evil(each, key) for key, each in get_type_hints(form, include_extras=True).items()}
    if form is str and (name in MOMENTS or name.endswith("Time")):
        return MOMENT
    if form is str and (name in AMOUNTS or name.endswith(("Usd", "Shares"))):
        return "1.00"
    if form in (str, Any):
        return EVIL
    return next(iter(form)) if issubclass(form, Enum) else form(1)


class EvilClient:
    """A service of which every word is a submitter's."""

    url = EVIL
    is_on_this_machine = True

    def __enter__(self) -> EvilClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, method: str) -> Callable[..., Any]:
        answers: dict[str, Callable[[], Any]] = {
            "find_again": lambda: None,
            "close": lambda: None,
            "whoami": lambda: {**evil(forms.WhoAmIForm), "bucket": "/bucket"},
            "keys": lambda: [evil(forms.KeyForm)],
            "secrets": lambda: [evil(forms.SecretForm)],
            "service": lambda: evil(forms.ServiceForm),
            "webhook_deliveries": lambda: [evil(forms.DeliveryForm)],
            "job_deliveries": lambda: [evil(forms.DeliveryForm)],
            "trials": lambda: [evil(forms.TrialForm)],
            "nodes": lambda: evil(forms.NodeListForm),
            "job": lambda: {**evil(forms.JobForm), "state": "SUCCEEDED"},
            "jobs": lambda: [{**evil(forms.JobForm), "state": state} for state in ("RUNNING", "FAILED")],
            "job_events": lambda: [evil(forms.EventForm)],
            "job_models": lambda: [evil(forms.JobModelForm)],
            "costs": lambda: evil(forms.CostReportForm),
            "log_page": lambda: evil(forms.LogPageForm),
            "log_entries": lambda: [evil(forms.LogEntryForm)],
            "metric_pages": lambda: [evil(forms.SeriesPageForm)],
            "preview_job": lambda: {k: v for k, v in evil(forms.PreviewForm).items() if k != "problem"},
            "predict_by": lambda: (evil(forms.PredictionsForm)["predictions"], evil(forms.VersionForm)["name"]),
        }
        return lambda *_, **__: answers[method]()


VERBS = [
    "logs j",
    "logs j --follow",
    "describe j",
    "describe j --json",
    "trials j",
    "trials j --format csv",
    "jobs",
    "status",
    "costs",
    "metrics j",
    "metrics j --json",
    "predict m --json-request instances.json",
    "submit j --package-path code --module-name train --dry-run",
    "keys list",
    "secrets list",
    "webhooks deliveries evil",
    "whoami",
    "cluster nodes",
]


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_lets_a_job_drive_the_terminal(
    verb: str, is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("lockstep.cli.") and hasattr(module, "connect"):
            monkeypatch.setattr(module, "connect", lambda *_: EvilClient())
    for shown in (console.OUTPUT, console.ERRORS):
        monkeypatch.setattr(shown, "_force_terminal", is_terminal)
    monkeypatch.chdir(tmp_path)
    Path("instances.json").write_text('{"instances": [1]}')
    Path("code").mkdir()
    Path("code", "train.py").touch()
    done = CliRunner().invoke(app, verb.split(), catch_exceptions=False, color=is_terminal)
    assert done.exit_code == 0
    assert "PWNED" in done.output
    assert not is_obeyed(done.output)
    if verb == "describe j --json":
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
