"""The servers: each is started with a model, and ended, with all that it has started."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import httpx
import psutil
from harness.addresses import free_ports
from harness.environments import install, own_versions, versions
from harness.sides import HERE, environment_of
from workloads.surroundings import running_service

from lockstep.client import Client
from lockstep.serving import SERVER_TOKEN
from serving.cases import FOLDER_VARIABLE, MODEL_VARIABLE, Case
from serving.environments import COMMON, RIVALS, Rival, variables_of
from serving.processes import processes_of_home, running, tree

START_S: Final = 600.0
"""How long a server may take until it answers, in seconds."""
VERSION: Final = "v1"


class StartError(Exception):
    """A server does not answer, or not in time."""


@final
@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a running server answers.

    Attributes:
        url: where predictions are requested.
        processes: returns all processes of the server.
        authorization: the header of that name; None if it needs none.
    """

    url: str
    processes: Callable[[], list[psutil.Process]]
    authorization: str | None = None

    def predict(self, client: httpx.Client, instance: Any) -> list[float]:
        """Returns the prediction for one instance.

        Raises:
            httpx.HTTPError: no answer, or one that is not a success.
        """
        headers = {} if self.authorization is None else {"Authorization": self.authorization}
        response = client.post(self.url, json={"instances": [instance]}, headers=headers)
        response.raise_for_status()
        found = response.json()
        (prediction,) = found["predictions"] if isinstance(found, dict) else found  # BentoML returns the list alone
        return prediction


@final
@dataclass(frozen=True, kw_only=True)
class Server:
    """A kind of server.

    Attributes:
        title: its name in the tables.
        versions: the versions of what it is made of.
        note: the settings that are not defaults.
        serve: serves a model in a context; its output goes to a file.
    """

    title: str
    versions: str
    note: str
    serve: Callable[[Case, Path], Any]


def make_server(name: str, *, folder: Path) -> Server:
    """Prepares a server, of `NAMES`.

    Args:
        name: its name.
        folder: where environments are kept.

    Raises:
        InstallationError: it cannot be installed here.
    """
    if name in OWN:
        return Server(title=name.replace("-", " "), versions=own_versions(), note="", serve=OWN[name])
    rival, place = RIVALS[name], folder / name
    python = install(rival.title, (*rival.packages, *COMMON), folder=place)
    serve = partial(serve_rival, rival=rival, folder=place)
    return Server(title=rival.title, versions=versions(python, rival.shown), note=rival.note, serve=serve)


@contextmanager
def serve_alone(case: Case, log: Path) -> Iterator[Endpoint]:
    """Serves a model by Lockstep's prediction server without a service."""
    token, port = secrets.token_urlsafe(), free_ports(1)[0]
    command = [sys.executable, "-m", "lockstep.serving", f"--model={case.model_path}", f"--port={port}"]
    environment = environment_of({"JAX_PLATFORMS": "cpu", SERVER_TOKEN: token})
    with running(command, environment=environment, log=log) as process:
        endpoint = Endpoint(
            url=f"http://127.0.0.1:{port}/predict",
            processes=partial(tree, process),
            authorization=f"Bearer {token}",
        )
        await_answer(endpoint, case, process=process, log=log)
        yield endpoint


@contextmanager
def serve_rival(case: Case, log: Path, *, rival: Rival, folder: Path) -> Iterator[Endpoint]:
    """Serves a model by a rival."""
    (port,) = free_ports(1)
    variables = {
        **os.environ,
        **variables_of(folder),
        "PYTHONPATH": str(HERE),
        MODEL_VARIABLE: case.name,
        FOLDER_VARIABLE: str(case.folder),
    }
    with running(rival.command(folder, port=port), environment=variables, log=log) as process:
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}/predict", processes=partial(tree, process))
        await_answer(endpoint, case, process=process, log=log)
        yield endpoint


@contextmanager
def serve_by_service(case: Case, _log: Path) -> Iterator[Endpoint]:
    """Serves a model by a service of its own, as a version of a model: `:predict`."""
    with redirect_stdout(sys.stderr), running_service() as service, service.client() as client:
        client.create_model(case.name)
        operation = client.create_version(case.name, name=VERSION, deployment_uri=str(case.model_path))
        await_version(client, operation["name"])
        client.set_default_version(case.name, name=VERSION)
        yield Endpoint(
            url=f"{service.address.url}/v1/projects/local/models/{case.name}:predict",
            processes=partial(processes_of_home, service.home.path),
            authorization=f"Bearer {service.address.token}",
        )


def await_version(client: Client, operation_name: str) -> None:
    """Returns once a deployment is over.

    Raises:
        StartError: it has failed, or is not over in time.
    """
    deadline = time.monotonic() + START_S
    while not (operation := client.operation(operation_name)).get("done"):
        if time.monotonic() > deadline:
            raise StartError(f"the version is not ready after {START_S:.0f} s: {operation}")
        time.sleep(0.1)
    if "error" in operation:
        raise StartError(f"the version cannot be served: {operation['error']['message']}")


def await_answer(
    endpoint: Endpoint,
    case: Case,
    *,
    timeout_s: float = START_S,
    process: psutil.Process | None = None,
    log: Path | None = None,
) -> None:
    """Returns once a server answers: after its start, or after a load, of which it may still have requests.

    Args:
        endpoint: where it answers.
        case: its model.
        timeout_s: how long it may take.
        process: its process, which may end meanwhile.
        log: the file with its output.

    Raises:
        StartError: it has ended, or does not answer in time.
    """
    instances, _ = case.samples()
    deadline = time.monotonic() + timeout_s
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        while True:
            try:
                endpoint.predict(client, instances[0])
                return
            except httpx.HTTPError as error:
                last = str(error)
            has_ended = process is not None and process.status() == psutil.STATUS_ZOMBIE
            if has_ended or time.monotonic() > deadline:
                problem = "has ended" if has_ended else f"does not answer after {timeout_s:.0f} s"
                said = "" if log is None else log.read_text(errors="replace")[-3000:]
                raise StartError(f"the server {problem}: {last}\n{said}")
            time.sleep(0.1)


def threads_of(log: Path) -> str:
    """Returns the threads of PyTorch that a rival's log tells; nothing for others."""
    found = re.findall(r"PyTorch's threads: (\d+)", log.read_text(errors="replace")) if log.exists() else []
    return f"PyTorch's threads: {found[-1]}" if found else ""


OWN: Final[dict[str, Callable[[Case, Path], Any]]] = {"lockstep": serve_alone, "lockstep-service": serve_by_service}
NAMES: Final = (*OWN, *RIVALS)
