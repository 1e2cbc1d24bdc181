"""Lighthouse's scores of the console's pages, where it is installed: ``npm install --global lighthouse@12``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.console.browsers import CHROMIUM, needs_chromium
from tests.service.console.filled import filled, paths_of_pages

from lockstep.service.console.signing_in import COOKIE
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

LIGHTHOUSE = shutil.which("lighthouse")
pytestmark = [
    pytest.mark.heavy,
    needs_chromium,
    pytest.mark.skipif(LIGHTHOUSE is None, reason="Lighthouse is not installed (npm install --global lighthouse@12)"),
]
CATEGORIES = ("accessibility", "best-practices")
LEAST_SCORE = 0.95
AUDIT_S = 180


def audit(url: str, paths: Mapping[str, str], *, headers: Path, folder: Path) -> dict[str, Any]:
    """Returns the scores of pages, and the audits that failed, by the names of the pages."""
    scores: dict[str, Any] = {}
    for name, path in paths.items():
        report = folder / f"{name}.json"
        command = [str(LIGHTHOUSE), f"{url}{path}", "--quiet", "--output=json", f"--output-path={report}"]
        command += [f"--only-categories={','.join(CATEGORIES)}", f"--extra-headers={headers}"]
        command += ["--chrome-flags=--headless=new --no-sandbox --disable-dev-shm-usage"]
        environment = {**os.environ, "CHROME_PATH": str(CHROMIUM)}
        subprocess.run(command, check=True, timeout=AUDIT_S, env=environment)
        found = json.loads(report.read_text())
        failed = [audit["id"] for audit in found["audits"].values() if audit["score"] == 0]
        scores[name] = {category: found["categories"][category]["score"] for category in CATEGORIES}, failed
    return scores


@pytest.mark.timeout(900)
def test_every_page_scores_95_for_accessibility_and_best_practices(
    service: Served, bench: Bench, tmp_path: Path
) -> None:
    with (
        filled(service, bench),
        httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as browser,
    ):
        browser.post("/signin", data={"key": HOME_TOKEN})
        headers = tmp_path / "headers.json"
        headers.write_text(json.dumps({"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}))
        scores = audit(service.url, {"signin": "/signin", **paths_of_pages(bench)}, headers=headers, folder=tmp_path)
    print(json.dumps(scores, indent=2))
    assert [name for name, (score, _) in scores.items() if min(score.values()) < LEAST_SCORE] == [], scores
