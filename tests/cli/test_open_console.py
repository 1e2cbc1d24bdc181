"""``lockstep open``, and the link that ``lockstep up`` prints."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.errors import NotFoundError
from lockstep.home import Home
from lockstep.service.settings import Settings
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import HOME_TOKEN, Served


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    home = Home(path=tmp_path / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as made:
        served = Served(made)
        monkeypatch.setenv("LOCKSTEP_URL", served.url)
        monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
        yield made
        served.close()


def _run(*arguments: str) -> str:
    return CliRunner().invoke(app, ["open", *arguments], catch_exceptions=False).output


def test_a_browser_is_opened_and_shows_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    bench.create("first_job", "pass")
    assert _run("first_job") == ""
    (url,) = opened
    with httpx.Client(follow_redirects=True, timeout=60) as http:
        shown = http.get(url)
    assert shown.url.path == "/projects/local/jobs/first_job"
    assert "Job first_job" in shown.text


@pytest.mark.parametrize("arguments", [("--no-browser",), ()], ids=["asked for", "no browser"])
def test_without_a_browser_the_link_is_printed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _url: False)
    printed = _run(*arguments, "--project", "vision")
    found = re.fullmatch(r"open this link within five minutes, once: (http://127\.0\.0\.1:\d+/enter\?\S+)\n", printed)
    assert found is not None, printed
    with httpx.Client(follow_redirects=True, timeout=60) as http:
        assert "Project vision has no jobs yet." in http.get(found[1]).text


def test_a_job_that_is_not_there_is_said_at_once(bench: Bench) -> None:
    with pytest.raises(NotFoundError, match="no job 'none'"):
        _run("none")
