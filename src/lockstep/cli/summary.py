"""Prints a job's summary, for `describe`, and for `submit` when the job has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lockstep.cli.console import OUTPUT, duration, local_time, progress_text, simulated_suffix
from lockstep.cli.trials import is_search, print_trials
from lockstep.errors import counted

if TYPE_CHECKING:
    from rich.table import Table

LATE_S: Final = 5.0
"""An event that was recorded at least this many seconds after it happened is shown with both times."""

_COLOURS = {"SUCCEEDED": "green", "FAILED": "red", "CANCELLED": "yellow"}


def print_summary(job: Mapping[str, Any], events: Sequence[Mapping[str, Any]], *, models: Sequence[str]) -> None:
    """Prints a job: its state, transitions, replicas, cost and outputs.

    Args:
        job: the job, in the contract's JSON form.
        events: the job's events, the oldest first.
        models: the URLs of the job's models, or of its model folder; see `model_urls`.
    """
    from rich.text import Text  # here, because commands that print no summary start without it

    own = job["lockstep"]
    state = Text(job["state"], style=_COLOURS.get(job["state"], ""))
    OUTPUT.print(Text.assemble(f"job {job['jobId']}: ", state, simulated_suffix(job)))
    OUTPUT.print(f"  submitted by: {own['submittedBy']}")
    if own["waitingFor"]:
        OUTPUT.print(f"  waiting for: {own['waitingFor']}")
    if own["progress"] is not None:
        is_running = job["state"] == "RUNNING"
        OUTPUT.print(f"  progress: {progress_text(own['progress']) if is_running else own['progress']['text']}")
    if "predictionOutput" in job:
        OUTPUT.print(f"  predicted: {_predicted(job['predictionOutput'])}")
    if own["endReason"]:
        OUTPUT.print(f"  ended: {own['endReason']}")
    if own["numRestarts"]:
        OUTPUT.print(f"  restarts: {own['numRestarts']}")
    if job.get("errorMessage"):
        OUTPUT.print(f"  error: {job['errorMessage']}")
    OUTPUT.print("  transitions")
    previous: datetime | None = None
    for event in events:
        time = datetime.fromisoformat(event["time"])
        after = "" if previous is None else f"+{duration((time - previous).total_seconds())}"
        late_s = (datetime.fromisoformat(event["recordedTime"]) - time).total_seconds()
        late = f" (recorded {local_time(event['recordedTime'])})" if late_s >= LATE_S else ""
        OUTPUT.print(f"    {local_time(event['time'])}  {after:<12} {event['state']:<11} {event['detail']}{late}")
        previous = time
    if is_search(job):
        print_trials(job)
    if own["attempts"]:
        OUTPUT.print("  attempts")
        OUTPUT.print(_attempts(own["attempts"]))
    if own["replicas"]:
        OUTPUT.print("  replicas")
        OUTPUT.print(_replicas(own["replicas"]))
    bill = own["bill"]
    if bill is not None:
        OUTPUT.print(f"  cost: {bill['text']} ({bill['note']})")
    elif own["accrued"] is not None:
        OUTPUT.print(f"  cost so far: {own['accrued']['text']} ({own['accrued']['note']})")
    if own["nodes"] is not None:
        OUTPUT.print(f"  its nodes: {own['nodes']['text'] or 'none started'} ({own['nodes']['note']})")
    for hook in own["webhooks"] or ():
        _print_webhook(hook)
    OUTPUT.print("  in the bucket")
    for name, url in own["outputs"].items():
        for place in models if name == "model" else (url,):
            OUTPUT.print(f"    {name:<12} {place}")


def _predicted(output: Mapping[str, Any]) -> str:
    # The contract writes these numbers as strings.
    parts = [
        f"{output[key]} {noun if output[key] == '1' else noun + 's'}"
        for key, noun in (("predictionCount", "instance"), ("errorCount", "error"))
    ]
    if "nodeHours" in output:
        parts.append(f"{output['nodeHours']:.3f} node hours")
    return ", ".join(parts)


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table  # as above

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("    ATTEMPT", no_wrap=True)
    for title in ("START", "END", "MACHINE TIME", "ML UNITS", "COST", "ENDED"):
        table.add_column(title, no_wrap=True)
    for attempt in attempts:
        latest = attempt["latestEndTime"]
        table.add_row(
            f"    {attempt['attempt']}",
            local_time(attempt["startTime"]),
            local_time(attempt["endTime"]) + ("" if latest is None else f", or up to {local_time(latest)}"),
            f"{float(attempt['machineSeconds']):,.1f} s",
            attempt["mlUnits"] or "unpriced",
            "unpriced" if attempt["costUsd"] is None else f"${attempt['costUsd']}",
            _ended(attempt),
        )
    if len(attempts) > 1:
        seconds, units, usd = (
            sum((Decimal(attempt[name]) for attempt in attempts if attempt[name] is not None), Decimal(0))
            for name in ("machineSeconds", "mlUnits", "costUsd")
        )
        table.add_row("    all", "", "", f"{float(seconds):,.1f} s", str(units), f"${usd}", "")
    return table


def _ended(attempt: Mapping[str, Any]) -> str:
    if attempt["endTime"] is None:
        return "runs"
    return attempt["endReason"] or "succeeded"


def _print_webhook(hook: Mapping[str, Any]) -> None:
    trouble = f": not notified since {local_time(hook['since'])}: {hook['problem']}" if hook["problem"] else ""
    if hook["numDropped"]:
        changes = counted(hook["numDropped"], "state change")
        trouble += f"; {changes} never delivered, because the webhook failed for days"
    OUTPUT.print(f"  webhook {hook['place']}{trouble}", style="red" if trouble else "")


def _state(replica: Mapping[str, Any]) -> str:
    number = len(replica.get("restarts", ()))  # not recorded for jobs that ended long ago
    again = f", relaunched {counted(number, 'time')}" if number else ""
    return f"{replica['end'] or replica['phase']}{again}"


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table  # as above

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("    REPLICA", no_wrap=True)
    for title in ("MACHINE", "STATE", "RAN", "CPU", "PEAK MEMORY"):
        table.add_column(title, no_wrap=True)
    for replica in replicas:
        wall_s, cpu_s = replica["wallSeconds"], replica["cpuSeconds"]
        cores = f" ({cpu_s / wall_s:.2f} cores)" if wall_s > 0 else ""
        table.add_row(
            f"    {replica['name']}",
            replica["machine"],
            _state(replica),
            duration(wall_s),
            f"{duration(cpu_s)}{cores}",
            f"{replica['peakMemoryBytes'] / 2**20:.0f} MiB",
        )
    return table
