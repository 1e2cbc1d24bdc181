"""All pages of the console in Chromium, at three widths, light and dark: axe-core finds nothing.

With ``LOCKSTEP_TEST_SCREENSHOTS=FOLDER``, each page is written there as PNG.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from tests.service.console.browsers import Browser, needs_chromium
from tests.service.console.filled import filled, paths_of_pages

from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

pytestmark = [pytest.mark.heavy, needs_chromium]

AXE: Final = "https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz"
AXE_SHA512: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
AXE_PATH: Final = "package/axe.min.js"
DOWNLOAD_S: Final = 60
WIDTHS: Final = (360, 768, 1280)
FOUND: Final = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((results) => done(results.violations.map((violation) => ({
  rule: violation.id, impact: violation.impact, help: violation.help,
  nodes: violation.nodes.map((node) => node.html.slice(0, 200) + " " + node.failureSummary),
}))));
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's script, from npm, by its digest."""
    try:
        with urllib.request.urlopen(AXE, timeout=DOWNLOAD_S) as answer:
            content = answer.read()
    except urllib.error.URLError as error:
        pytest.skip(f"axe-core cannot be downloaded: {error}")
    assert base64.b64encode(hashlib.sha512(content).digest()).decode() == AXE_SHA512
    with tarfile.open(fileobj=io.BytesIO(content)) as package:
        script = package.extractfile(AXE_PATH)
        assert script is not None
        return script.read().decode()


def violations(browser: Browser, axe: str) -> list[Any]:
    browser.driver.execute_script(axe)
    return browser.driver.execute_async_script(FOUND)


def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(
    browser: Browser, service: Served, bench: Bench, axe: str
) -> None:
    with filled(service, bench):
        look_at_all(browser, bench, axe)


def look_at_all(browser: Browser, bench: Bench, axe: str) -> None:
    """Looks at all pages."""
    folder = os.environ.get("LOCKSTEP_TEST_SCREENSHOTS")
    found: dict[str, Any] = {}

    def look(name: str) -> None:
        for is_dark in (False, True):
            for width in WIDTHS:
                browser.show_as(width=width, is_dark=is_dark)
                view = f"{name}-{width}-{'dark' if is_dark else 'light'}"
                if folder:
                    browser.write_screenshot(Path(folder, f"{view}.png"))
                overflow = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
                if overflow > 0:
                    found[f"{view} is wider than its window"] = overflow
            if wrong := violations(browser, axe):
                found[f"{name}, {'dark' if is_dark else 'light'}"] = wrong

    browser.open("/signin")
    look("signin")
    browser.sign_in()
    for name, path in paths_of_pages(bench).items():
        browser.open(path)
        assert browser.all("h1"), path
        assert not browser.all("main > .error"), browser.text("main")
        look(name)
    assert not found, json.dumps(found, indent=1)
    assert browser.problems() == []
