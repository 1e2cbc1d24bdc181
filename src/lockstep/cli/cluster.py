"""``lockstep cluster``: chooses and shows the machines that jobs run on."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import OUTPUT, connect, local_time, print_line
from lockstep.cli.help import App
from lockstep.errors import ConfigError, CorruptDataError, StorageWriteError, WrongStateError
from lockstep.home import Home

# The commands import these rooms when they run, so that the help and `cluster nodes` start without them.
if TYPE_CHECKING:
    from lockstep.clusters import EngineChoice


@final
class ClusterForm(StrEnum):
    """The format in which a cluster's definition is written."""

    RAY = "ray"
    KUBERAY = "kuberay"


app = App("Choose and show the machines that jobs run on.", name="cluster")


@app.command("use")
@answers("ClusterChoiceForm", hints=True)
def use(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with the cluster's definition; see docs/clusters.md.")
    ],
) -> Answer:
    """Run jobs on machines that are created and deleted as the queue needs them.

    Takes effect with the next `lockstep up`.
    """
    from lockstep.clusters import EngineChoice
    from lockstep.clusters.choice import PROVISIONED
    from lockstep.clusters.machines.registry import check_machines
    from lockstep.jobs.machines.catalogue import load_catalogue
    from lockstep.jobs.parsing.yaml_documents import read_yaml
    from lockstep.jobs.provisioning import parse_cluster

    definition = parse_cluster(read_yaml(file, flag="FILE"), source=str(file), catalogue=load_catalogue())
    check_machines(definition, catalogue=load_catalogue())
    kinds = ", ".join(f"{kind.max_nodes} {name}" for name, kind in definition.node_types.items())
    text = f"from the next `lockstep up` on, jobs run on cluster {definition.name}: at most {kinds}"
    return _choose(EngineChoice(name=PROVISIONED, definition=definition), text)


@app.command("generate")
def generate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with the cluster's definition; see docs/clusters.md.")
    ],
    form: Annotated[
        ClusterForm | None,
        typer.Option("--format", help="Output format. Default: kuberay for a Kubernetes cluster, ray otherwise."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write to. Default: standard output.")
    ] = None,
    ssh_user: Annotated[
        str, typer.Option(help="User that Ray logs in to the machines as; only for the ray format.")
    ] = "ubuntu",
) -> None:
    """Write a cluster's definition for Ray's cluster launcher or the KubeRay operator, if one of them manages it."""
    import yaml

    from lockstep.clusters.machines.kuberay_manifest import kuberay_manifest
    from lockstep.clusters.machines.ray_cluster_file import ray_cluster_file
    from lockstep.jobs.machines.catalogue import load_catalogue
    from lockstep.jobs.parsing.yaml_documents import read_yaml
    from lockstep.jobs.provisioning import Provider, parse_cluster

    catalogue = load_catalogue()
    definition = parse_cluster(read_yaml(file, flag="FILE"), source=str(file), catalogue=catalogue)
    is_kubernetes = definition.provider.type is Provider.KUBERNETES
    form = form or (ClusterForm.KUBERAY if is_kubernetes else ClusterForm.RAY)
    if (form is ClusterForm.KUBERAY) != is_kubernetes:
        raise ConfigError(
            "--format",
            received=form.value,
            allowed=f"{'kuberay' if is_kubernetes else 'ray'} for a cluster of {definition.provider.type.value}",
        )
    if form is ClusterForm.KUBERAY:
        document = kuberay_manifest(definition, catalogue=catalogue)
    else:
        document = ray_cluster_file(definition, catalogue=catalogue, ssh_user=ssh_user)
    text = yaml.safe_dump(document, sort_keys=False)
    if output is None:
        print_line(text.removesuffix("\n"))
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise StorageWriteError(f"--output: {output} cannot be written: {error.strerror}") from None
        OUTPUT.print(f"wrote {output}")


@app.command("attach")
@answers("ClusterChoiceForm", hints=True)
def attach(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Address (host:port) of the running Ray cluster's control store (GCS)."),
    ],
) -> Answer:
    """Run jobs on the nodes of a running Ray cluster that Lockstep does not manage.

    This machine must be one of its nodes. Takes effect with the next `lockstep up`.
    """
    from lockstep.clusters import EngineChoice
    from lockstep.clusters.choice import ATTACHED

    text = f"from the next `lockstep up` on, jobs run on the Ray cluster at {address}"
    return _choose(EngineChoice(name=ATTACHED, address=address), text)


@app.command("reset")
@answers("ClusterChoiceForm", hints=True)
def reset() -> Answer:
    """Run jobs on this machine again, from the next `lockstep up` on."""
    from lockstep.clusters import EngineChoice

    return _choose(EngineChoice(), "from the next `lockstep up` on, jobs run on this machine")


@app.command("nodes")
@answers("NodeListForm", is_list=True)
def nodes(
    everything: Annotated[bool, typer.Option("--all", help="Include nodes that no longer exist.")] = False,
) -> Answer:
    """Show the cluster's nodes: when each one was requested, became ready and was released, and why."""
    with connect() as client:
        found = client.nodes(everything=everything)
    none = "no node" if found["cluster"] else "this service has no machines that are created on demand"
    return Answer.of_list(found, rows=found["nodes"], columns=COLUMNS, empty=f"{none}; see `lockstep status`")


def _ready_text(node: dict[str, Any]) -> str:
    return "-" if node["readyTime"] is None else f"{node['readySeconds']:.1f} s"


COLUMNS: Final = (
    Column(name="name", title="NODE"),
    Column(name="state", title="STATE"),
    Column(name="slot"),
    Column(name="nodeType"),
    Column(name="machine", title="MACHINE"),
    Column(name="askedTime", title="REQUESTED", text=lambda node: local_time(node["askedTime"])),
    Column(name="upTime"),
    Column(name="readyTime"),
    Column(name="readySeconds", title="READY AFTER", text=_ready_text),
    Column(name="releasedTime"),
    Column(name="downTime", title="RELEASED", text=lambda node: local_time(node["downTime"])),
    Column(name="failedTime"),
    Column(name="reason", title="REASON", text=lambda node: node["reason"] or "-", folds=True),
)


def _choose(choice: EngineChoice, text: str) -> Answer:
    """Writes the choice of an engine, and returns the answer with the text."""
    # Imported here, because the service's rooms take a while to import.
    from lockstep.service.process.lifecycle_lock import lifecycle_lock

    home = Home.from_env()
    home.create()
    with lifecycle_lock(home):
        _replace(home, choice)
    document = {
        "engine": choice.name,
        "cluster": None if choice.definition is None else choice.definition.name,
        "address": choice.address,
    }
    return Answer(show=lambda: OUTPUT.print(text), document=document, hint="to start the service: lockstep up")


def _replace(home: Home, choice: EngineChoice) -> None:
    from lockstep.client import find_service
    from lockstep.clusters import read_choice, write_choice
    from lockstep.jobs.machines.catalogue import load_catalogue

    before: EngineChoice | None = None
    with contextlib.suppress(CorruptDataError, ConfigError):  # an unreadable choice is replaced
        before = read_choice(home, catalogue=load_catalogue())
    running = find_service(home)
    # The home has the service's address until `down` has ended everything. A service that was killed left its engine,
    # jobs and machines behind, and nothing would find them again after another choice.
    was_killed = running is None and before is not None and home.address.exists()
    if choice != before and (running is not None or was_killed):
        what = "was killed, and what it started may still be running," if was_killed else "runs"
        raise WrongStateError(
            f"the service of {home.path} {what} on another cluster",
            action="stop it with `lockstep down`, choose again, then run `lockstep up`",
        )
    write_choice(home, choice)
