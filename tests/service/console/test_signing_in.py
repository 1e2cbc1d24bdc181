"""Who may open the console, and what a browser may do there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lockstep.jobs.security.access import Scope
from lockstep.service.console.assets_served import has_asset
from lockstep.service.console.signing_in import COOKIE
from lockstep.service.security import sign_in_links as links_module
from lockstep.service.security.sign_in_links import SignInLinks
from lockstep.service.store import SessionStore
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

PAGES = ("/jobs", "/jobs/table", "/projects/local/jobs/j", "/projects/local/jobs/j/log", "/health")
Browse = Callable[..., httpx.Client]


@pytest.fixture
def browse(service: Served) -> Iterator[Browse]:
    """Returns a browser that is signed in with a key; with None, one that is not."""
    made: list[httpx.Client] = []

    def browse(key: str | None = HOME_TOKEN) -> httpx.Client:
        client = httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60)
        made.append(client)
        if key is not None:
            answer = client.post("/signin", data={"key": key, "then": "/jobs"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs"), answer.text
        return client

    yield browse
    for client in made:
        client.close()


def csrf_token(client: httpx.Client) -> str:
    found = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', client.get("/jobs").text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", PAGES)
def test_whoever_is_not_signed_in_is_asked_for_a_key_and_then_sees_the_page(browse: Browse, path: str) -> None:
    browser = browse(None)
    asked = browser.get(path)
    assert (asked.status_code, asked.headers["location"]) == (303, f"/signin?then={quote(path, safe='')}")
    assert f'name="then" value="{path}"' in browser.get(asked.headers["location"]).text
    part = browser.get(path, headers={"hx-request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/signin")


def test_a_session_lasts_until_it_is_ended_and_its_cookie_is_no_scripts_business(browse: Browse) -> None:
    browser = browse()
    assert "Jobs" in browser.get("/jobs").text
    cookie = browse(None).post("/signin", data={"key": HOME_TOKEN}).headers["set-cookie"]
    assert re.fullmatch(rf"{COOKIE}=[\w-]{{43}}; HttpOnly; Max-Age=43200; Path=/; SameSite=lax", cookie)
    kept = browser.cookies[COOKIE]
    ended = browser.post("/signout", data={"csrf_token": csrf_token(browser)})
    assert (ended.status_code, ended.headers["location"]) == (303, "/signin")
    again = httpx.get(f"{browser.base_url}/jobs", cookies={COOKIE: kept})
    assert again.status_code == 303, "the service has forgotten it, too"


def test_the_token_of_a_session_is_in_no_file(browse: Browse, service: Served, bench: Bench) -> None:
    token = browse().cookies[COOKIE]
    for path in bench.home.path.glob("lockstep.db*"):
        assert token.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("key", "said"), [("", "no valid key"), ("lsk_0", "no valid key"), (f"{HOME_TOKEN}x", "no valid")]
)
def test_what_is_no_key_is_said_on_the_page(browse: Browse, key: str, said: str) -> None:
    answer = browse(None).post("/signin", data={"key": key, "then": "/health"})
    assert answer.status_code == 401
    assert said in answer.text
    assert 'name="then" value="/health"' in answer.text
    assert "set-cookie" not in answer.headers


def test_a_callers_key_opens_no_console(browse: Browse, service: Served) -> None:
    answer = browse(None).post("/signin", data={"key": service.key(Scope.CALLER, project="b", model="m")})
    assert answer.status_code == 403
    assert "for requests for predictions alone" in answer.text


def test_a_session_ends_with_its_key(browse: Browse, service: Served) -> None:
    key = service.key(Scope.VIEWER)
    browser = browse(key)
    assert browser.get("/jobs").status_code == 200
    service.context.keys.revoke(key[:16], principal_label="home")
    assert browser.get("/jobs").status_code == 303


def test_a_session_expires(service: Served, bench: Bench, tmp_path: Path) -> None:
    now_s = 1000.0
    sessions = SessionStore(service.context.sessions._engine, clock=lambda: now_s)
    sessions.begin("t", key_id=None, lasts_s=60)
    now_s = 1059.0
    assert sessions.find("t") is not None
    now_s = 1060.0
    assert sessions.find("t") is None
    sessions.begin("u", key_id=None, lasts_s=60)
    now_s = 0.0
    assert sessions.find("t") is None, "it is deleted"


@pytest.mark.parametrize("then", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\r\nx: y"])
def test_nobody_is_sent_to_another_site(browse: Browse, then: str) -> None:
    answer = browse(None).post("/signin", data={"key": HOME_TOKEN, "then": then})
    assert answer.headers["location"] == "/"
    assert "evil" not in browse(None).get("/signin", params={"then": then}).text


def test_a_link_opens_the_console_once(browse: Browse, service: Served) -> None:
    key = service.key(Scope.VIEWER, label="ann")
    made = service.client(key).post("/v1/console:link", json={}).json()
    assert made["lastsSeconds"] == 300
    browser = browse(None)
    entered = browser.get(f"{made['path']}&then=/health")
    assert (entered.status_code, entered.headers["location"]) == (303, "/health")
    assert "ann (viewer)" in browser.get("/jobs").text
    again = browse(None).get(made["path"])
    assert again.status_code == 401
    assert "this link was opened before, or is too old; make another one with `lockstep open`" in again.text.replace(
        "&#39;", "'"
    )


def test_a_link_is_valid_for_five_minutes_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    links = SignInLinks(timer=lambda: now_s)
    old, new = links.make(None), links.make("lsk_1")
    now_s = 299.0
    assert links.use(new) == (True, "lsk_1")
    now_s = 300.0
    assert links.use(old) == (False, None)
    monkeypatch.setattr(links_module, "MAX_LINKS", 2)
    codes = [links.make(None) for _ in range(3)]
    assert [links.use(code)[0] for code in codes] == [False, True, True]


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"origin": "https://evil.example"}, "right"),
        ({"origin": ""}, "right"),
        ({"sec-fetch-site": "cross-site"}, "right"),
        ({}, "wrong"),
        ({}, ""),
    ],
)
def test_a_request_of_another_site_changes_nothing(
    browse: Browse, bench: Bench, headers: dict[str, str], token: str
) -> None:
    bench.create("j", "pass")
    browser = browse()
    given = {"csrf_token": csrf_token(browser) if token == "right" else token}
    answer = browser.post("/projects/local/jobs/j/cancel", data=given, headers=headers)
    assert answer.status_code == 403
    assert bench.job("j").state == "QUEUED"
    assert browser.post("/signout", data=given, headers=headers).status_code == 403
    assert browser.get("/jobs").status_code == 200


def test_every_response_says_what_a_browser_may_do(browse: Browse) -> None:
    browser = browse()
    for path in (*PAGES, "/signin", "/nowhere", "/assets/x/nothing.js"):
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"<script(?! src=)|\son\w+=|\sstyle=|https?://(?!127)", answer.text), path


def test_files_of_pages_may_be_kept_for_ever(browse: Browse) -> None:
    browser = browse(None)
    found = re.findall(r'(?:src|href)="(/assets/[^"]+)"', browser.get("/signin").text)
    names = {path.rpartition("/")[2] for path in found}
    others = {"htmx.js", "hx-sse.js"}
    assert names - others == {"style.css", "console.js", "icon.svg"}
    assert names & others == {name for name in others if has_asset(name)}
    for path in found:
        answer = browser.get(path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.skipif(not has_asset("htmx.js"), reason="npm could not be reached when Lockstep was installed")
def test_the_script_of_others_is_the_version_that_was_tested(browse: Browse) -> None:
    found = re.search(r'src="(/assets/[^"]+/htmx\.js)"', browse(None).get("/signin").text)
    assert found is not None
    assert "4.0.1" in browse(None).get(found[1]).text


def test_the_rest_interface_takes_no_cookie(browse: Browse) -> None:
    assert browse().get("/v1/whoami").status_code == 401


def test_a_form_that_is_too_large_is_refused(browse: Browse) -> None:
    answer = browse(None).post("/signin", data={"key": "x" * 2**21})
    assert answer.status_code == 413
