"""``lockstep models describe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, local_time, print_json
from lockstep.cli.models.versions import servers_text
from lockstep.cli.operations import short_name, split_version, waiting_for
from lockstep.cli.traffic import traffic_of, traffic_text


def describe(
    name: Annotated[str, typer.Argument(metavar="MODEL[/VERSION]", help="The model, or one of its versions.")],
    project: ProjectOption = DEFAULT_PROJECT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the contract's JSON.")] = False,
) -> None:
    """Show a model, or a version: its state, what it waits for, and where its file is."""
    model, version = split_version(name)
    with connect(project) as client:
        if version is not None:
            found = client.version(model, name=version)
            names = []
        else:
            found = client.model(model)
            names = [] if as_json else [short_name(each) for each in client.versions(model)]
    if as_json:
        print_json(found, indent=2)
    elif version is not None:
        _print_version(found, model=model)
    else:
        _print_model(found, versions=names)


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
    OUTPUT.print(f"  servers: {servers_text(version)}, of machine type {version['machineType']}")
    OUTPUT.print(f"  model file: {version['deploymentUri']}")
    for package in version.get("packageUris", ()):
        OUTPUT.print(f"  package: {package}")
    OUTPUT.print(f"  path of requests: POST /v1/{version['name']}:predict")


def _print_notes(resource: Mapping[str, Any]) -> None:
    if description := resource.get("description"):
        OUTPUT.print(f"  description: {description}")
    if labels := resource.get("labels"):
        OUTPUT.print(f"  labels: {', '.join(f'{key}={value}' for key, value in sorted(labels.items()))}")
