"""``lockstep artifacts``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers, print_table
from lockstep.cli.console import (
    DEFAULT_PROJECT,
    ERRORS,
    OUTPUT,
    JobArgument,
    ProjectOption,
    connect,
    local_time,
    size,
)
from lockstep.cli.trials import explain_search, is_search
from lockstep.errors import InvalidInputError, MissingInputError, NotFoundError, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockstep.client import Client
_MAX_NAMED: Final = 10


@answers("ArtifactListForm", "FetchedListForm", is_list=True, hints=True)
def artifacts(
    job: JobArgument,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH...]", help="Only these files, or all files in these folders, such as 'model'."),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download the files. Files that are there are skipped.")
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Where to put them. Default: a folder JOB here.")
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """List or download the files that a job left: models, checkpoints, TensorBoard files.

    A download that was interrupted goes on where it stopped: a file is there whole, or not at all.
    """
    if to is not None and not fetch:
        raise InvalidInputError("--to", received=to, allowed="only with --fetch")
    with connect(project) as client:
        found = chosen(client.artifacts(job), paths or (), job=job)
        if not found and is_search(described := client.job(job)):
            ERRORS.print(explain_search(described, "lockstep artifacts", what="artifacts"))
        if not fetch:
            return Answer(
                show=lambda: _show(found),
                document={"artifacts": found},
                rows=found,
                columns=COLUMNS,
                hint=f"to download them: lockstep artifacts {shlex.quote(job)} --fetch" if found else "",
            )
        folder = (to or Path(job)).absolute()
        targets = {artifact["path"]: target_of(artifact["path"], folder=folder) for artifact in found}
        missing = [artifact for artifact in found if not is_there(targets[artifact["path"]], artifact)]
        gone = _fetch_all(client, job, missing, targets=targets)
    fetched = [artifact for artifact in missing if artifact["path"] not in gone]
    names = {artifact["path"] for artifact in fetched}
    rows = [{**each, "file": str(targets[each["path"]]), "fetched": each["path"] in names} for each in found]
    num_bytes = sum(artifact["sizeBytes"] for artifact in fetched)
    skipped = f"; {len(found) - len(missing)} were there already" if len(found) > len(missing) else ""
    removed = f"; {len(gone)} were removed by the job meanwhile" if gone else ""
    said = f"fetched {counted(len(fetched), 'file')}, {size(num_bytes)}, to {folder}{skipped}{removed}"
    return Answer(show=lambda: OUTPUT.print(said), document={"artifacts": rows}, rows=rows, columns=COLUMNS)


COLUMNS: Final = (
    Column(name="path", title="PATH"),
    Column(name="output"),
    Column(name="sizeBytes", title="SIZE", text=lambda artifact: size(artifact["sizeBytes"])),
    Column(name="updateTime", title="WRITTEN", text=lambda artifact: local_time(artifact["updateTime"])),
    Column(name="file"),
    Column(name="fetched"),
)
"""The columns of an artifact. Only one that was to be downloaded has the last two."""


def _fetch_all(
    client: Client, job: str, missing: Sequence[Mapping[str, Any]], *, targets: Mapping[str, Path]
) -> frozenset[str]:
    """Downloads artifacts; returns the paths of those that are no longer there, such as old checkpoints of a job."""
    gone: set[str] = set()
    with _progress(missing) as advance:
        for artifact in missing:
            try:
                client.fetch_artifact(job, artifact["path"], to=targets[artifact["path"]])
            except (NotFoundError, MissingInputError):
                gone.add(artifact["path"])
            advance(artifact)
    return frozenset(gone)


def chosen(artifacts: Sequence[Mapping[str, Any]], paths: Sequence[str], *, job: str) -> list[Mapping[str, Any]]:
    """Returns the artifacts that paths name: files, or all files in folders.

    Args:
        artifacts: all artifacts of the job.
        paths: the paths; empty for all artifacts.
        job: the job's name, for the error message.

    Raises:
        MissingInputError: a path names none.
    """
    wanted = [path.strip("/") for path in paths]
    for path in wanted:
        if not any(_is_in(artifact["path"], path) for artifact in artifacts):
            outputs = sorted({artifact["path"].partition("/")[0] for artifact in artifacts})
            raise MissingInputError(
                f"job {job} left no such file",
                received=path,
                allowed=outputs[:_MAX_NAMED] or "none: it left no files",
                action=f"see `lockstep artifacts {job}`",
            )
    return [artifact for artifact in artifacts if not wanted or any(_is_in(artifact["path"], path) for path in wanted)]


def _is_in(path: str, wanted: str) -> bool:
    return path == wanted or path.startswith(f"{wanted}/")


def target_of(path: str, *, folder: Path) -> Path:
    """Returns the local file for an artifact, which is in the folder whatever the artifact is called.

    Names come from the program of a job, which may be somebody else's.

    Args:
        path: the artifact's path, as the service names it.
        folder: the folder of the download, an absolute path.

    Raises:
        InvalidInputError: the path, or a link on it, leads out of the folder.
    """
    names = path.split("/")
    is_plain = all(name not in ("", ".", "..") and "\0" not in name and "\\" not in name for name in names)
    target = folder.joinpath(*names) if is_plain else folder
    if not is_plain or not target.parent.resolve().is_relative_to(folder.resolve()):
        raise InvalidInputError(
            "an artifact's path leads out of the folder, so nothing was fetched",
            received=path,
            allowed=f"paths within {folder}",
            action="name the other artifacts as PATH",
        )
    return target


def is_there(target: Path, artifact: Mapping[str, Any]) -> bool:
    """Whether a file is there with the size of an artifact: then it was fetched whole."""
    try:
        return target.is_file() and not target.is_symlink() and target.stat().st_size == artifact["sizeBytes"]
    except OSError:
        return False


@contextmanager
def _progress(missing: Sequence[Mapping[str, Any]]) -> Generator[Callable[[Mapping[str, Any]], None]]:
    """Shows a bar of bytes on a terminal, and nothing elsewhere."""
    if not ERRORS.is_terminal or not missing:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # here, because a list needs none

    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(binary_units=True), TextColumn("{task.description}"))
    with Progress(*columns, console=ERRORS, transient=True) as bar:
        task = bar.add_task(missing[0]["path"], total=sum(artifact["sizeBytes"] for artifact in missing))

        def advance(artifact: Mapping[str, Any]) -> None:
            bar.update(task, advance=artifact["sizeBytes"], description=artifact["path"])

        yield advance


def _show(found: Sequence[Mapping[str, Any]]) -> None:
    print_table(found, columns=COLUMNS, empty="no artifacts")
    if found:
        total = sum(artifact["sizeBytes"] for artifact in found)
        OUTPUT.print(f"{counted(len(found), 'file')}, {size(total)}")
