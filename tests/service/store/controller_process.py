"""A service's controller as a process of its own, over a database that it shares with others.

Usage: ``controller_process.py URL FOLDER NAME TTL_S [SUSPEND_BEFORE]``. It writes what it does to ``FOLDER/NAME``, a
line each, and suspends itself before the first statement or act that begins with SUSPEND_BEFORE.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from sqlalchemy import event

from lockstep.home import Home
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.service.control.controller import Controller
from lockstep.service.problems import Problems
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, Lease, ModelStore, SecretStore, connect_database
from lockstep.testing.scripted_cluster import FIRST_START_S, AttemptScript, ScriptedCluster


def main() -> None:
    url, folder, name, ttl_s, *suspend_before = sys.argv[1:]
    place = Path(folder)
    said: list[str] = []
    problems = Problems()

    def say(line: str) -> None:
        if not said or said[-1] != line:
            said.append(line)
            with (place / name).open("a") as file:
                file.write(line + "\n")

    def reach(point: str) -> None:
        if suspend_before and point.startswith(suspend_before[0]):
            suspend_before.clear()
            say("suspended")
            os.kill(os.getpid(), signal.SIGSTOP)
            say("awake")

    def begin_pass(act: str) -> None:
        if act == "start":
            say(f"generation {lease.generation}")
            for problem in problems.all():
                say(f"{problem.part}: {problem.text}")
        reach(act)

    engine = connect_database(url)
    event.listen(engine, "before_cursor_execute", lambda _c, _cur, statement, *_rest: reach(statement))
    lease = Lease(
        engine, home=name, process=f"pid {os.getpid()}", cluster="scripted", is_exclusive=False, ttl_s=float(ttl_s)
    )
    home = Home(path=place)
    controller = Controller(
        store=JobStore(engine, guard=lease.check),
        models=ModelStore(engine),
        lease=lease,
        vault=Vault(store=SecretStore(engine), key_path=home.secret_key),
        cluster=ScriptedCluster(place / "engine", script=[AttemptScript.RUNS], before_act=begin_pass),
        catalogue=load_catalogue(),
        settings=Settings(home=home, bucket=str(home.bucket), max_running_jobs=5, poll_interval_s=0.1),
        problems=problems,
        clock=lambda: FIRST_START_S,  # when the engine says that programs start
    )
    controller.run(threading.Event())


if __name__ == "__main__":
    main()
