"""A model is tried in Chromium: the example comes by itself, an image is dropped, nothing is loaded from elsewhere."""

from __future__ import annotations

import base64

import pytest
from tests.service.console.browsers import Browser, needs_chromium
from tests.service.console.served_model import PATH, make_versions, serving

from lockstep.testing.served import Served

pytestmark = [pytest.mark.heavy, needs_chromium]
DROP = """
const zone = document.querySelector("[data-drop]"), moved = new DataTransfer();
moved.items.add(new File([new Uint8Array([137, 80, 78, 71])], "seven.png", {type: "image/png"}));
zone.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
"""


def test_a_model_is_tried_in_place_with_numbers_and_with_an_image_that_is_dropped(
    browser: Browser, service: Served
) -> None:
    make_versions(service)

    browser.sign_in()
    with serving(service) as received:
        browser.open(PATH)
        browser.until(lambda: "[[0.0, 0.0], [0.0, 0.0]]" in browser.one("#try-instances").get_property("value"))
        browser.one("#try button.primary").click()
        browser.until(lambda: "Version v1 answered in" in browser.one("#try-result").text)
        assert all(button.is_displayed() for button in browser.all("#try-result button")), "the lines can be copied"
        assert browser.driver.current_url == f"{service.url}{PATH}", "the page stays"
        browser.one("#try-instances").clear()
        browser.one("#try-instances").send_keys("[]")
        browser.one("#try button.primary").click()
        browser.until(lambda: "allowed: a list of one <b>instance</b> or more" in browser.one("#try-result").text)
        browser.driver.execute_script(DROP)
        assert (
            browser.driver.execute_script("return document.querySelector('[name=image]').files[0].name") == "seven.png"
        )
        browser.one("#try button.primary").click()
        browser.until(lambda: "base64 -w0 < seven.png" in browser.one("#try-result").text)
        assert base64.b64decode(received[-1]["instances"][0]["b64"]) == b"\x89PNG"
        assert len(received) == 3
    assert browser.problems() == [], "no script fails, and the content security policy is kept"
