"""The console in Chromium: a job is watched to its end, its log filtered, cancelled; hostile text; the keyboard."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="Chromium is not installed (chromium-driver)"),
]
WAIT_S = 30.0
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
PROGRAM = f"""
import time
print({HOSTILE!r}, flush=True)
for number in range(1000):
    print(f"step {{number}}", flush=True)
    time.sleep(0.1)
"""


class Browser:
    """Chromium, and what the tests do with it."""

    def __init__(self, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1400"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.url = url

    def open(self, path: str) -> None:
        self.driver.get(f"{self.url}{path}")

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if condition():
                    return
            except Exception as error:  # a part of the page was just replaced
                if "stale" not in str(error).lower() and "unpack" not in str(error):
                    raise
            assert time.monotonic() < deadline, self.driver.page_source[-3000:]
            time.sleep(0.05)

    def sign_in(self) -> None:
        self.open("/jobs")
        self.one("input[name=key]").send_keys(HOME_TOKEN)
        self.one("button.primary").click()
        self.until(lambda: self.text("h1") == "Jobs")

    def requested(self) -> set[str]:
        """Returns the addresses that pages have asked."""
        import json

        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {"/".join(url.split("/")[:3]) for url in sent if url.startswith("http")}


@pytest.fixture
def browser(service: Served) -> Iterator[Browser]:
    made = Browser(service.url)
    yield made
    made.driver.quit()


@pytest.fixture
def controller(bench: Bench) -> Iterator[None]:
    """Runs the controller beside the test."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            bench.step()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join(WAIT_S)


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
    severe = [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == [], "no script fails, and the content security policy is kept"


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
