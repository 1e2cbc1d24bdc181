"""The cluster, the queue, quotas and costs in the console."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from tests.service.console.signed_in import signed_in
from tests.service.lab import ONE, Lab

from lockstep.jobs.provisioning import NodeState
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import Quota
from lockstep.jobs.security.access import Scope
from lockstep.service.console.bars import Bar, bar_chart, shares_strip, used_strip
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

HANGS = "import time\ntime.sleep(600)"


def test_a_fixed_set_of_nodes_says_who_uses_it_and_the_queue_says_why_a_job_waits(
    service: Served, bench: Bench
) -> None:
    object.__setattr__(service.context.settings, "quotas", {"local": Quota(machines=8, requests_per_second=2.0)})
    for number in range(4):
        bench.create(f"job_{number}", HANGS)
    bench.step_until_state("job_0", JobState.RUNNING)
    bench.step_until_state("job_1", JobState.RUNNING)
    with signed_in(service) as operator:
        shown = operator.get("/cluster").text
        assert "A fixed set of nodes" in shown
        assert '<a href="/projects/local/jobs/job_0">job_0</a> (local, master-replica-0)' in shown
        waiting = re.findall(r'<td class="number">(\d)</td><td><a href="[^"]+">(job_\d)</a>', shown)
        assert waiting == [("1", "job_2"), ("2", "job_3")]
        assert "job slots" in shown
        assert 'aria-label="local: 25%"' in shown, "2 of 8 machines"
        assert 'hx-trigger="every 5s"' in operator.get("/cluster/now").text
    with signed_in(service, service.key(Scope.OPERATOR, project="local")) as other:
        for path in ("/cluster", "/cluster/now", "/cluster/ended"):
            assert other.get(path).status_code == 403


def test_machines_are_counted_by_type_and_those_that_ended_are_listed(lab: Lab) -> None:
    served = Served(lab.bench)
    try:
        lab.bench.create("j", HANGS, **ONE)
        lab.step_until(lambda: lab.bench.job("j").state is JobState.RUNNING)
        with signed_in(served) as operator:
            shown = operator.get("/cluster").text
            (node,) = lab.ledger
            assert "Cluster lab: machines are requested and released" in shown
            row = shown[shown.index(f"<td>{node.name}</td>") :]
            assert '<a href="/projects/local/jobs/j">j</a>' in row[: row.index("</tr>")]
            assert "1 ready" in shown
            assert "No node has ended." in operator.get("/cluster/ended").text
            now_s = time.time()
            lab.store.mark(node.name, released_time_s=now_s, down_time_s=now_s, reason="<b>it was idle</b>")
            assert lab.ledger[0].state is NodeState.DOWN
            ended = operator.get("/cluster/ended").text
            assert node.name in ended
            assert "&lt;b&gt;it was idle" in ended
    finally:
        served.close()


def test_the_ledger_is_turned_over(lab: Lab) -> None:
    served = Served(lab.bench)
    try:
        lab.bench.create("j", HANGS, **ONE)
        lab.step_until(lambda: len(lab.ledger) == 1)
        (node,) = lab.ledger
        lab.store.mark(node.name, down_time_s=time.time())
        from dataclasses import replace

        others = [replace(node, name=f"lab-cpu-0-{number}", asked_time_s=float(number)) for number in range(4)]
        lab.store.record(asked=[replace(other, down_time_s=9.0) for other in others])
        names: list[str] = []
        token = ""
        while True:
            page = served.http.get("/v1/nodes/ended", params={"pageSize": 2, "pageToken": token}).json()
            names += [each["name"] for each in page["nodes"]]
            token = page.get("nextPageToken", "")
            if not token:
                break
        assert names == [node.name, *(f"lab-cpu-0-{number}" for number in (3, 2, 1, 0))]
    finally:
        served.close()


@pytest.fixture
def spent(service: Served, bench: Bench) -> None:
    bench.create("j", "pass")
    bench.step_until_over("j")


@pytest.mark.usefixtures("spent")
def test_costs_are_drawn_by_day_linked_and_divided_by_what_the_time_was_for(service: Served) -> None:
    with signed_in(service) as browser:
        shown = browser.get("/costs/report?by=job").text
        assert '<a href="/projects/local/jobs/j">j</a>' in shown
        assert re.search(r'aria-label="Cost by day: 1 bars, the highest is \d{4}-\d\d-\d\d with \$', shown)
        everything = browser.get("/costs?project=*&by=project&report=on").text
        assert re.search(r'<td>local</td><td class="number">\d', everything)
        assert "Nothing was spent." in browser.get("/costs/report?until=2020-01-01&since=2019-01-01").text
        job = browser.get("/projects/local/jobs/j").text
        assert re.search(r'<td>0</td><td><time [^>]+>[^<]+</time></td><td><time .*?<td class="number">\$', job)
    with signed_in(service, service.key(Scope.VIEWER, project="local")) as viewer:
        for path in (
            "/costs?project=*",
            "/costs/report?project=*",
            "/costs?project=other",
            "/costs/report?project=other",
        ):
            assert viewer.get(path).status_code in (403, 404)


def test_bars_are_bounded_and_say_what_they_show() -> None:
    many = str(bar_chart("Cost", unit="$", bars=[Bar(name=f"d{number}", value=number) for number in range(500)]))
    assert many.count('class="bar-value"') == 100
    assert "the highest is d499 with $499" in many
    assert "No values yet." in str(bar_chart("Cost", unit="$", bars=[]))
    assert 'height="0.0"' in str(bar_chart("Cost", unit="$", bars=[Bar(name="a", value=0.0)]))
    strip = str(shares_strip("Traffic", [("<v1>", 75), ("v2", 25)]))
    assert 'aria-label="Traffic: &lt;v1&gt; 75%, v2 25%"' in strip
    assert re.findall(r'width="(\d+\.\d)"', strip) == ["300.0", "100.0"]
    assert 'class="strip-over"' in str(used_strip("x", part=1.0))
    assert 'width="400.0"' in str(used_strip("x", part=7.0))


def test_the_pages_of_operators_stand_in_the_navigation_for_them_alone(service: Served) -> None:
    def places(browser: httpx.Client) -> list[str]:
        found = re.search(r"<nav.*?</nav>", browser.get("/jobs").text)
        assert found is not None
        return re.findall(r'href="(/\w+)', found[0])

    with signed_in(service) as operator, signed_in(service, service.key(Scope.VIEWER)) as viewer:
        assert set(places(operator)) - set(places(viewer)) == {"/cluster", "/health"}
        assert {"/models", "/data", "/costs", "/access"} <= set(places(viewer))
