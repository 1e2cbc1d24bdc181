"""``lockstep status``."""

from __future__ import annotations

from lockstep.cli.console import OUTPUT, budget_text, connect, local_time, progress_text


def status() -> None:
    """Show how the service is."""
    with connect() as client:
        service = client.service()
    OUTPUT.print(f"lockstep {service['version']} is up since {local_time(service['startTime'])}, pid {service['pid']}")
    OUTPUT.print(f"home        {service['home']}")
    OUTPUT.print(f"database    {service['database']}")
    OUTPUT.print(f"bucket      {service['bucket']}")
    OUTPUT.print(f"programs    run {service['programs']}")
    for name, text in service["engine"].items():
        OUTPUT.print(f"{name:<11} {text}")
    for problem in service["problems"]:
        OUTPUT.print(
            f"problem     {problem['part']} since {local_time(problem['since'])}: {problem['text']}", style="red"
        )
        if problem["kept"]:
            OUTPUT.print(f"            kept until it is over: {problem['kept']}")
    for budget in service["budgets"]:
        OUTPUT.print(f"budget      {budget_text(budget)}")
    for hook in service["webhooks"]:
        trouble = f": not told since {local_time(hook['since'])}: {hook['problem']}" if hook["problem"] else ""
        OUTPUT.print(f"webhook     {hook['name']} at {hook['place']}{trouble}", style="red" if trouble else "")
    if service["jobs"] is None:
        OUTPUT.print("open jobs   unknown: the database does not answer")
        return
    if service["controller"] != "this service":
        OUTPUT.print(f"stands by   the jobs are looked after by {service['controller']}")
    counts = ", ".join(f"{number} {state}" for state, number in sorted(service["jobs"].items())) or "none"
    OUTPUT.print(f"open jobs   {counts} (at most {service['maxRunningJobs']} run at once)")
    for job in service["running"]:
        if job["progress"] is not None:
            OUTPUT.print(f"running     {job['jobId']}: {progress_text(job['progress'])}")
    for version in service["versions"]:
        problem = f": {version['errorMessage']}" if version["errorMessage"] else ""
        OUTPUT.print(f"model       {version['name']} {version['state']}{problem}")
