"""The console in Chromium: a job is watched to its end, its log filtered, cancelled; hostile text; the keyboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.service.console.browsers import Browser, needs_chromium
from tests.service.recorded_jobs import record_job, write_curve, write_log

from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

pytestmark = [pytest.mark.heavy, needs_chromium]
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
PROGRAM = f"""
import time
print({HOSTILE!r}, flush=True)
for number in range(1000):
    print(f"step {{number}}", flush=True)
    time.sleep(0.1)
"""


def test_a_label_and_a_submitter_that_look_like_html_are_text(browser: Browser, bench: Bench) -> None:
    job = record_job(bench, "job_1")
    bench.store.set_labels(job.uid, labels={"team": HOSTILE, "<b>": "x"}, version=None)
    browser.sign_in()
    for path in ("/jobs", "/projects/local/jobs/job_1", "/projects/local/jobs:new?clone=job_1", "/costs?by=label:team"):
        browser.open(path)
        browser.until(lambda: browser.all("h1"))
        assert browser.all("main img, main b, main script") == [], path
        assert "taken over" not in browser.driver.title
    browser.open("/projects/local/jobs/job_1")
    assert HOSTILE in browser.text("main")
    assert browser.problems() == []


def test_what_a_job_resolves_to_is_asked_for_when_it_is_opened(browser: Browser, bench: Bench) -> None:
    record_job(bench, "job_1", num_workers=3)
    browser.sign_in()
    browser.open("/projects/local/jobs/job_1")
    assert "replicasLikeIt" not in browser.driver.page_source
    browser.all("#config summary")[1].click()
    browser.until(lambda: "replicasLikeIt: 3" in browser.text("#config-resolved"))
    assert browser.driver.current_url.endswith("/projects/local/jobs/job_1")
    assert browser.problems() == []


def test_a_part_that_has_not_changed_is_not_sent_again(browser: Browser, bench: Bench) -> None:
    bench.create("job_1", "pass")
    browser.sign_in()
    browser.until(lambda: 304 in browser.statuses("/jobs/table"))
    assert "job_1" in browser.text("#jobs")
    bench.create("job_2", "pass")
    browser.until(lambda: "job_2" in browser.text("#jobs"))


@pytest.mark.usefixtures("controller")
def test_a_job_is_watched_filtered_and_cancelled_and_nothing_of_it_is_run(browser: Browser, bench: Bench) -> None:
    browser.sign_in()
    bench.create("job_1", PROGRAM)
    browser.until(lambda: "job_1" in browser.text("#jobs") and "Running" in browser.text("#jobs"))  # without a reload
    browser.one("#jobs tbody a").click()
    browser.until(lambda: "step 20" in browser.text("#log-entries"))
    assert HOSTILE in browser.text("#log-entries")
    assert browser.all("#log-entries img, #log-entries script") == []
    assert browser.driver.title == "Job job_1 · Lockstep"
    browser.one("#log input[name=filter]").send_keys("textPayload:nothing AND (")
    browser.one("#log button").click()
    browser.until(lambda: browser.all("#log-problem .error"))
    browser.one("#log input[name=filter]").clear()
    browser.one("#log input[name=filter]").send_keys('textPayload:"step 7"')
    browser.one("#log button").click()
    browser.until(lambda: "step 7" in browser.text("#log-entries"))
    assert "step 6" not in browser.text("#log-entries")
    browser.driver.execute_script("window.confirm = () => true")
    browser.one("#status button.danger").click()
    browser.until(lambda: "Cancelled" in browser.text("#status"))
    assert bench.job("job_1").state is JobState.CANCELLED
    assert browser.all("#status button") == []
    browser.one("header form button").click()
    browser.until(lambda: browser.text("h1") == "Sign in")
    assert browser.requested() == {browser.url}, "nothing leaves the machine"
    assert browser.problems() == [], "no script fails, and the content security policy is kept"


def test_a_log_is_followed_by_one_stream_that_rests_while_nobody_looks(browser: Browser, bench: Bench) -> None:
    job = record_job(bench, "job_1", num_entries=40)
    bench.store.update(job.uid, state=JobState.RUNNING, end_time_s=None)
    write_log(job, 0, 9)
    browser.sign_in()
    browser.open("/projects/local/jobs/job_1")
    browser.until(lambda: "line 9" in browser.text("#log-entries"))
    write_log(job, 10, 19)
    browser.until(lambda: "line 19" in browser.text("#log-entries"))
    page = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.open("/costs")
    write_log(job, 20, 29)
    browser.driver.switch_to.window(page)
    browser.until(lambda: "line 29" in browser.text("#log-entries"))
    assert len(browser.statuses("/projects/local/jobs/job_1/log/live")) == 2, "one before, one after"
    bench.store.update(job.uid, state=JobState.SUCCEEDED, end_time_s=job.create_time_s + 1)
    write_log(job, 30, 39)
    browser.until(lambda: "The log is complete." in browser.text("#growing"))
    shown = re.findall(r"line (\d+)", browser.text("#log-entries"))
    assert [int(number) for number in shown] == list(range(40)), "each entry once, in order"
    assert browser.problems() == []


def test_a_long_log_stays_bounded_and_a_link_to_an_entry_opens_there(browser: Browser, bench: Bench) -> None:
    job = record_job(bench, "job_1", num_entries=6000)
    for first in range(0, 6000, 100):
        write_log(job, first, first + 99, text="line {} " + "x" * 300)
    browser.sign_in()
    browser.open("/projects/local/jobs/job_1")
    script = browser.driver.execute_script
    assert script(
        "const log = document.querySelector('#log-entries'); return log.scrollTop + log.clientHeight + 40 >="
        " log.scrollHeight"
    ), "the end of the log is shown"
    for number in range(1, 5):
        first = browser.all("#log-entries li[id]")[0].get_attribute("id")
        place = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
        script("document.querySelector('#log-entries').scrollTop = 0")
        before = script(place, first)
        browser.one("#log-entries .earlier a").click()
        browser.until(lambda: browser.all("#log-entries li[id]")[0].get_attribute("id") != first)  # noqa: B023
        assert len(browser.all("#log-entries li[id]")) == min(2000, 500 * (number + 1))
        assert abs(script(place, first) - before) < 60, "what was read stays where it was"
    assert browser.all("#log-entries li[id]")[0].get_attribute("id").endswith("0000003500")
    browser.one("#log-entries .later a").click()
    browser.until(lambda: "at=000" in browser.driver.current_url and browser.all("#log-entries li:target"))
    entry = browser.one("#log-entries li:target")
    assert entry.get_attribute("id").endswith("0000005500")
    seen = script(
        "const box = arguments[0].getBoundingClientRect(), log = arguments[0].parentElement.getBoundingClientRect();"
        "return box.top >= log.top - 1 && box.bottom <= log.bottom + 1 && box.bottom <= innerHeight",
        entry,
    )
    assert seen, "the entry is in view"
    assert script("return getComputedStyle(arguments[0]).whiteSpace", entry) == "pre-wrap"
    browser.one("#log-wrap").click()
    assert script("return getComputedStyle(arguments[0]).whiteSpace", entry) == "pre"
    browser.driver.set_window_size(360, 800)
    assert script("return document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than a narrow page"


def test_jobs_are_chosen_and_compared_while_the_list_is_live(browser: Browser, bench: Bench) -> None:
    for name in ("job_1", "job_2", "job_3"):
        write_curve(record_job(bench, name), run="train", tag="epoch_loss", values=[3.0, 1.0])
    browser.sign_in()
    for name in ("job_1", "job_3"):
        browser.one(f"#compare-{name}").click()
    bench.create("job_4", "pass")
    browser.until(lambda: "job_4" in browser.text("#jobs"))  # without a reload
    assert [each.get_attribute("value") for each in browser.all("#jobs input:checked")] == ["job_3", "job_1"]
    browser.one("#compare button").click()
    browser.until(lambda: browser.text("h1") == "Compare jobs")
    assert browser.text(".legend").split("\n") == ["job_3 train: 1", "job_1 train: 1"]
    browser.driver.set_window_size(360, 800)
    assert browser.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.problems() == []


def test_the_keyboard_reaches_everything_and_the_back_button_works(browser: Browser, bench: Bench) -> None:
    bench.create("job_1", "pass")
    browser.sign_in()
    browser.one("#jobs tbody a").click()
    browser.until(lambda: browser.text("h1") == "Job job_1")
    browser.driver.back()
    browser.until(lambda: browser.text("h1") == "Jobs")
    reached = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys("\ue004")  # the tab key
        reached.append(browser.driver.switch_to.active_element.get_attribute("outerHTML")[:60])
    for part in ('class="skip"', 'class="brand"', 'href="/jobs', 'name="project"', 'name="filter"', "job_1"):
        assert any(part in element for element in reached), (part, reached)


def test_a_job_is_cloned_with_an_edit_and_its_price_changes_as_one_types(browser: Browser, service: Served) -> None:
    body = {"jobId": "old", "trainingInput": {"pythonModule": "train", "args": ["--a"]}, "labels": {"team": "vision"}}
    assert service.http.post("/v1/projects/local/jobs", json=body).status_code == 200
    browser.sign_in()
    browser.open("/projects/local/jobs/old")
    browser.one("a[href*='clone=old']").click()
    browser.until(lambda: "$0.1911" in browser.text("#preview"))
    browser.driver.execute_script("window.stays = true")

    def field(name: str) -> Any:
        return browser.one(f"[name='trainingInput.{name}']")

    field("scaleTier").send_keys("CUSTOM")
    browser.until(lambda: "masterType is missing" in browser.text("#verdict"))
    browser.until(lambda: "since scaleTier is CUSTOM" in browser.text("[id='problem-trainingInput.masterType']"))
    field("masterType").send_keys("n1-standard-8")
    browser.until(lambda: "$0.3822" in browser.text("#preview"))
    assert not browser.one("[id='problem-trainingInput.masterType']").is_displayed()
    args = field("args")
    args.send_keys("\n--b")
    browser.until(lambda: "- --b" in browser.text("#preview"))
    assert browser.driver.switch_to.active_element == args, "the focus stays while one types"
    assert args.get_property("value") == "--a\n--b"
    assert browser.driver.execute_script("return window.stays") is True, "the page was not loaded again"
    name = browser.one("[name=jobId]")
    assert name.get_property("value") == "old_2"
    browser.driver.execute_script("document.querySelector('#job-form').addEventListener('submit', () => setTimeout("
        "() => sessionStorage.setItem('rests', document.querySelector('button.primary').disabled), 1))")  # fmt: skip
    browser.one("button.primary").click()
    browser.until(lambda: browser.text("h1") == "Job old_2")
    assert browser.driver.execute_script("return sessionStorage.getItem('rests')") == "true"
    job = service.http.get("/v1/projects/local/jobs/old_2").json()
    assert (job["trainingInput"]["args"], job["labels"]) == (["--a", "--b"], {"team": "vision"})
    assert job["trainingInput"]["masterType"] == "n1-standard-8"
    browser.driver.back()
    browser.until(lambda: browser.text("h1") == "Submit a job")
    assert browser.problems() == []


def test_the_report_of_costs_follows_its_page_and_is_asked_for_once(browser: Browser) -> None:
    browser.sign_in()
    browser.open("/costs")
    browser.until(lambda: "Nothing was spent." in browser.text("#report"))
    assert browser.all("#report[hx-get]") == []
    assert browser.problems() == []
