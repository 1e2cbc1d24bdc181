"""``lockstep models describe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.completing import complete_version
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time
from lockstep.cli.models.servers import num_ready, num_wanted, or_dash, scaling_text
from lockstep.cli.operations import short_name, split_version, waiting_for
from lockstep.cli.traffic import traffic_of, traffic_text


@answers("ModelForm", "VersionForm")
def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[/VERSION]", help="The model, or one of its versions.", autocompletion=complete_version
        ),
    ],
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Show a model, or a version: its state, what it waits for, its prediction servers, and what they serve."""
    model, version = split_version(name)
    with connect(project) as client:
        if version is not None:
            found = client.version(model, name=version)
            names = []
        else:
            found = client.model(model)
            is_json = output_format is Format.JSON
            names = [] if is_json else [short_name(each) for each in client.versions(model)]

    def show() -> None:
        if version is not None:
            _print_version(found, model=model)
        else:
            _print_model(found, versions=names)

    return Answer(show=show, document=found)


def _print_model(model: Mapping[str, Any], *, versions: list[str]) -> None:
    default = model.get("defaultVersion")
    OUTPUT.print(f"model {short_name(model)}")
    _print_notes(model)
    shown = "none" if default is None else f"{short_name(default)} ({default['state']})"
    OUTPUT.print(f"  default version: {shown}")
    OUTPUT.print(f"  traffic: {traffic_text(traffic_of(model))}")
    kept = f" (at most {number} are kept)" if (number := model.get("lockstep", {}).get("maxVersions")) else ""
    OUTPUT.print(f"  versions: {', '.join(versions) or 'none'}{kept}")
    OUTPUT.print(f"  path of requests: POST /v1/{model['name']}:predict")
    if changes := model.get("lockstep", {}).get("trafficChanges"):
        OUTPUT.print("  changes of the traffic, the latest first:")
    for change in changes or ():
        text = traffic_text(change["trafficSplit"])
        OUTPUT.print(f"    {local_time(change['time'])}  {text}, by {change['changedBy']}")


def _print_version(version: Mapping[str, Any], *, model: str) -> None:
    default = " (default)" if version.get("isDefault") else ""
    OUTPUT.print(f"version {model}/{short_name(version)}{default}: {version['state']}")
    if waits := waiting_for(version):
        OUTPUT.print(f"  waiting for: {waits}")
    if error := version.get("errorMessage"):
        OUTPUT.print(f"  error: {error}")
    _print_notes(version)
    OUTPUT.print(f"  created: {local_time(version['createTime'])}")
    if last_use := version.get("lastUseTime"):
        OUTPUT.print(f"  last request: {local_time(last_use)}")
    OUTPUT.print(f"  servers: {or_dash(num_ready(version))} of {or_dash(num_wanted(version))} ready")
    OUTPUT.print(f"  number of servers: {scaling_text(version)}")
    OUTPUT.print(f"  machine type: {version['machineType']}{_accelerator_text(version)}")
    _print_served(version)
    if batching := version.get("lockstep", {}).get("batching"):
        OUTPUT.print(f"  batches: up to {batching['maxBatchSize']} instances, which wait {batching['maxLatency']}")
    if logging := version.get("lockstep", {}).get("requestLogging"):
        OUTPUT.print(f"  logged requests: {100 * logging['samplingPercentage']:g}% of all, to {logging['uri']}")
    OUTPUT.print(f"  path of requests: POST /v1/{version['name']}:predict")


def _accelerator_text(version: Mapping[str, Any]) -> str:
    accelerator = version.get("acceleratorConfig")
    return "" if accelerator is None else f" with {accelerator['count']} x {accelerator['type']}"


def _print_served(version: Mapping[str, Any]) -> None:
    """Prints what the servers of a version run: a model, a routine or a container, and its files."""
    container, routine = version.get("container"), version.get("predictionClass")
    if container is not None:
        OUTPUT.print(f"  image: {container['image']}")
        for title, words in (("command", container.get("command")), ("arguments", container.get("args"))):
            if words:
                OUTPUT.print(f"  {title}: {' '.join(words)}")
        OUTPUT.print(f"  port: {', '.join(str(port['containerPort']) for port in container['ports'])}")
        OUTPUT.print(f"  routes: {version['routes']['predict']} (predictions), {version['routes']['health']} (health)")
    if routine is not None:
        OUTPUT.print(f"  prediction class: {routine}")
    for title, field in (("framework", "framework"), ("Python version", "pythonVersion")):
        if value := version.get(field):
            OUTPUT.print(f"  {title}: {value}")
    if url := version["deploymentUri"]:
        OUTPUT.print(f"  {'model file' if container is routine is None else 'files'}: {url}")
    for package in version.get("packageUris", ()):
        OUTPUT.print(f"  package: {package}")


def _print_notes(resource: Mapping[str, Any]) -> None:
    if description := resource.get("description"):
        OUTPUT.print(f"  description: {description}")
    if labels := resource.get("labels"):
        OUTPUT.print(f"  labels: {', '.join(f'{key}={value}' for key, value in sorted(labels.items()))}")
