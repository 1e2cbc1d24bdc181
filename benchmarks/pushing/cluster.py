"""A side of `benchmarks/parameter_server.py`, of several processes: ``python -m pushing.cluster ORDER``.

It starts one server, workers and a coordinator on loopback, each by TF_CONFIG, and says what they used while the clock
ran. The standard library alone: it runs in TensorFlow's environment, too.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.addresses import LOOPBACK, free_ports
from harness.machine import processor_s
from harness.protocol import read_order, say, serve_rounds
from harness.sides import Side, SideSpec


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Trains once.

    Args:
        order: its ``module`` is the program of all roles, ``num_workers`` counts the workers, and ``logs`` is the
            folder for messages. With ``ends``, all roles end by themselves; else they are killed once the coordinator
            has said what came of it. The rest is for the program.

    Returns:
        What the coordinator said, with ``wall_s``, the processor seconds by role, and what was asked of the server.
    """
    addresses = [f"{LOOPBACK}:{port}" for port in free_ports(order["num_workers"] + 2)]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    log = Path(order["logs"]) / "ps-0.log"
    with ExitStack() as stack:
        sides: dict[str, list[Side]] = {}
        for role in ("ps", "worker", "chief"):
            for index in range(len(cluster[role])):
                task = {"type": role, "index": index}
                spec = SideSpec(
                    title=f"{role} {index}",
                    module=order["module"],
                    order=order,
                    variables={"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "JAX_PLATFORMS": "cpu"},
                )
                side = Side(spec, log=log.with_name(f"{role}-{index}.log"))
                stack.callback(side.end if order["ends"] else side.kill)
                sides.setdefault(role, []).append(side)
        said = follow(sides)
    return {"counted": asked_in(log.read_text()), **said} if order["ends"] else said


def follow(sides: dict[str, list[Side]]) -> dict[str, Any]:
    """Lets the coordinator's clock start and stop, and returns what was used meanwhile with what it says then."""
    (chief,) = sides["chief"]
    chief.hear()
    before = used_s(sides)
    started_s = time.perf_counter()
    chief.ask()
    chief.hear()
    wall_s = time.perf_counter() - started_s
    used = {role: spent - before[role] for role, spent in used_s(sides).items()}
    return {"wall_s": wall_s, **used, **chief.answer()}


def used_s(sides: dict[str, list[Side]]) -> dict[str, float]:
    """Returns the processor seconds that the processes of each role have used so far."""
    return {role: sum(processor_s(side.pid) for side in members) for role, members in sides.items()}


def asked_in(log: str) -> str:
    """Returns what Lockstep's server says that it was asked for, and how many pushes it has applied."""
    (asked,) = re.findall(r"was asked: (.*)", log)
    (applied,) = re.findall(r"has applied (\d+) pushes", log)
    return f"{applied} pushes applied; asked: {asked}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    asked = read_order()
    say({})
    serve_rounds(lambda: run(asked))
