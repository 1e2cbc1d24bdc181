"""A person's way through the console in Chromium, from the link that signs in to a prediction, with a real service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.service.console.browsers import Browser, needs_chromium

from lockstep.testing.machine import Machine

pytestmark = [pytest.mark.heavy, needs_chromium]

WAIT_S = 180.0
HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"
SCRIPT = f"""
import os
import sys
import time

import lockstep  # before Keras
import keras
import numpy as np

print({HOSTILE!r}, flush=True)
print("WARNING: the data are invented", flush=True)
numbers = np.random.default_rng(1)
images, labels = numbers.integers(0, 256, (256, 8, 8)).astype("uint8"), numbers.integers(0, 10, 256)


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {{epoch}} loss {{logs['loss']:.3f}}", flush=True)
        time.sleep(float(sys.argv[1]))


with lockstep.strategies.from_env().scope():
    layers = [keras.Input((8, 8)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
curves = lockstep.training.TensorBoard(os.environ["AIP_TENSORBOARD_LOG_DIR"])
model.fit(images, labels, epochs=20, verbose=0, callbacks=[curves, Slow()])
lockstep.training.save_model(model, os.environ["AIP_MODEL_DIR"])
"""
DROP = """
const zone = document.querySelector("[data-drop]"), moved = new DataTransfer(), done = arguments[0];
const canvas = document.createElement("canvas");
canvas.width = canvas.height = 8;
canvas.toBlob((blob) => {
  moved.items.add(new File([blob], "seven.png", {type: "image/png"}));
  zone.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
  done();
});
"""


@pytest.fixture
def browser(machine: Machine) -> Browser:
    with machine.client() as client:
        made = Browser(client.url, wait_s=WAIT_S)
        made.driver.get(client.console_url())
    return made


def fill_in(browser: Browser, **fields: str) -> None:
    """Fills in fields of a form, by the ends of their names."""
    for name, text in fields.items():
        field = browser.one(f"#job-form [name$='{name}']")
        field.clear()
        field.send_keys(text)


def submit(browser: Browser, name: str) -> None:
    browser.until(lambda: "can be submitted" in browser.text("#verdict"))
    browser.one("button.primary").click()
    browser.until(lambda: browser.text("h1") == f"Job {name}")


def num_steps(browser: Browser) -> int:
    """Returns at how many steps the longest curve is drawn."""
    lines = [line.get_attribute("d") for line in browser.all("#curves path.line")]
    return max((len(re.findall("[ML]", line)) for line in lines), default=0)


def test_a_person_submits_watches_compares_deploys_predicts_and_signs_out(
    browser: Browser, machine: Machine, tmp_path: Path
) -> None:
    try:
        browser.until(lambda: browser.text("h1") == "Jobs")
        train_two_jobs_and_compare_them(browser, tmp_path)
        deploy_and_predict(browser)
        cancel_a_job(browser)
        browser.one("header form button").click()
        browser.until(lambda: browser.text("h1") == "Sign in")
        browser.open("/jobs")
        assert browser.text("h1") == "Sign in"
        assert browser.requested() == {browser.url}, "nothing leaves the machine"
        assert browser.problems() == [], "no script fails, and the content security policy is kept"
    finally:
        browser.driver.quit()
    with machine.client() as client:
        assert {job["jobId"]: job["state"] for job in client.jobs()} == {
            "first": "SUCCEEDED",
            "first_2": "SUCCEEDED",
            "first_3": "CANCELLED",
        }


def train_two_jobs_and_compare_them(browser: Browser, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    browser.all("a[href*='jobs:new']")[0].click()
    browser.until(lambda: browser.text("h1") == "Submit a job")
    browser.one("[name=code]").send_keys(str(script))
    fill_in(browser, jobId="first", args="1.5")
    browser.one("button[value=check]").click()
    submit(browser, "first")
    browser.until(lambda: "epoch 1" in browser.text("#log-entries"))
    assert HOSTILE in browser.text("#log-entries")
    assert browser.all("#log-entries img") == []
    browser.until(lambda: num_steps(browser) >= 2)
    before = num_steps(browser)
    browser.until(lambda: num_steps(browser) > before)  # without a reload
    browser.until(lambda: "Succeeded" in browser.text("#status"))
    browser.one("#log input[type=search]").send_keys("severity>=WARNING")
    browser.one("#log form button").click()
    browser.until(lambda: "the data are invented" in browser.text("#log-entries"))
    assert "epoch" not in browser.text("#log-entries")

    browser.one("a[href*='clone=first']").click()
    browser.until(lambda: browser.text("h1") == "Submit a job")
    fill_in(browser, args="0")
    submit(browser, "first_2")
    browser.until(lambda: "Succeeded" in browser.text("#status"))
    browser.open("/jobs")
    for name in ("first", "first_2"):
        browser.one(f"#compare-{name}").click()
    browser.one("#compare button").click()
    browser.until(lambda: browser.text("h1") == "Compare jobs")
    for legend in browser.all(".legend"):
        assert {"first train", "first_2 train"} <= {line.partition(":")[0] for line in legend.text.split("\n")}
    assert '["1.5"]' in browser.text("main")
    assert '["0"]' in browser.text("main")


def deploy_and_predict(browser: Browser) -> None:
    browser.open("/models?job=first")
    browser.one("#deploy [name=model]").send_keys("digits")
    browser.one("#deploy button.primary").click()
    browser.until(lambda: browser.text("h1") == "Model digits")
    browser.until(lambda: "Ready" in browser.text("#versions"))
    browser.open("/projects/local/models/digits")
    browser.until(lambda: browser.one("#try-instances").get_property("value"))
    browser.driver.execute_async_script(DROP)
    browser.one("#try button.primary").click()
    browser.until(lambda: "Version v1 answered in" in browser.text("#try-result"))
    assert "base64 -w0 < seven.png" in browser.text("#try-result")
    assert len(re.findall(r"0\.\d+", browser.text("#try-result"))) >= 10, "ten numbers are predicted"


def cancel_a_job(browser: Browser) -> None:
    browser.open("/projects/local/jobs:new?clone=first")
    fill_in(browser, args="60")
    submit(browser, "first_3")
    browser.until(lambda: "epoch 0" in browser.text("#log-entries"))
    browser.driver.execute_script("window.confirm = () => true")
    browser.one("#status button.danger").click()
    browser.until(lambda: "Cancelled" in browser.text("#status"))
