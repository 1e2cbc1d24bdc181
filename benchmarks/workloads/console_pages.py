"""The console with 10,000 jobs, a log of a million entries, and a job of 1,000 replicas; and with 50 open pages.

How long a page takes is measured over HTTP, and, where Chromium and Selenium are installed, as the first paint of a
browser. The 50 pages are those of `workloads.browsers`: half are lists of jobs, half a job that prints ten lines a
second. What the service costs without them is measured first.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, final

import httpx
from harness import columns
from harness.machine import processor_s
from harness.results import Result, figure_results, timing_results
from harness.tables import console

from lockstep.client import Client
from lockstep.service.settings import Settings
from workloads.browsers import open_pages
from workloads.history import History
from workloads.million_lines import PROGRAM as TALKS
from workloads.surroundings import Surroundings, running_service, wait, wait_for_end

PRINTS: Final = """\
import sys
import time

began = time.monotonic()
for number in range(int(sys.argv[1])):
    time.sleep(max(0.0, began + number / 10 - time.monotonic()))
    print(f"step {number}, printed at {time.time():.3f}")
"""
NUM_PAGES: Final = 50
COOKIE: Final = "lockstep_session"
PAINTED: Final = """
const done = arguments[arguments.length - 1];
new PerformanceObserver((list) => done(list.getEntries()[0].startTime)).observe({type: "paint", buffered: true});
"""


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        num_jobs: jobs that are over.
        num_replicas: the replicas of the large job; each has left ten lines.
        num_lines: the lines of the long log.
        num_requests: how often each page is asked for.
        watch_s: how long the open pages are open, in seconds.
    """

    num_jobs: int
    num_replicas: int
    num_lines: int
    num_requests: int
    watch_s: float


WHOLE: Final = Sizes(num_jobs=10_000, num_replicas=1000, num_lines=1_000_000, num_requests=50, watch_s=30.0)
SMALL: Final = Sizes(num_jobs=100, num_replicas=20, num_lines=5_000, num_requests=3, watch_s=5.0)


def prepare(settings: Settings, sizes: Sizes) -> None:
    history = History(settings)
    history.write(sizes.num_jobs)
    history.write_large("large", num_replicas=sizes.num_replicas, num_lines=10)
    history.close()


def submit(client: Client, name: str, package: str, *, lines: int) -> None:
    module = package.rpartition("/")[2].partition("-")[0]
    asked: dict[str, Any] = {"scaleTier": "BASIC", "pythonModule": module, "packageUris": [package]}
    client.create_job({"jobId": name, "trainingInput": {**asked, "args": [str(lines)]}})


def sign_in(client: Client) -> str:
    """Returns the cookie of a session."""
    with httpx.Client(trust_env=False) as browser:
        browser.get(client.console_url())
        return browser.cookies[COOKIE]


def pages_of(sizes: Sizes) -> dict[str, str]:
    """Returns the pages that are measured, by what they are."""
    job = "/projects/local/jobs"
    return {
        f"jobs: 50 of {sizes.num_jobs:,}": "/jobs",
        f"jobs: one of {sizes.num_jobs:,}, by a filter": "/jobs?filter=labels.run%3Drun_77",
        "a job": f"{job}/resnet_00000",
        f"a job with a log of {sizes.num_lines:,} entries": f"{job}/long",
        f"a job of {sizes.num_replicas:,} replicas": f"{job}/large",
        "costs": "/costs",
        "cluster": "/cluster",
        "health": "/health",
    }


def measure_pages(url: str, cookie: str, sizes: Sizes) -> list[Result]:
    """Asks for all pages in turn, and shows what each took."""
    pages = pages_of(sizes)
    timings: dict[str, list[float]] = {name: [] for name in pages}
    num_bytes = {}
    with httpx.Client(base_url=url, cookies={COOKIE: cookie}, timeout=60, trust_env=False) as browser:
        for _ in range(sizes.num_requests):
            for name, path in pages.items():
                started = time.perf_counter()
                answer = browser.get(path).raise_for_status()
                timings[name].append(time.perf_counter() - started)
                num_bytes[name] = len(answer.content)
    results = timing_results("pages", timings)
    columns.show_timings(results)
    contents = figure_results("contents", {name: ("KiB", size / 1024) for name, size in num_bytes.items()})
    columns.show_figures(contents)
    return [*results, *contents]


def measure_paints(url: str, cookie: str, sizes: Sizes) -> list[Result]:
    """Opens all pages in Chromium, and shows when each was painted first."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    with suppress(ImportError):
        from selenium import webdriver

        if chromium is None or driver is None:
            console.print("no first paints: Chromium is not installed\n")
            return []
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1400"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            browser.get(f"{url}/signin")
            browser.add_cookie({"name": COOKIE, "value": cookie})
            timings: dict[str, list[float]] = {name: [] for name in pages_of(sizes)}
            for name, path in pages_of(sizes).items():
                for _ in range(max(3, sizes.num_requests // 5)):
                    browser.get(f"{url}{path}")
                    timings[name].append(browser.execute_async_script(PAINTED) / 1000)
            results = timing_results("first paints", timings)
            columns.show_timings(results)
            return results
        finally:
            browser.quit()
    return []


def measure_open_pages(service: Surroundings, cookies: Sequence[str], package: str, sizes: Sizes) -> list[Result]:
    """Has pages open while a job runs, and shows what the service costs with and without them."""
    lines = int(100 * (5 * sizes.watch_s + 60))  # it is cancelled before, on a slow machine too
    url = service.address.url
    with service.client() as client:
        submit(client, "watched", package, lines=lines)
        wait(lambda: client.job("watched")["state"] == "RUNNING")
        results = []
        lists, jobs = ["/jobs"] * (NUM_PAGES // 2), ["/projects/local/jobs/watched"] * (NUM_PAGES // 2)
        filters = [f"/jobs?filter=labels.owner%3Duser_{number:02d}" for number in range(20)] * 3
        for what, paths in (
            ("none", []),
            (f"{len(lists)} lists, {len(jobs)} pages of a running job", lists + jobs),
            (f"{NUM_PAGES} pages of a running job", jobs * 2),
            (f"{NUM_PAGES} lists, with 20 different filters", filters[:NUM_PAGES]),
        ):
            pages = (
                open_pages(url, cookies, paths, seconds=sizes.watch_s, logs=service.folder)
                if paths
                else nobody(sizes.watch_s)
            )
            with pages as look:
                before_s, started = processor_s(service.pid), time.perf_counter()
                seen = look()
                share = (processor_s(service.pid) - before_s) / (time.perf_counter() - started)
            asked = sum(seen["statuses"].values())
            more = {"looks": asked, "unchanged": asked - seen["statuses"].get("200", 0), "events": seen["num_events"]}
            if seen["delays_s"]:
                more |= timing_results("", {"": seen["delays_s"]})[0].more
            results.append(Result(case="open pages", side=what, unit="cores of the service", values=[share], more=more))
        client.cancel_job("watched")
        wait_for_end(client, "watched")
    counts = {name: columns.more(name, 0) for name in ("looks", "unchanged", "events")}
    late = {"p50 of a line, ms": columns.more("p50", 0), "p99, ms": columns.more("p99", 0)}
    shown = {"open pages": columns.side, "cores of the service": columns.values(3), **counts, **late}
    columns.show_results(results, shown)
    return results


@contextmanager
def nobody(seconds: float) -> Iterator[Callable[[], dict[str, Any]]]:
    """Has no page open for a time."""

    def look() -> dict[str, Any]:
        time.sleep(seconds)
        return {"statuses": {}, "num_events": 0, "delays_s": []}

    yield look


def measure(sizes: Sizes) -> list[Result]:
    """Measures all of it, and shows it."""
    with running_service(prepare=lambda settings: prepare(settings, sizes)) as service, service.client() as client:
        submit(client, "long", service.stage("talks", TALKS), lines=sizes.num_lines)
        wait_for_end(client, "long", timeout_s=600)
        cookie, prints = sign_in(client), service.stage("prints", PRINTS)
        return [
            *measure_pages(service.address.url, cookie, sizes),
            *measure_paints(service.address.url, cookie, sizes),
            *measure_open_pages(service, [sign_in(client) for _ in range(NUM_PAGES)], prints, sizes),
        ]
