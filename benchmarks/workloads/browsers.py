"""Open pages of the console, as browsers have them: ``python -m workloads.browsers URL COOKIE SECONDS PATH...``.

Each path is a page that is open. It is read once, and then its live parts are asked for again as htmx does: at the
intervals that they say, with the etag of what the page has, and where a part is replaced, as the new one says. A
process of its own, so that the browsers are not what is measured. Prints what was seen as JSON.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import httpx

from workloads.probes import module_command, module_environment

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
        num_bytes: the bytes of their contents.
        delays_s: the time from when a line was printed to when a page had it, of each line and page.
    """

    statuses: Counter[str] = field(default_factory=Counter)
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


async def poll(client: httpx.AsyncClient, path: str, every_s: float, seen: Seen, *, until_s: float) -> None:
    """Asks for one live part again and again."""
    etag, is_first = "", True
    while True:
        await asyncio.sleep(every_s)
        if time.monotonic() > until_s:
            return
        headers = {"hx-request": "true", **({"if-none-match": etag} if etag else {})}
        answer = await client.get(path, headers=headers)
        now_s = time.time()
        seen.statuses[str(answer.status_code)] += 1
        seen.num_bytes += len(answer.content)
        if answer.status_code != 200:
            continue
        etag = answer.headers.get("etag", "")
        if not is_first:  # the first look finds what was printed while the other pages were opened
            seen.delays_s.extend(now_s - float(printed) for printed in PRINTED.findall(answer.text))
        is_first = False
        following = [part for part in live_parts(answer.text) if part.partition("?")[0] == path.partition("?")[0]]
        if not following:
            return  # it does not change any more
        if following[0] != path:
            path, etag = following[0], ""


async def run(url: str, cookie: str, seconds: float, paths: Sequence[str]) -> Seen:
    """Has all pages open for a time, which begins when they are read and a line of standard input has come."""
    seen = Seen()
    limits = httpx.Limits(max_connections=2 * len(paths), max_keepalive_connections=2 * len(paths))
    async with httpx.AsyncClient(
        base_url=url, cookies={"lockstep_session": cookie}, limits=limits, timeout=30, trust_env=False
    ) as client:
        pages = [(await client.get(path)).raise_for_status().text for path in paths]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        until_s = time.monotonic() + seconds
        parts = [part for page in pages for part in live_parts(page).items()]
        await asyncio.gather(*(poll(client, part, every_s, seen, until_s=until_s) for part, every_s in parts))
    return seen


@contextmanager
def open_pages(url: str, cookie: str, paths: Sequence[str], *, seconds: float) -> Iterator[Callable[[], Any]]:
    """Opens pages in a process of their own; yields what has them look for a time, and returns what they saw."""
    command = module_command("browsers", url, cookie, str(seconds), *paths)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=module_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def look() -> Any:
            said, _ = process.communicate("look\n", timeout=seconds + 120)
            return json.loads(said)

        yield look


def main() -> None:
    url, cookie, seconds, *paths = sys.argv[1:]
    seen = asyncio.run(run(url, cookie, float(seconds), paths))
    json.dump({"statuses": seen.statuses, "num_bytes": seen.num_bytes, "delays_s": seen.delays_s}, sys.stdout)


if __name__ == "__main__":
    main()
