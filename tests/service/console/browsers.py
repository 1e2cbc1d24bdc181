"""Chromium, and what the tests of the console do with it."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.testing.served import HOME_TOKEN

WAIT_S = 30.0
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="Chromium is not installed (chromium-driver)"
)


class Browser:
    """Chromium, and what the tests do with it."""

    def __init__(self, url: str, *, wait_s: float = WAIT_S) -> None:
        webdriver = pytest.importorskip("selenium.webdriver")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1400"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.url = url
        self.wait_s = wait_s

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
        deadline = time.monotonic() + self.wait_s
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
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {"/".join(url.split("/")[:3]) for url in sent if url.startswith("http")}

    def statuses(self, path: str) -> list[int]:
        """Returns the statuses of the answers from a path since the last call of this or of `requested`."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        answers = [each["params"]["response"] for each in messages if each["method"] == "Network.responseReceived"]
        return [answer["status"] for answer in answers if answer["url"].startswith(f"{self.url}{path}")]

    def problems(self) -> list[str]:
        """Returns what the browser complained about: scripts that failed, what the content security policy refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def show_as(self, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Sets the size of the page, in CSS pixels, and its colors."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def write_screenshot(self, path: Path) -> None:
        """Writes the whole page as PNG."""
        self.driver.execute_cdp_cmd("Page.bringToFront", {})
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
