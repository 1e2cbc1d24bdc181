"""Lists of jobs from a home that holds 10,000, over HTTP by the service's own client.

The jobs are a `workloads.history`; all are over. The lists are asked for in turn, so that a busy moment hits all of
them: first while nothing else is to be done (the controller passes, and finds nothing), then while jobs run one after
the other and others wait behind them, each of which says on its page what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from harness import columns
from harness.results import Result, timing_results
from harness.tables import console

from lockstep.client import Client
from workloads.history import write_history
from workloads.surroundings import Surroundings, running_service, wait

PROGRAM: Final = "import time\ntime.sleep(2)\n"
PAGE_SIZE: Final = 100


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        num_jobs: jobs that are over.
        num_requests: how often each list is asked for.
        num_waiting: jobs that are submitted before the second part.
    """

    num_jobs: int
    num_requests: int
    num_waiting: int


WHOLE: Final = Sizes(num_jobs=10_000, num_requests=500, num_waiting=250)
SMALL: Final = Sizes(num_jobs=200, num_requests=3, num_waiting=4)

FILTERS: Final = (
    "state:RUNNING",
    "state:FAILED",
    "labels.owner=user_07",
    "labels.run=run_77",
    "labels.owner=user_07 AND state:FAILED",
    "jobId:rnn* AND state:FAILED",
    "jobId=resnet_00000",
    "createTime<2000-01-01",
    "trainingInput.args:no-such-flag",
)


def requests_of(client: Client, *, num_jobs: int) -> Mapping[str, Callable[[], Any]]:
    """Returns what is asked for, by its name."""
    token = ""
    for _ in range(num_jobs // 2 // PAGE_SIZE):
        token = client.job_page(size=PAGE_SIZE, token=token)["nextPageToken"]
    return {
        "the first page, of the default size (20)": client.job_page,
        "the first page, of 100": lambda: client.job_page(size=PAGE_SIZE),
        f"a page of 100 after {num_jobs // 2:,} others": lambda: client.job_page(size=PAGE_SIZE, token=token),
        "as `lockstep jobs` asks": lambda: client.jobs(filter_text="", limit=20),
        **{
            f"100 with the filter `{text}`": lambda text=text: client.job_page(filter_text=text, size=PAGE_SIZE)
            for text in FILTERS
        },
    }


def ask(service: Surroundings, sizes: Sizes, *, what: str) -> list[Result]:
    """Asks for all lists in turn, and shows what each took."""
    with service.client() as client:
        requests = requests_of(client, num_jobs=sizes.num_jobs)
        timings: dict[str, list[float]] = {name: [] for name in requests}
        for _ in range(sizes.num_requests):
            for name, request in requests.items():
                started = time.perf_counter()
                request()
                timings[name].append(time.perf_counter() - started)
    results = timing_results(f"{sizes.num_jobs:,} jobs, {what}", timings)
    columns.show_timings(results)
    return results


def measure(sizes: Sizes) -> list[Result]:
    """Measures both parts, and shows them."""
    started = time.perf_counter()
    with running_service(prepare=lambda settings: write_history(settings, num_jobs=sizes.num_jobs)) as service:
        console.print(f"a history of {sizes.num_jobs:,} jobs, and up: {time.perf_counter() - started:.1f} s")
        results = ask(service, sizes, what="nothing else to do")
        package = service.stage("sleeps", PROGRAM)
        asked = {"scaleTier": "BASIC", "pythonModule": "sleeps", "packageUris": [package]}
        with service.client() as client:
            for number in range(sizes.num_waiting):
                client.create_job({"jobId": f"waits_{number}", "trainingInput": asked})
            wait(lambda: bool(client.jobs(filter_text="state:RUNNING")))
            results += ask(service, sizes, what="jobs running and waiting")
            left = len(client.jobs(filter_text="state:QUEUED", limit=sizes.num_waiting))
            console.print(f"of {sizes.num_waiting} jobs {left} still waited at the end")
    return results
