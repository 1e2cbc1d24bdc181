"""Downloads what a job left."""

from __future__ import annotations

from pathlib import Path

from lockstep.client.client import Client
from lockstep.errors import InvalidInputError, NotFoundError, closest


def fetch(client: Client, name: str, path: str, *, to: Path) -> Path:
    """Downloads a file that a job left, or a folder of such files.

    Args:
        client: a client of the service.
        name: the job's name.
        path: the path of an artifact, or of a folder of them.
        to: a local folder that exists, in which the download keeps its name; or a new name.

    Returns:
        The local file or folder.

    Raises:
        InvalidInputError: the path is empty, or a folder would replace a file.
        NotFoundError: the job left no such file or folder.
        StorageWriteError: a local file cannot be written.
    """
    asked = path.strip("/")
    if not asked:
        raise InvalidInputError("no artifact is named", received=path, allowed="a path such as model/model.keras")
    paths = [artifact["path"] for artifact in client.artifacts(name)]
    target = to / asked.rpartition("/")[2] if to.is_dir() else to
    if asked in paths:
        client.fetch_artifact(name, asked, to=target)
        return target
    inside = [found for found in paths if found.startswith(f"{asked}/")]
    if not inside:
        raise NotFoundError(
            f"job {name} left no {asked}",
            allowed=", ".join(paths[:10]) if paths else "nothing: it left no files",
            action=closest(asked, paths),
        )
    if target.is_file():
        raise InvalidInputError(f"{target} is a file, and {asked} is a folder", action="name another place with to=")
    for found in inside:
        client.fetch_artifact(name, found, to=target / found.removeprefix(f"{asked}/"))
    return target
