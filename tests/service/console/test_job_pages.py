"""A job's page: its log from the end, its curves beside those of others, its files, and all that happened to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.recorded_jobs import MASTER, record_job, write_curve, write_log

from lockstep.errors import StorageError
from lockstep.jobs.running.orders import ProgramEnd
from lockstep.jobs.security.access import Scope
from lockstep.service.console.charts import Across, Line, chart, ticks
from lockstep.service.console.pages import job_events, job_log_search
from lockstep.service.console.pages.job_log import LogView
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.control import job_outputs
from lockstep.service.telemetry import log_history
from lockstep.storage.local import LocalBucket
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

JOB = "/projects/local/jobs/j"


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as made:
        made.post("/signin", data={"key": HOME_TOKEN})
        yield made


def _lines(page: str) -> list[str]:
    return re.findall(r">line (\d+)</li>", page)


def _link(page: str, text: str, *, attribute: str = "href") -> str:
    found = re.search(rf'<a [^>]*{attribute}="([^"]+)"[^>]*>{text}</a>', page)
    assert found is not None, (text, page[:3000])
    return unescape(found[1])


def _numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_a_long_log_begins_at_its_end_and_leads_to_each_earlier_page(browser: httpx.Client, bench: Bench) -> None:
    job = record_job(bench, "j", num_entries=1700)
    for first in range(0, 1700, 100):
        write_log(job, first, first + 99)
    page = browser.get(JOB).text
    assert _lines(page) == _numbers(1200, 1700)
    assert "The log is complete." in page
    part, seen = page, _lines(page)
    for begin in (700, 200, 0):
        part = browser.get(_link(part, "Earlier entries", attribute="hx-get"), headers={"hx-request": "true"}).text
        assert _lines(part) == _numbers(begin, begin + 500 if begin else 200)
        seen = _lines(part) + seen
    assert seen == _numbers(0, 1700)
    assert "Earlier entries" not in part
    assert _lines(browser.get(_link(page, "Earlier entries")).text) == _numbers(700, 1200), "without a script"
    begin = browser.get(_link(page, "Beginning")).text
    assert _lines(begin) == _numbers(0, 500)
    assert 'data-follow="off"' in begin
    assert _lines(browser.get(_link(begin, "Later entries")).text) == _numbers(500, 1000)


def test_a_link_to_an_entry_opens_the_page_there(browser: httpx.Client, bench: Bench) -> None:
    job = record_job(bench, "j", num_entries=3000)
    for first in range(0, 3000, 100):
        write_log(job, first, first + 99)
    link = re.search(r'<li id="([^"]+)"[^>]*><a href="([^"]+)"[^>]*>00:30:00.000', browser.get(f"{JOB}?at=start").text)
    assert link is None, "the entry is far from the beginning"
    page = browser.get(f"{JOB}?at=000.{MASTER}.000000001800").text
    link = re.search(r'<li id="([^"]+)"[^>]*><a href="([^"]+)"[^>]*>00:30:00.000', page)
    assert link is not None
    assert unescape(link[2]) == f"{JOB}?at=000.{MASTER}.000000001800#{link[1]}"
    assert _lines(page) == _numbers(1550, 2050)
    assert 'data-follow="off"' in page
    assert browser.get(f"{JOB}?at=000.{MASTER}.000000009999").status_code == 404


def test_the_first_error_is_found_wherever_it_is(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = record_job(bench, "j", num_entries=1002)
    write_log(job, 0, 999)
    assert "The log has no error." in browser.get(f"{JOB}/log/first-error").text
    write_log(job, 1000, 1000, severity="ERROR")
    write_log(job, 1001, 1001, severity="CRITICAL")
    there = f"{JOB}?at=000.{MASTER}.000000001000#e-000.{MASTER}.000000001000"
    assert browser.get(_link(browser.get(JOB).text, "First error")).headers["location"] == there
    filtered = browser.get(f"{JOB}/log/first-error?filter=textPayload%3A1001+--+a+comment")
    assert "at=000.master-replica-0.000000001001" in filtered.headers["location"]
    assert browser.get(f"{JOB}/log/first-error?filter=(").status_code == 400
    monkeypatch.setattr(job_log_search, "SEARCH_S", -1.0)
    monkeypatch.setattr("lockstep.service.telemetry.logs.SCAN_ENTRIES", 600)
    page = browser.get(f"{JOB}/log/first-error").text
    assert "the log is long" in page
    assert browser.get(_link(page, "Look on")).headers["location"] == there


def test_an_error_in_a_filter_stands_under_its_box_and_is_marked(browser: httpx.Client, bench: Bench) -> None:
    write_log(record_job(bench, "j", num_entries=10), 0, 9)
    page = browser.get(JOB, params={"filter": "severity>=ERROR AND <b>:1"}).text
    assert 'value="severity&gt;=ERROR AND &lt;b&gt;:1"' in page
    assert re.search(r'role="alert"><p class="error">filter: column 21', page)
    assert f"severity&gt;=ERROR AND &lt;b&gt;:1\n{' ' * 20}^" in page
    assert _lines(page) == []
    assert "hx-sse:connect" not in page
    shown = browser.get(JOB, params={"filter": "textPayload:7"}).text
    assert (_lines(shown), 'role="alert"' in shown) == (["7"], False)


def test_a_filter_that_finds_nothing_at_the_end_looks_further_back(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_history, "SCAN_ENTRIES", 100)
    job = record_job(bench, "j", num_entries=1000)
    for first in range(0, 1000, 100):
        write_log(job, first, first + 99)
    part = browser.get(JOB, params={"filter": 'textPayload="line 250"'}).text
    num_requests = 0
    while not _lines(part):
        found = re.search(r'<li class="muted earlier" hx-get="([^"]+)" hx-trigger="load', part)
        assert found is not None, part
        part, num_requests = browser.get(unescape(found[1])).text, num_requests + 1
    assert (_lines(part), num_requests) == (["250"], 7)


def test_a_log_is_downloaded_whole_or_as_filtered(browser: httpx.Client, bench: Bench) -> None:
    job = record_job(bench, "j", num_entries=12_000)
    for first in range(0, 12_000, 1000):
        write_log(job, first, first + 999)
    answer = browser.get(_link(browser.get(JOB).text, "Download"))
    assert answer.headers["content-disposition"] == 'attachment; filename="j.log"'
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.text.splitlines()
    assert len(lines) == 12_000
    assert lines[0] == f"1970-01-01T00:00:00.000000Z {MASTER} DEFAULT line 0"
    page = browser.get(f"{JOB}?filter=textPayload%3A%22line+7%22").text
    filtered = browser.get(_link(page, "Download these entries")).text.splitlines()
    assert len(filtered) == 1 + 10 + 100 + 1000
    assert browser.get(f"{JOB}/log/download?filter=(").status_code == 400


def test_a_job_with_many_replicas_shows_a_few_at_a_time(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = record_job(bench, "j", num_workers=299, num_entries=1)
    for name in (MASTER, "worker-replica-0", "worker-replica-250"):
        write_log(job, 0, 0, replica=name, text=f"of {name}")
    opened: set[str] = set()
    read = LocalBucket._read

    def note(bucket: LocalBucket, key: str, start_byte: int, end_byte: int | None) -> bytes:
        opened.add(bucket.url)
        return read(bucket, key, start_byte, end_byte)

    monkeypatch.setattr(LocalBucket, "_read", note)
    page = browser.get(JOB).text
    assert "The log shows the first 20 of 300 replicas." in page
    assert ("of worker-replica-0<" in page, "of worker-replica-250<" in page) == (True, False)
    begin = browser.get(_link(page, "Beginning")).text
    assert ("of worker-replica-0<" in begin, "of worker-replica-250<" in begin) == (True, False)
    assert len(opened) <= 20
    assert "replica=" not in _link(begin, "Download")
    assert "of worker-replica-250<" in browser.get(f"{JOB}?replica=worker-replica-250").text
    assert "of worker-replica-250<" in browser.get(f"{JOB}?at=000.worker-replica-250.000000000000").text
    assert 'role="alert"' in browser.get(f"{JOB}?replica=nobody").text


def test_first_error_and_download_of_many_replicas_read_a_few_at_a_time(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = record_job(bench, "j", num_workers=49, num_entries=1)
    for name, severity in ((MASTER, "INFO"), ("worker-replica-5", "INFO"), ("worker-replica-40", "ERROR")):
        write_log(job, 0, 0, replica=name, severity=severity, text=f"of {name}")
    asked: list[tuple[str, ...]] = []
    read = job_log_search.read_page

    def note(session: Session, context: ServiceContext, view: LogView, *, page_size: int) -> Mapping[str, Any]:
        asked.append(view.replicas)
        return read(session, context, view, page_size=page_size)

    monkeypatch.setattr(job_log_search, "read_page", note)
    there = f"{JOB}?at=000.worker-replica-40.000000000000#e-000.worker-replica-40.000000000000"
    assert browser.get(_link(browser.get(JOB).text, "First error")).headers["location"] == there
    assert [len(names) for names in asked] == [20, 20, 10]
    lines = browser.get(f"{JOB}/log/download").text.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == [MASTER, "worker-replica-5", "worker-replica-40"]
    assert [len(names) for names in asked[3:]] == [20, 20, 10]
    monkeypatch.setattr(job_log_search, "SEARCH_S", -1.0)
    page = browser.get(f"{JOB}/log/first-error").text
    for _ in range(2):
        assert "the log is long" in page
        found = browser.get(_link(page, "Look on"))
        page = found.text
    assert found.headers["location"] == there
    assert browser.get(f"{JOB}/log/download?replica=worker-replica-5").text.endswith(" of worker-replica-5\n")


def test_what_the_bucket_does_not_give_is_said_in_its_place(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = record_job(bench, "j", num_entries=1)
    write_log(job, 0, 0)

    def fail(*_args: object, **_options: object) -> None:
        raise StorageError("the bucket does not answer")

    monkeypatch.setattr(LocalBucket, "_list", fail)
    monkeypatch.setattr(job_outputs._LocalFolder, "files", fail)
    page = browser.get(JOB)
    assert (page.status_code, page.text.count("the bucket does not answer")) == (200, 4)
    assert f'hx-get="{JOB}/log?at=end" hx-trigger="every 5s"' in page.text, "the log is asked for again"


def test_curves_of_training_and_validation_are_laid_over_each_other(browser: httpx.Client, bench: Bench) -> None:
    assert "Nothing was written yet." in _with_job(browser, bench).text
    job = bench.job("j")
    write_curve(job, run="train", tag="epoch_loss", values=[3.0, 2.0, 1.0])
    write_curve(job, run="validation", tag="epoch_loss", values=[4.0, float("nan"), 2.5])
    write_curve(job, run="train", tag="<b>", values=[1.0])
    page = browser.get(f"{JOB}/curves").text
    (figure,) = re.findall(r"<figure.*?epoch_loss.*?</figure>", page)
    assert figure.count('<path d="M') == 2
    assert 'aria-label="epoch_loss: train 1, validation 2.5' in figure
    assert "train: 1<" in figure
    assert "<td>validation</td>" in page
    assert "2.5 at step 2" in page
    assert "<b>" not in page
    assert "hx-trigger" not in page, "the job is over"
    bench.store.update(job.uid, state="RUNNING", end_time_s=None)
    assert 'hx-trigger="every 10s"' in browser.get(f"{JOB}/curves").text


def _with_job(browser: httpx.Client, bench: Bench) -> httpx.Response:
    record_job(bench, "j")
    return browser.get(f"{JOB}/curves")


def test_jobs_are_compared_by_their_curves_and_what_differs_in_their_inputs(
    browser: httpx.Client, bench: Bench
) -> None:
    for name, rate in (("a", "0.1"), ("b", "0.2")):
        job = record_job(bench, name, args=["--rate", rate], region="us-central1")
        write_curve(job, run="train", tag="epoch_loss", values=[3.0, float(rate)])
    listed = browser.get("/jobs").text
    boxes = re.findall(r'<input id="compare-(\w+)" type="checkbox" name="job" value="\1" form="compare"', listed)
    assert sorted(boxes) == ["a", "b"]
    assert '<form id="compare" class="bar" method="get" action="/compare">' in listed
    page = browser.get("/compare?project=local&job=a&job=b&job=a").text
    (figure,) = re.findall(r"<figure.*?</figure>", page)
    assert ("a train: 0.1<" in figure, "b train: 0.2<" in figure) == (True, True)
    (differences,) = re.findall(r'aria-label="Where their inputs differ".*?</table>', page)
    assert "[&#34;--rate&#34;, &#34;0.1&#34;]" in differences
    assert "us-central1" not in differences
    assert "Choose jobs in the list" in browser.get("/compare").text
    assert browser.get("/compare?job=a&job=none").status_code == 404
    for number in range(7):
        record_job(bench, f"more_{number}")
    many = browser.get("/compare?job=a&job=b&" + "&".join(f"job=more_{number}" for number in range(7))).text
    assert ("Only the first 8 jobs" in many, "more_5" in many, "more_6" in many) == (True, True, False)


def test_a_viewer_of_another_project_compares_nothing(service: Served, bench: Bench) -> None:
    record_job(bench, "j")
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as viewer:
        viewer.post("/signin", data={"key": service.key(Scope.VIEWER, project="other")})
        for path in (
            "/compare?project=local&job=j",
            "/compare/curves?project=local&job=j",
            f"{JOB}/curves",
            f"{JOB}/artifacts",
            f"{JOB}/artifacts/model/x",
            f"{JOB}/events",
            f"{JOB}/log/first-error",
            f"{JOB}/log/download",
        ):
            assert viewer.get(path).status_code == 404, path


def test_files_are_listed_a_page_at_a_time_and_downloaded(browser: httpx.Client, bench: Bench) -> None:
    job = record_job(bench, "j")
    assert "No files here." in browser.get(f"{JOB}/artifacts").text
    folder = Path(job.outputs["model"])
    folder.mkdir(parents=True)
    for number in range(60):
        (folder / f"{number:02d} <b>#.txt").write_text("x" * 2000)
    page = browser.get(JOB).text
    links = re.findall(r'href="([^"]+)" download>model/', page)
    assert len(links) == 50
    assert '<td class="number">2 kB</td>' in page
    assert "<b>#" not in page
    following = browser.get(_link(page, "More", attribute="hx-get")).text
    assert len(re.findall(r'href="([^"]+)" download>model/', following)) == 10
    assert "59 &lt;b&gt;#.txt" in browser.get(_link(page, "More")).text
    answer = browser.get(unescape(links[0]))
    assert (answer.text, answer.headers["content-type"]) == ("x" * 2000, "application/octet-stream")
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert browser.get(f"{JOB}/artifacts/model/none").status_code == 404


def test_events_are_shown_with_causes_and_thousands_a_page_at_a_time(
    browser: httpx.Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "PAGE_SIZE", 20)
    job = record_job(bench, "j")
    for number in range(60):
        bench.store.record_event(job.uid, kind="ignored", detail=f"field {number:02d} <b>")
    page = browser.get(JOB).text
    assert re.findall(r"field (\d+) &lt;b&gt;", page) == [f"{number:02d}" for number in range(10, 60)]
    assert '<li class="notable">' in page
    events = browser.get(_link(page, "All 61 events")).text
    seen = re.findall(r"field (\d+)", events)
    while 'button" href' in events and "Earlier</a>" in events:
        events = browser.get(_link(events, "Earlier")).text
        seen += re.findall(r"field (\d+)", events)
    assert seen == [f"{number:02d}" for number in reversed(range(60))]
    assert "<strong>enqueued</strong>" in events
    assert browser.get(f"{JOB}/events?page=999999999999").status_code == 200


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.0, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.981, 0.989, ["0.98", "0.982", "0.984", "0.986", "0.988", "0.99"]),
        (0.0, 60_000.0, ["0", "20 k", "40 k", "60 k"]),
        (100_200.0, 101_000.0, ["100.2 k", "100.4 k", "100.6 k", "100.8 k", "101 k"]),
        (5.0, 5.0, ["2", "4", "6", "8"]),
        (0.0, 0.0, ["0", "0.25", "0.5", "0.75", "1"]),
        (-2.0, 2.0, ["-2", "-1", "0", "1", "2"]),
    ],
)
def test_the_ticks_of_an_axis_are_round_and_differ(low: float, high: float, labels: list[str]) -> None:
    found = ticks(low, high, is_around=True)
    assert [label for _, label in found] == labels
    assert found[0][0] <= low
    assert found[-1][0] >= high
    inside = ticks(low, high)
    assert all(low <= value <= high for value, _ in inside)
    assert len({label for _, label in inside}) == len(inside)


@pytest.mark.parametrize("value", [1e308, 1e299, -1e299, 5e-324, 0.0])
def test_a_chart_is_drawn_of_any_values(value: float) -> None:
    for points in ([(0, value)], [(0, value), (2**30, -value)], [(0, None), (1, value), (2, None), (3, 1.0)]):
        for across in Across:
            shown = str(chart("x", unit="", lines=[Line(name="a", points=points)], across=across))
            assert "nan" not in shown
            assert "inf" not in shown
    gap = str(chart("x", unit="", lines=[Line(name="a", points=[(0, 1.0), (1, None), (2, 2.0)])]))
    assert len(re.findall(r"M[\d.]+,", gap)) == 2, "a gap divides the line"


def test_of_many_replicas_the_page_shows_those_in_trouble_first_and_a_page_lists_all(
    browser: httpx.Client, bench: Bench
) -> None:
    job = record_job(bench, "large", num_workers=450)
    replicas = list(job.replicas)
    bad = replace(replicas[400], status=replace(replicas[400].status, end=ProgramEnd(exit_code=137)))
    bench.store.update(job.uid, replicas=[*replicas[:400], bad, *replicas[401:]])
    shown = browser.get("/projects/local/jobs/large").text
    names = re.findall(r"<td>((?:master|worker)-replica-\d+)</td>", shown)
    assert len(names) == 50
    assert names[:3] == [bad.status.name, "master-replica-0", "worker-replica-0"]
    assert "All 451 replicas" in shown
    pages = [browser.get(f"/projects/local/jobs/large/replicas?page={number}").text for number in range(3)]
    listed = [re.findall(r"<td>((?:master|worker)-replica-\d+)</td>", page) for page in pages]
    assert [len(names) for names in listed] == [200, 200, 51]
    assert len({name for names in listed for name in names}) == 451
    assert "Next page" not in pages[2]
    config = browser.get("/projects/local/jobs/large/config", headers={"hx-request": "true"}).text
    assert config.count("replicasLikeIt: 450") == 1
