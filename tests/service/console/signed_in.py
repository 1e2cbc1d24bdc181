"""A browser without scripts that is signed in to the console, and what the tests do with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any, final

import httpx

from lockstep.testing.served import HOME_TOKEN, Served


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """A server-sent event.

    Attributes:
        html: what is put into the page; "" if nothing is.
        name: its name; "" if it has none.
        position: where a reader goes on after it; "" if it does not say.
    """

    html: str
    name: str
    position: str


@contextmanager
def following(browser: httpx.Client, page: str, *, last: str = "") -> Iterator[Iterator[Event]]:
    """Yields the events of the stream that a page, or a part of one, opens.

    Args:
        browser: who reads.
        page: the page's HTML.
        last: the position of the last event that a reader had; "" if it had none.
    """
    found = re.search(r'hx-sse:connect="([^"]+)"', page)
    assert found is not None, page
    headers = {"hx-request": "true", **({"last-event-id": last} if last else {})}
    with browser.stream("GET", unescape(found[1]), headers=headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, list[str]] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields.setdefault(name, []).append(value)
        elif fields:
            if {"data", "event", "id"} & fields.keys():
                texts = {name: "\n".join(fields.get(name, [])) for name in ("data", "event", "id")}
                yield Event(html=texts["data"], name=texts["event"], position=texts["id"])
            fields = {}


@contextmanager
def signed_in(service: Served, key: str = HOME_TOKEN) -> Iterator[httpx.Client]:
    """Yields the browser of somebody with a key."""
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as made:
        assert made.post("/signin", data={"key": key}).status_code == 303
        yield made


def submit(
    browser: httpx.Client,
    path: str,
    fields: Mapping[str, str],
    *,
    files: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Sends a form, with the token of the session."""
    found = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', browser.get("/jobs").text)
    assert found is not None
    data = {"csrf_token": found[1], **fields}
    return browser.post(path, data=data, files=files, headers=dict(headers or {}))
