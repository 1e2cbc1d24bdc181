"""A model is tried in Chromium: the example comes by itself, an image is dropped, nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.console.served_model import PATH, make_versions, serving

from lockstep.testing.served import HOME_TOKEN, Served

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="Chromium is not installed (chromium-driver)"),
]
WAIT_S = 30.0
DROP = """
const zone = document.querySelector("[data-drop]"), moved = new DataTransfer();
moved.items.add(new File([new Uint8Array([137, 80, 78, 71])], "seven.png", {type: "image/png"}));
zone.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
"""


@pytest.fixture
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if condition():
                return
        except Exception as error:  # a part of the page was just replaced
            if "stale" not in str(error).lower() and "no such element" not in str(error).lower():
                raise
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_model_is_tried_in_place_with_numbers_and_with_an_image_that_is_dropped(
    driver: Any, service: Served, tmp_path: Path
) -> None:
    make_versions(service)

    def find(selector: str) -> Any:
        return driver.find_element("css selector", selector)

    driver.get(f"{service.url}/signin")
    find("input[name=key]").send_keys(HOME_TOKEN)
    find("button.primary").click()
    until(lambda: find("h1").text == "Jobs")
    with serving(service) as received:
        driver.get(f"{service.url}{PATH}")
        until(lambda: "[[0.0, 0.0], [0.0, 0.0]]" in find("#try-instances").get_property("value"))
        find("#try button.primary").click()
        until(lambda: "Version v1 answered in" in find("#try-result").text)
        assert find("#try-result button").is_displayed(), "the lines can be copied"
        assert driver.current_url == f"{service.url}{PATH}", "the page stays"
        find("#try-instances").clear()
        find("#try-instances").send_keys("[]")
        find("#try button.primary").click()
        until(lambda: "allowed: a list of one <b>instance</b> or more" in find("#try-result").text)
        driver.execute_script(DROP)
        assert driver.execute_script("return document.querySelector('[name=image]').files[0].name") == "seven.png"
        find("#try button.primary").click()
        until(lambda: "base64 -w0 < seven.png" in find("#try-result").text)
        assert base64.b64decode(received[-1]["instances"][0]["b64"]) == b"\x89PNG"
        assert len(received) == 3
    severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == [], "no script fails, and the content security policy is kept"
