"""The console in Chromium: a job is watched to its end, its log filtered, cancelled; hostile text; the keyboard."""

from __future__ import annotations

import pytest
from tests.service.console.browsers import Browser, needs_chromium

from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench

pytestmark = [pytest.mark.heavy, needs_chromium]
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
PROGRAM = f"""
import time
print({HOSTILE!r}, flush=True)
for number in range(1000):
    print(f"step {{number}}", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.usefixtures("controller")
def test_a_job_is_watched_filtered_and_cancelled_and_nothing_of_it_is_run(browser: Browser, bench: Bench) -> None:
    browser.sign_in()
    bench.create("job_1", PROGRAM)
    browser.until(lambda: "job_1" in browser.text("#jobs") and "Running" in browser.text("#jobs"))  # without a reload
    browser.one("#jobs a").click()
    browser.until(lambda: "step 20" in browser.text("#log-entries"))
    assert HOSTILE in browser.text("#log-entries")
    assert browser.all("#log-entries img, #log-entries script") == []
    assert browser.driver.title == "Job job_1 · Lockstep"
    browser.one("#log input").send_keys("textPayload:nothing AND (")
    browser.one("#log button").click()
    browser.until(lambda: browser.all("#log-entries .error"))
    browser.one("#log input").clear()
    browser.one("#log input").send_keys('textPayload:"step 7"')
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


def test_the_keyboard_reaches_everything_and_the_back_button_works(browser: Browser, bench: Bench) -> None:
    bench.create("job_1", "pass")
    browser.sign_in()
    browser.one("#jobs a").click()
    browser.until(lambda: browser.text("h1") == "Job job_1")
    browser.driver.back()
    browser.until(lambda: browser.text("h1") == "Jobs")
    reached = []
    for _ in range(20):
        browser.driver.switch_to.active_element.send_keys("\ue004")  # the tab key
        reached.append(browser.driver.switch_to.active_element.get_attribute("outerHTML")[:60])
    for part in ('class="skip"', 'class="brand"', 'href="/jobs', 'name="project"', 'name="filter"', "job_1"):
        assert any(part in element for element in reached), (part, reached)
