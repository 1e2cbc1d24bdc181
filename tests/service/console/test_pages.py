"""What the pages show, to whom, and that nothing of a job is taken for HTML."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from tests.service.console.signed_in import following

from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.console import forms as forms_module
from lockstep.service.console.charts import Line, chart, nice_ceiling, number
from lockstep.service.console.layout import duration
from lockstep.service.console.log_text import colored
from lockstep.service.problems import Part
from lockstep.service.store import JobStore, VersionState
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as made:
        made.post("/signin", data={"key": HOME_TOKEN})
        yield made


def test_jobs_are_listed_filtered_and_turned_over(browser: httpx.Client, bench: Bench) -> None:
    assert "Project local has no jobs yet." in browser.get("/jobs").text
    for number_ in range(60):
        bench.create(f"job_{number_}", "pass")
    shown = re.findall(r'href="/projects/local/jobs/(\w+)"', browser.get("/jobs").text)
    assert shown == [f"job_{number_}" for number_ in range(59, 9, -1)]
    older = re.search(r'href="([^"]+)">Next page', browser.get("/jobs").text)
    assert older is not None
    shown = re.findall(r'href="/projects/local/jobs/(\w+)"', browser.get(older[1].replace("&amp;", "&")).text)
    assert shown == [f"job_{number_}" for number_ in range(9, -1, -1)]
    shown = re.findall(r'href="/projects/local/jobs/(\w+)"', browser.get("/jobs?filter=jobId:job_7").text)
    assert shown == ["job_7"]
    assert "No jobs match." in browser.get("/jobs?filter=state:FAILED").text


def test_a_title_of_a_column_orders_the_list_and_then_turns_the_order_round(
    browser: httpx.Client, bench: Bench
) -> None:
    for name in ("b", "c", "a"):
        bench.create(name, "pass")

    def look(path: str) -> tuple[list[str], list[str], str]:
        page = browser.get(path).text
        names = re.findall(r'href="/projects/local/jobs/(\w)"', page)
        sorted_by = re.findall(r'aria-sort="(\w+)"><a[^>]*>(\w+)', page)
        (job,) = re.findall(r'<a href="([^"]+)">Job', page)
        return names, [" ".join(pair) for pair in sorted_by], job.replace("&amp;", "&")

    newest, sorted_by, by_name = look("/jobs")
    assert (newest, sorted_by) == (["a", "c", "b"], ["descending Created"])
    names, sorted_by, turned = look(by_name)
    assert (names, sorted_by) == (["a", "b", "c"], ["ascending Job"])
    assert look(turned)[:2] == (["c", "b", "a"], ["descending Job"])
    part = browser.get("/jobs/table?order=jobId").text
    assert 'hx-get="/jobs/table?project=local&amp;order=jobId"' in part, "the order stays while the list is live"
    assert 'role="alert"' in browser.get("/jobs?order=moon").text


def test_an_error_of_a_filter_stands_below_it_and_the_list_is_not_asked_for_again(browser: httpx.Client) -> None:
    shown = browser.get("/jobs/table?filter=state:(").text
    assert 'role="alert"' in shown
    assert "hx-trigger" not in shown
    assert "hx-trigger" in browser.get("/jobs/table").text


def test_a_job_that_runs_shows_its_states_its_log_and_that_it_may_be_cancelled(
    browser: httpx.Client, bench: Bench
) -> None:
    bench.create("j", "print('a line', flush=True)\nimport time\ntime.sleep(60)")
    bench.store.set_labels(bench.job("j").uid, labels={"team": "vision"}, version=None)
    bench.step_until_state("j", JobState.RUNNING)
    shown = browser.get("/projects/local/jobs/j").text
    assert "team=vision" in shown
    assert "Running" in shown
    for event in ("enqueued", "preparing", "started"):
        assert f"<strong>{event}</strong>" in shown
    assert 'hx-get="/projects/local/jobs/j/status" hx-trigger="every 2s"' in shown
    whole = re.sub(r"(/log/live)\?[^\"]*", r"\1", shown)
    with following(browser, whole) as stream:
        assert "a line" in next(event.html for event in stream if event.html)
    token = re.search(r'name="csrf_token" value="(\w+)"', shown)
    assert token is not None
    part = browser.post("/projects/local/jobs/j/cancel", headers={"hx-request": "true", "x-csrf-token": token[1]})
    assert "Cancelling" in part.text
    bench.step_until_state("j", JobState.CANCELLED)
    shown = browser.get("/projects/local/jobs/j").text
    assert "Cancel</button>" not in shown
    assert 'hx-trigger="every 2s"' not in shown


def test_the_log_of_a_job_that_waits_is_followed(browser: httpx.Client, bench: Bench) -> None:
    bench.create("j", "print('a line')")
    shown = browser.get("/projects/local/jobs/j").text
    with following(browser, shown) as stream:
        bench.step_until_state("j", JobState.SUCCEEDED)
        events = list(stream)
    assert "a line" in "".join(event.html for event in events)
    assert "The log is complete." in events[-2].html
    assert events[-1].name == "over"


def test_nothing_of_a_job_is_taken_for_html(browser: httpx.Client, bench: Bench) -> None:
    bench.create("j", f"print({HOSTILE!r})\nraise SystemExit({HOSTILE!r})")
    bench.step_until_state("j", JobState.FAILED)
    for path in ("/jobs", "/projects/local/jobs/j", f"/jobs?filter={HOSTILE}", f"/jobs?project={HOSTILE}"):
        shown = browser.get(path).text
        assert "alert(1)" in shown, path
        assert HOSTILE not in shown, path


@pytest.mark.parametrize("path", ["/projects/local/jobs/none", "/projects/local/jobs/none/log", "/nowhere"])
def test_what_is_not_there_is_said_on_a_page(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "This did not work" in answer.text
    part = browser.get(path, headers={"hx-request": "true"})
    assert (part.status_code, "<html" in part.text) == (404, False)


def test_a_database_that_does_not_answer_is_said_on_a_page(
    browser: httpx.Client, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise OperationalError("SELECT", {}, Exception("disk I/O error"))

    monkeypatch.setattr(JobStore, "scan", fail)
    answer = browser.get("/jobs")
    assert answer.status_code == 503
    assert "the database cannot be used" in answer.text
    assert [problem.part for problem in service.context.problems.all()] == [Part.DATABASE]


def test_a_form_that_does_not_arrive_is_not_waited_for(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms_module, "BODY_TIMEOUT_S", 0.2)
    address = service.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=30) as connection:
        connection.sendall(b"POST /signin HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nkey")
        assert connection.recv(64).startswith(b"HTTP/1.1 400 ")


def test_a_reader_sees_what_the_key_allows(service: Served, bench: Bench) -> None:
    bench.create("j", "pass")
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as viewer:
        viewer.post("/signin", data={"key": service.key(Scope.VIEWER, project="local")})
        shown = viewer.get("/projects/local/jobs/j").text
        assert "Cancel" not in shown
        token = re.search(r'name="csrf_token" value="(\w+)"', shown)
        assert token is not None
        refused = viewer.post("/projects/local/jobs/j/cancel", data={"csrf_token": token[1]})
        assert refused.status_code == 403
        assert viewer.get("/projects/other/jobs/j").status_code == 404
        assert viewer.get("/jobs?project=other").status_code == 404
        for place in ("/health", "/cluster"):
            assert f'href="{place}' not in shown
            assert viewer.get(place).status_code == 403
    assert bench.job("j").state is JobState.QUEUED


def test_models_show_their_versions_their_traffic_and_how_to_call_them(browser: httpx.Client, service: Served) -> None:
    assert "Project local has no models yet." in browser.get("/models").text
    models, name = service.context.models, {"project": "local", "model": "digits"}
    models.create_model(project="local", name="digits", description=HOSTILE, labels={})
    given = {"description": "", "labels": {}, "deployment_uri": "/m", "machine_type": "n1-standard-4"}
    for version in ("v1", "v2"):
        models.create_version(**name, name=version, **given)
    assert models.update_version(models.get_version(**name, name="v1"), state=VersionState.READY)
    listed = browser.get("/models").text
    assert HOSTILE not in listed
    assert 'href="/projects/local/models/digits"' in listed
    assert "v1 100%" in listed
    shown = browser.get("/projects/local/models/digits").text
    assert re.findall(r"<tr><td>(v\d)</td><td><span class=\"state (\w+)", shown) == [
        ("v2", "creating"),
        ("v1", "ready"),
    ]
    assert "0 of 1 ready" in shown
    assert f"<code>{service.url}/v1/projects/local/models/digits:predict</code>" in shown
    part = browser.get("/projects/local/models/digits/versions").text
    assert part.startswith('<section id="versions" hx-get="/projects/local/models/digits/versions"')
    assert browser.get("/projects/local/models/none").status_code == 404


def test_costs_are_shown_as_divided_and_an_error_of_a_field_stands_below_it(
    browser: httpx.Client, bench: Bench
) -> None:
    assert "Nothing was spent." in browser.get("/costs?report=on").text
    bench.create("j", "pass")
    bench.step_until_over("j")
    page = browser.get("/costs?by=job").text
    assert "Total: " not in page, "the report is asked for later"
    [later] = re.findall(r'<section id="report" hx-get="(/costs/report[^"]+)" hx-trigger="load">', page)
    [whole] = re.findall(r'<p><a href="(/costs[^"]+report=on)">', page)
    shown = browser.get(html.unescape(later)).text
    assert shown in browser.get(html.unescape(whole)).text
    assert re.search(r">j</a></td><td class=\"number\">\d", shown)
    assert "Total: </strong>$" in shown
    for query in ("by=moon", "since=yesterday"):
        assert 'role="alert"' in browser.get(f"/costs/report?{query}").text


def test_a_cluster_without_machines_of_its_own_says_so(browser: httpx.Client) -> None:
    shown = browser.get("/cluster").text
    assert "A fixed set of nodes." in shown
    assert "Nothing waits." in shown


def test_health_says_what_is_wrong(browser: httpx.Client, service: Served) -> None:
    assert "Every part of the service works." in browser.get("/health").text
    service.context.problems.note(Part.BUCKET, "the bucket does not answer")
    assert "the bucket does not answer" in browser.get("/health").text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        ("\x1b[31mred\x1b[0m rest", '<span class="ansi-red">red</span> rest'),
        ("a \x1b[1;92m<i>\x1b[0m", 'a <span class="ansi-green ansi-bold">&lt;i&gt;</span>'),
        ("\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
    ],
)
def test_colors_of_a_log_are_classes_and_nothing_else_of_it_is_markup(text: str, shown: str) -> None:
    import htpy as h

    assert str(h.fragment[colored(text)]) == shown


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1), (0.03, 0.05), (0.9, 1), (1, 1), (1.1, 2), (2.2, 2.5), (3, 5), (70, 100), (1200, 2000)],
)
def test_a_chart_ends_at_a_round_number(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


def test_a_chart_says_what_it_shows_to_those_who_cannot_see_it() -> None:
    shown = str(chart("cpuCores", unit="cores", lines=[Line(name="worker-0", points=[[0, 1.0], [10, 1.5]])]))
    assert 'aria-label="cpuCores: worker-0 1.5 cores"' in shown
    assert shown.count('<path d="M') == 1
    assert "No values yet." in str(chart("cpuCores", unit="", lines=[]))
    assert (number(1536.0), number(0.12345), number(2.5e9)) == ("1.54 k", "0.123", "2.5 G")
    assert (duration(59), duration(3700), duration(90000)) == ("59 s", "1 h 1 min", "1 d 1 h")
