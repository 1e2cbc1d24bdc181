"""The parts of a replica's order: its container, its files, and how a server is watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter


@final
@dataclass(frozen=True, kw_only=True)
class ContainerOrder:
    """The container that a replica's program runs in.

    Attributes:
        image: the name of the image.
        entry_point: the command that replaces the image's entry point; if empty, the image's own is used.
        runs_code: whether the program is in the order's packages; the working folder is then their folder.
        readable: the paths of the node that the program may read, if they exist.
        project_folder: the project's folder in a local bucket, which the container cannot leave through links; None if
            there is none.
        cpus: the limit of processor time, in CPUs; None for no limit.
        memory_bytes: the memory limit, in bytes; None for no limit.
        images_folder: the node's folder for data about the images that it has pulled.
        image_id: the id that the image must have, because another one under its name is not to run; None for any.
    """

    image: str
    entry_point: tuple[str, ...] = ()
    runs_code: bool = False
    readable: tuple[str, ...] = ()
    project_folder: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    images_folder: str
    image_id: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class FileOrder:
    """A file that the runner downloads for the program, which needs no access to the bucket for it.

    Attributes:
        url: the bucket URL.
        name: the path in the program's working folder.
        sha256: the SHA-256 digest of the content, in hexadecimal. A file with other content is not served.
    """

    url: str
    name: str
    sha256: str


FILES: Final = TypeAdapter(tuple[FileOrder, ...])
"""Reads and writes files as JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class ContainerRoutes:
    """Where a server in a container of the user's own answers, over HTTP.

    Attributes:
        port: the port that it listens on, in its container.
        predict: the path that takes ``{"instances": [...]}`` with POST.
        health: the path that answers GET with status 200 when the server can answer requests.
    """

    port: int
    predict: str
    health: str


@final
@dataclass(frozen=True, kw_only=True)
class ServerOrder:
    """How a program is watched that answers requests until it is stopped, such as a prediction server.

    Its first heartbeat says that it accepts requests. From then on, its heartbeats say that it can answer them. Its
    output says neither. For a program in a container, a gateway beside it does this, which also receives the requests.

    Attributes:
        ready_within_s: the maximum time from the start to the first heartbeat, in seconds.
        silent_within_s: the maximum time between heartbeats after the first one, in seconds.
        memory_bytes: the maximum memory of its processes together, in bytes; None for what the node can give.
        programs_folder: the node's folder for what the servers of the version compile; empty if it is not kept.
        routes: where the program answers in its container; None for a program that is no container.
    """

    ready_within_s: float
    silent_within_s: float
    memory_bytes: int | None = None
    programs_folder: str = ""
    routes: ContainerRoutes | None = None
