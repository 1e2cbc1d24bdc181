"""Open pages of the console, as browsers have them: ``python -m workloads.browsers ORDER``.

Each path is a page that is open, in a browser of its own: with the cookie of a session of its own. It is read once, and
then its live parts are asked for again as htmx does: at the intervals that they say, with the etag of what the page
has, and where a part is replaced, as the new one says. Its streams of events stay open. A process of its own, so that
the browsers are not what is measured. Says what was seen.
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import httpx
from harness.protocol import read_order, say
from harness.sides import SideSpec, running

STREAM: Final = re.compile(r"hx-sse:connect=\"([^\"]*)\"")
ELEMENT: Final = re.compile(r"<\w+ [^>]*hx-get=\"[^>]*>")
ATTRIBUTE: Final = re.compile(r"(hx-get|hx-trigger)=\"([^\"]*)\"")
EVERY: Final = re.compile(r"every (\d+)(ms|s)")
PRINTED: Final = re.compile(r"printed at (\d+\.\d+)")
"""What a program prints, so that a page knows how old a line is."""


@final
@dataclass(kw_only=True)
class Seen:
    """What the pages saw.

    Attributes:
        statuses: the number of answers by status.
        num_events: the number of events of their streams.
        num_bytes: the bytes of their contents.
        delays_s: the time from when a line was printed to when a page had it, of each line and page.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    num_events: int = 0
    num_bytes: int = 0
    delays_s: list[float] = field(default_factory=list)


def live_parts(page: str) -> dict[str, float]:
    """Returns the addresses of a page's live parts, and every how many seconds each is asked for."""
    found = {}
    for element in ELEMENT.findall(page):
        attributes = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(element)}
        every = EVERY.search(attributes.get("hx-trigger", ""))
        if every is not None:
            found[attributes["hx-get"]] = int(every[1]) / (1000 if every[2] == "ms" else 1)
    return found


async def poll(client: httpx.AsyncClient, path: str, every_s: float, seen: Seen, until_s: float) -> None:
    """Asks for one live part again and again."""
    etag = ""
    while True:
        await asyncio.sleep(every_s)
        if time.monotonic() > until_s:
            return
        headers = {"hx-request": "true", **({"if-none-match": etag} if etag else {})}
        answer = await client.get(path, headers=headers)
        seen.statuses[str(answer.status_code)] += 1
        seen.num_bytes += len(answer.content)
        if answer.status_code != 200:
            continue
        etag = answer.headers.get("etag", "")
        following = [part for part in live_parts(answer.text) if part.partition("?")[0] == path.partition("?")[0]]
        if not following:
            return  # it does not change any more
        if following[0] != path:
            path, etag = following[0], ""


async def follow(client: httpx.AsyncClient, path: str, seen: Seen, until_s: float) -> None:
    """Reads a stream of events."""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout_at(asyncio.get_running_loop().time() + until_s - time.monotonic()),
            client.stream("GET", path, headers={"hx-request": "true"}) as answer,
        ):
            answer.raise_for_status()
            is_first, printed = True, list[float]()
            async for line in answer.aiter_lines():
                if line:
                    now_s = time.time()
                    printed += [now_s - float(moment) for moment in PRINTED.findall(line)]
                    seen.num_bytes += len(line)
                    continue
                if not is_first:  # the first event has what was printed while the other pages were opened
                    seen.delays_s.extend(printed)
                seen.num_events += bool(printed)
                is_first, printed = is_first and not printed, []


async def run(*, url: str, cookies: Sequence[str], seconds: float, paths: Sequence[str]) -> Seen:
    """Has all pages open for a time, which begins when they are read and a line of standard input has come."""
    seen = Seen()
    async with AsyncExitStack() as stack:
        looks: list[Callable[[float], Awaitable[None]]] = []
        for path, cookie in zip(paths, cookies, strict=True):
            browser = httpx.AsyncClient(
                base_url=url,
                cookies={"lockstep_session": cookie},
                limits=httpx.Limits(keepalive_expiry=4),  # the service closes a connection that is idle for 5 s
                timeout=30,
                trust_env=False,
            )
            client = await stack.enter_async_context(browser)
            page = (await client.get(path)).raise_for_status().text
            for part, every_s in live_parts(page).items():
                looks.append(partial(poll, client, part, every_s, seen))
            for stream in STREAM.findall(page):
                looks.append(partial(follow, client, html.unescape(stream), seen))
        say({})
        await asyncio.to_thread(sys.stdin.readline)
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(look(until_s) for look in looks))
    return seen


@contextmanager
def open_pages(
    url: str, cookies: Sequence[str], paths: Sequence[str], *, seconds: float, logs: Path
) -> Iterator[Callable[[], Any]]:
    """Opens pages in a process of their own; yields what has them look for a time, and returns what they saw."""
    order = {"url": url, "cookies": list(cookies), "seconds": seconds, "paths": list(paths)}
    spec = SideSpec(title="browsers", module="workloads.browsers", order=order)
    with running(spec, log=logs / "browsers.log") as side:
        side.hear()
        yield side.answer


if __name__ == "__main__":
    say(vars(asyncio.run(run(**read_order()))))
