"""The load: wrk sends one request over some connections for some seconds, and says what came of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("load.lua")
ANSWER_TIMEOUT_S: Final = 60
"""An answer that takes longer is an error. wrk's own 2 s would hide how long slow answers take."""


def send_load(
    url: str, *, wrk: str, body: Path, authorization: str | None, num_connections: int, seconds: int
) -> dict[str, float | None]:
    """Sends requests until the time is over.

    Args:
        url: where to.
        wrk: the path of wrk.
        body: the file with the request's JSON.
        authorization: the header of that name.
        num_connections: how many connections, each of which has one request at a time.
        seconds: how long.

    Returns:
        Answers with a status of success a second; the median of the time to an answer and its 99th percentile, None
        where no answer came; and the number of errors: answers with another status, and requests that were not answered
        in time or whose connection broke. Those in progress when the load ends do not count.

    Raises:
        RuntimeError: wrk failed.
    """
    options = [f"--connections={num_connections}", f"--duration={seconds}s", f"--timeout={ANSWER_TIMEOUT_S}s"]
    environment = {**os.environ, "LOAD_BODY": str(body)}
    if authorization is not None:
        environment["LOAD_AUTHORIZATION"] = authorization
    done = subprocess.run(
        [wrk, "--threads=1", *options, f"--script={SCRIPT}", url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * ANSWER_TIMEOUT_S,
    )
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        raise RuntimeError(f"wrk ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    found = json.loads(last)
    num_failed = sum(found[kind] for kind in ("connect", "read", "write", "timeout"))
    return {
        "requests_per_s": (found["requests"] - found["status"]) / (found["duration_us"] / 1e6),
        "p50_ms": found["p50_us"] / 1e3 if found["requests"] else None,
        "p99_ms": found["p99_us"] / 1e3 if found["requests"] else None,
        "num_errors": found["status"] + num_failed,
    }
