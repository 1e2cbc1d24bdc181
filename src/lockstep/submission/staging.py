"""Decides where a submitter's code goes, and puts it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep.client import Client
from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.jobs.input.spec import TrainingInput
from lockstep.submission.naming import Naming
from lockstep.submission.packing import (
    check_installed,
    check_module,
    pack_files,
    pack_folder,
    stage_package,
    stage_packed,
)


def bucket_for_code(client: Client | None, *, naming: Naming) -> str:
    """Returns the bucket to stage code in: the service's own, or this home's if there is no service.

    Args:
        client: a client of the service; None if no service runs.
        naming: how the submitter knows the parameters.

    Raises:
        InvalidInputError: the bucket is a folder of another machine.
    """
    if client is None:
        return str(Home.from_env().bucket)
    bucket = client.whoami()["bucket"]
    return check_reachable(bucket, is_on_this_machine=client.is_on_this_machine, what=naming("staging_bucket"))


def check_reachable(bucket: str, *, is_on_this_machine: bool, what: str) -> str:
    """Returns the service's bucket, if this machine can upload code to it.

    Args:
        bucket: the bucket's URL or folder.
        is_on_this_machine: whether the service runs on this machine.
        what: the flag or argument that names another bucket.

    Raises:
        InvalidInputError: the bucket is a folder of another machine.
    """
    if not is_on_this_machine and "://" not in bucket:
        raise InvalidInputError(
            f"the service's bucket {bucket} is a folder on the service's machine",
            action=f"give a bucket that both machines can access with {what}",
        )
    return bucket


def stage_code(
    asked: TrainingInput,
    *,
    folder: Path | None,
    added: Mapping[str, bytes] | None = None,
    name: str = "",
    packages: Sequence[str],
    staging: str,
    upload: bool,
    naming: Naming,
    say: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Stages the program's folder and packages, and returns their URLs, the folder's first.

    Args:
        asked: the job's training input, which names the module.
        folder: the program's folder; None if the job needs none.
        added: the contents of files that are packed beside those of the folder, by name.
        name: the name of the packed folder, if there are only added files.
        packages: further packages: local files, or URLs of objects.
        staging: the URL of the staging bucket.
        upload: whether to upload; False only computes the URLs.
        naming: how the submitter knows the parameters.
        say: a function that prints a line about the packed folder.

    Raises:
        MissingInputError: the folder, the module or a package does not exist.
        InvalidInputError: the folder is too large or empty, or a package is none that a job can import.
        StorageWriteError: the bucket cannot be written.
    """
    module = asked.python_module
    urls: list[str] = []
    if folder is not None:
        if module is not None and f"{module}.py" not in (added or {}):
            check_module(folder, module=module, naming=naming)
        packed = pack_folder(folder, added=added, what=naming("package_path"))
        urls.append(stage_packed(packed, staging=staging, upload=upload, say=say))
    elif added:
        urls.append(stage_packed(pack_files(name, added), staging=staging, upload=upload, say=say))
    what = naming("packages")
    urls += [
        stage_package(name.strip(), staging=staging, upload=upload, what=what) for name in packages if name.strip()
    ]
    if not urls and module is not None and not asked.package_uris:
        check_installed(module, naming=naming)
    return urls
