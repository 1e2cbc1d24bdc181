"""``lockstep status``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import ERRORS, OUTPUT, budget_text, connect, local_time, progress_text
from lockstep.errors import UnavailableError
from lockstep.home import Home


@answers("ServiceForm")
def status() -> Answer:
    """Show the state of the service."""
    try:
        client = connect()
    except UnavailableError:
        _show_death(Home.from_env())
        raise
    with client:
        service = client.service()
    return Answer(show=lambda: _show(service), document=service)


def _show(service: Mapping[str, Any]) -> None:
    OUTPUT.print(f"lockstep {service['version']} is up since {local_time(service['startTime'])}, pid {service['pid']}")
    OUTPUT.print(f"home        {service['home']}")
    OUTPUT.print(f"database    {service['database']}")
    OUTPUT.print(f"bucket      {service['bucket']}")
    OUTPUT.print(f"programs    run {service['programs']}")
    for name, text in service["engine"].items():
        OUTPUT.print(f"{name:<11} {text}")
    OUTPUT.print(f"keeper      {service['keptBy'] or 'none: the service is not restarted if it dies'}")
    death = service["lastDeath"]
    if death is not None:
        OUTPUT.print(f"last died   {local_time(death['time'])}: the service {death['how']}; {death['then']}")
    for problem in service["problems"]:
        OUTPUT.print(
            f"problem     {problem['part']} since {local_time(problem['since'])}: {problem['text']}", style="red"
        )
        if problem["kept"]:
            OUTPUT.print(f"            kept until it is resolved: {problem['kept']}")
    for budget in service["budgets"]:
        OUTPUT.print(f"budget      {budget_text(budget)}")
    for hook in service["webhooks"]:
        trouble = f": not notified since {local_time(hook['since'])}: {hook['problem']}" if hook["problem"] else ""
        OUTPUT.print(f"webhook     {hook['name']} at {hook['place']}{trouble}", style="red" if trouble else "")
    if service["jobs"] is None:
        OUTPUT.print("open jobs   unknown: the database does not respond")
        return
    if service["controller"] != "this service":
        OUTPUT.print(f"standby     {service['controller']} controls the jobs")
    counts = ", ".join(f"{number} {state}" for state, number in sorted(service["jobs"].items())) or "none"
    OUTPUT.print(f"open jobs   {counts} (at most {service['maxRunningJobs']} run at once)")
    for job in service["running"]:
        if job["progress"] is not None:
            OUTPUT.print(f"running     {job['jobId']}: {progress_text(job['progress'])}")
    for version in service["versions"]:
        problem = f": {version['errorMessage']}" if version["errorMessage"] else ""
        OUTPUT.print(f"model       {version['name']} {version['state']}{problem}")


def _show_death(home: Home) -> None:
    """Prints how the service of a home died the last time, for when no service responds."""
    # Imported here because only a service that is away needs them.
    from lockstep.client import find_service
    from lockstep.service.process.ends import read_death, unobserved_death

    end = None if find_service(home) is not None else unobserved_death(home, now_s=time.time())
    end = end or read_death(home)
    if end is not None:
        ERRORS.print(f"the service of {home.path} last died {local_time(end.time_s)}: it {end.how}; {end.followed_by}")
