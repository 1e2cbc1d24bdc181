"""A browser without scripts that is signed in to the console, and what the tests do with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from lockstep.testing.served import HOME_TOKEN, Served


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
