"""What `lockstep top` reads and draws, and when it ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from tests.cli.fake_client import FakeClient, job
from tests.cli.validating import validated
from typer.testing import CliRunner

from lockstep.cli.commands import make_app
from lockstep.cli.metrics import BARS
from lockstep.cli.top import command
from lockstep.cli.top.reading import NETWORK, LastLine, added, read_job, whole
from lockstep.cli.top.tables import job_table, jobs_table
from lockstep.errors import NotFoundError

REPLICAS = ("master-replica-0", "worker-replica-0")


def page(replica: str, **series: list[float]) -> dict[str, Any]:
    return {
        "intervalSeconds": 5.0,
        "series": [
            {
                "replica": replica,
                "name": name,
                "unit": "",
                "points": [[5.0 * n, value] for n, value in enumerate(values)],
            }
            for name, values in series.items()
        ],
    }


def client() -> FakeClient:
    made = FakeClient(job("train_1", replicas=REPLICAS), job("train_2"))
    made.series = [
        page(
            REPLICAS[0],
            cpuCores=[1.0, 2.0],
            memoryBytes=[2**20, 3 * 2**20],
            networkReceivedBytesPerSecond=[1024.0, 2048.0],
            networkSentBytesPerSecond=[1024.0, 1024.0],
            examplesPerSecond=[100.0, 200.0],
        ),
        page(REPLICAS[1], cpuCores=[0.5, 1.0], gpuUtilization=[0.5, 1.0], examplesPerSecond=[100.0, 190.0]),
    ]
    made.lines = ["first", "second", "third"]
    return made


def drawn(renderable: Any) -> str:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(renderable)
    return shown.get()


def test_replicas_are_read_summed_and_drawn() -> None:
    fake = client()
    view = read_job(fake, fake.found["train_1"], last_line="third", now_s=1000.0)  # type: ignore[arg-type]
    assert fake.queries[0]["since"] == "1970-01-01T00:11:40+00:00"
    assert view.curves[REPLICAS[0]].points[NETWORK] == [(0.0, 2048.0), (5.0, 3072.0)]
    total = whole(view).points
    assert total["cpuCores"] == [(0.0, 1.5), (5.0, 3.0)]
    assert total["gpuUtilization"][-1] == (5.0, 1.0)
    assert total["examplesPerSecond"][-1] == (5.0, 200.0), "each replica reports the rate of the whole job"
    assert added([[(0.0, 1.0)], [(5.0, 2.0)]]) == [(0.0, 1.0), (5.0, 2.0)]
    shown = drawn(job_table(view))
    assert "job train_1: RUNNING" in shown
    assert "step 7, loss 0.5" in shown
    assert "$0.10" in shown
    assert "last line  third" in shown
    assert f"{BARS[0]}{BARS[-1]}" in shown
    for text in ("REPLICA", "CPU", "MEMORY", "GPU", "NETWORK/S", "EXAMPLES/S", "3.0 MiB", "100%", "3.0 KiB"):
        assert text in shown
    shown = drawn(jobs_table([view]))
    assert shown.count("train_1") == 1
    assert drawn(jobs_table([])).strip() == "no job is running"


def test_a_job_that_is_over_is_shown_whole_and_one_without_replicas_has_no_series() -> None:
    fake = client()
    over = job("old", state="SUCCEEDED")
    read_job(fake, over)  # type: ignore[arg-type]
    assert "since" not in fake.queries[-1]
    before = len(fake.queries)
    waiting = job("new", state="QUEUED", replicas=())
    waiting["lockstep"] |= {"progress": None, "accrued": None, "waitingFor": "a machine"}
    view = read_job(fake, waiting)  # type: ignore[arg-type]
    assert len(fake.queries) == before
    assert (view.progress, view.cost) == ("a machine", "-")
    assert "a machine" in drawn(job_table(view))


def test_the_last_line_is_followed_and_a_long_log_is_caught_up_with_bit_by_bit() -> None:
    fake = client()
    fake.lines = [str(number) for number in range(100)]
    line = LastLine(fake, "train_1", since_s=0.0)  # type: ignore[arg-type]
    first = line.read()
    assert first == "15", "a few pages at each look"
    while (now := line.read()) != first:
        first = now
    assert first == "99"
    fake.lines.append("new")
    assert line.read() == "new"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = client()
    monkeypatch.setattr(command, "connect", lambda *_: made)
    return made


def test_without_a_terminal_it_prints_once(fake: FakeClient) -> None:
    app = make_app("top")
    done = CliRunner().invoke(app, ["top", "train_1", "--json"])
    document = validated("top", done.output)
    assert (document["jobId"], document["lastLine"]) == ("train_1", "third")
    assert document["replicas"][0]["cpuCores"] == 2.0
    done = CliRunner().invoke(app, ["top", "--json"])
    assert [each["jobId"] for each in validated("top", done.output)["jobs"]] == ["train_1", "train_2"]
    (job, *_), replicas = (
        list(csv.DictReader(io.StringIO(CliRunner().invoke(app, [*words, "--format", "csv"]).stdout, newline="")))
        for words in (["top"], ["top", "train_1"])
    )
    assert (job["jobId"], job["replica"]) == ("train_1", "")
    assert [row["replica"] for row in replicas] == [each["replica"] for each in document["replicas"]]
    assert [row["cpuCores"] for row in replicas] == [str(each.get("cpuCores", "")) for each in document["replicas"]]
    assert {row["progress"] for row in replicas} == {document["progress"]}


def watched(monkeypatch: pytest.MonkeyPatch, fake: FakeClient, at: Callable[[int], None]) -> list[str]:
    """Watches train_1 until it ends; `at` is called at each pause with its number."""
    shown: list[str] = []
    pauses = 0

    class Recorder:
        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, renderable: Any, *, refresh: bool) -> None:
            shown.append(drawn(renderable))

    def pause(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        assert pauses < 50
        at(pauses)

    monkeypatch.setattr(command, "Live", Recorder)
    monkeypatch.setattr(command.time, "sleep", pause)
    lines = LastLine(fake, "train_1", since_s=0.0)  # type: ignore[arg-type]
    command.watch(
        fake,  # type: ignore[arg-type]
        read=lambda: [command._read_one(fake, "train_1", lines)],  # type: ignore[arg-type]
        draw=lambda views: job_table(views[0]),
        interval_s=1.0,
        is_endless=False,
    )
    return shown


def test_it_draws_until_the_job_ends_and_bears_a_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch, fake: FakeClient
) -> None:
    def at(pause: int) -> None:
        if pause == 1:
            fake.num_failures = 2
        if pause == 4:
            fake.found["train_1"]["state"] = "SUCCEEDED"

    shown = watched(monkeypatch, fake, at)
    assert len(shown) == 3
    assert ["RUNNING" in each for each in shown] == [True, True, False]
    assert "SUCCEEDED" in shown[-1]


def test_ctrl_c_ends_it_without_an_error(monkeypatch: pytest.MonkeyPatch, fake: FakeClient) -> None:
    def at(pause: int) -> None:
        raise KeyboardInterrupt

    assert len(watched(monkeypatch, fake, at)) == 1


def test_a_job_that_does_not_exist_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, fake: FakeClient) -> None:
    def refuse(_name: str) -> dict[str, Any]:
        raise NotFoundError("no such job")

    monkeypatch.setattr(fake, "job", refuse)
    with pytest.raises(NotFoundError):
        watched(monkeypatch, fake, lambda _: None)
