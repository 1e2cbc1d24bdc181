"""``lockstep submit --dry-run``: the preview of a job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.cli.answers import Answer
from lockstep.cli.console import OUTPUT, duration, local_time, size
from lockstep.errors import InvalidInputError, LockstepError, counted
from lockstep.home import Home
from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.machines.catalogue import load_catalogue

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.client import Client


def dry_run_answer(body: Mapping[str, Any], *, project: str, client: Client | None, python: str) -> Answer:
    """Returns the preview of a job, without recording the job, with an error if the job could not run.

    Args:
        body: the job, in the form in which it would be submitted.
        project: the job's project.
        client: a client of the service, which knows its accelerators and its queue; None leaves both unknown.
        python: a description of the Python environment.
    """
    document = _preview(body, project=project) if client is None else client.preview_job(body)
    problem = document.get("problem")
    return Answer(
        show=lambda: _show(document, project=project, is_asked=client is not None, python=python),
        document=document,
        error=None if problem is None else InvalidInputError(problem),
    )


def _show(document: Mapping[str, Any], *, project: str, is_asked: bool, python: str) -> None:
    replicas = document["replicas"]
    OUTPUT.print(f"job {document['jobId']} of project {project}, not submitted")
    if "search" in document:
        _print_search(document["search"])
    OUTPUT.print("  replicas")
    OUTPUT.print(_table(replicas, is_asked=is_asked))
    _print_container(replicas[0]["container"])
    OUTPUT.print(f"  command: {shlex.join(replicas[0]['command'])}")
    for url in replicas[0]["packages"]:
        OUTPUT.print(f"    with {url}")
    OUTPUT.print(f"  Python environment: {python}")
    _print_environment(replicas, passed_on=document["passedOn"])
    OUTPUT.print("  outputs")
    for name, url in document["outputs"].items():
        OUTPUT.print(f"    {name:<12} {url}")
    _print_webhooks(document.get("trainingInput", {}).get("lockstep", {}).get("webhooks", ()))
    _print_price(document["price"])
    if document.get("simulated"):
        OUTPUT.print("    simulated machines: nothing is owed")
    if "problem" not in document:
        _print_queue(document.get("queue"))


def _preview(body: Mapping[str, Any], *, project: str) -> Mapping[str, Any]:
    # Imported here because the service's rooms take a while to import, and other commands do not need them.
    from lockstep.service.api.control.preview import NoAccelerators, preview
    from lockstep.service.control.containers import check_containers
    from lockstep.service.settings import Settings

    home = Home.from_env()
    settings = Settings(home=home, bucket=str(home.bucket))
    request = parse_job(body, source="flags")
    catalogue = load_catalogue()
    document = preview(request, project=project, settings=settings, catalogue=catalogue, cluster=NoAccelerators())
    try:
        gang = resolve(request.training_input, catalogue=catalogue)
        check_containers(gang, outputs=document["outputs"], settings=settings)
    except LockstepError as error:
        return {**document, "problem": str(error)}
    return document


def _print_search(search: Mapping[str, Any]) -> None:
    point = ", ".join(f"{name}={value}" for name, value in search["firstTrial"].items())
    trials = counted(search["numTrials"], "trial")
    OUTPUT.print(f"  a search: at most {trials}, {search['numParallelTrials']} at a time; the price is that of these")
    OUTPUT.print(f"  its first trial: {point}")


def _print_container(container: Mapping[str, Any] | None) -> None:
    if container is None:
        return
    limits = "the whole node: machine types reserve nothing on this engine"
    if container["memoryBytes"] is not None:
        limits = f"{container['cpus']} processors, {size(container['memoryBytes'])} of memory"
    OUTPUT.print(f"  image: {container['image']}")
    OUTPUT.print(f"    may use {limits}")
    for path in container["readable"]:
        OUTPUT.print(f"    may read {path}")


def _table(replicas: Sequence[Mapping[str, Any]], *, is_asked: bool) -> Table:
    from rich.table import Table  # here, because the preview as JSON needs none

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("    REPLICA", no_wrap=True)
    for title in ("MACHINE", "VCPUS", "MEMORY", "ACCELERATORS"):
        table.add_column(title, no_wrap=True)
    for replica in replicas:
        accelerators = "-"
        if "LOCKSTEP_ACCELERATORS" in replica["environment"]:
            accelerators = (
                ("simulated" if replica["acceleratorsSimulated"] else "real") if is_asked else "simulated, or real"
            )
        table.add_row(
            f"    {replica['name']}",
            replica["machine"],
            str(replica["vcpus"]),
            f"{replica['memoryGib']:g} GiB",
            accelerators,
        )
    return table


def _print_environment(replicas: Sequence[Mapping[str, Any]], *, passed_on: Sequence[str]) -> None:
    first = replicas[0]["environment"]
    OUTPUT.print(f"  environment of {replicas[0]['name']}")
    for name, value in sorted(first.items()):
        OUTPUT.print(f"    {name}={value}")
    OUTPUT.print(f"    and these of the node, if set: {', '.join(passed_on)}")
    others = [replica["environment"] for replica in replicas[1:]]
    names = sorted({name for other in others for name in first | other if first.get(name) != other.get(name)})
    if names:
        OUTPUT.print(f"    the other replicas have their own {', '.join(names)}")


def _print_webhooks(hooks: Sequence[Mapping[str, Any]]) -> None:
    for hook in hooks:
        states = ", ".join(hook.get("states", ())) or "all states"
        signed = f"signed with the secret {hook['secret']}" if "secret" in hook else "not signed"
        OUTPUT.print(f"  webhook: {hook['url']} is notified of {states}, {signed}")


def _print_price(price: Mapping[str, Any]) -> None:
    longest = duration(price["maxRunningSeconds"])
    OUTPUT.print(f"  list price: {_cost(price['hour'])} an hour; at most {_cost(price['most'])} in {longest}")
    if price["lists"]:
        OUTPUT.print(
            f"    by {' and '.join(price['lists'])}; one ML unit is ${price['mlUnitUsd']} in {price['region']}"
        )
    if price["hour"]["unpriced"]:
        OUTPUT.print(f"    no published price, not included: {', '.join(price['hour']['unpriced'])}")


def _cost(cost: Mapping[str, Any]) -> str:
    return "unknown" if cost["costUsd"] is None else f"${cost['costUsd']} ({cost['mlUnits']} ML units)"


def _print_queue(queue: Mapping[str, Any] | None) -> None:
    if queue is None:
        OUTPUT.print("  queue: unknown, since no service runs (start one with `lockstep up`)")
        return
    OUTPUT.print(f"  needs from the nodes: {', '.join(queue['needs'])}")
    if queue["startsNow"]:
        OUTPUT.print("  queue: it would start at once")
        return
    latest = "" if queue["startBySeconds"] is None else f"; it would start by {local_time(queue['startBySeconds'])}"
    OUTPUT.print(f"  queue: position {queue['position']}: {queue['reason']}{latest}")
