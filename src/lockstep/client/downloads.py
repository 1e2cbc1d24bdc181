"""Downloads of files from the service."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx

from lockstep.client.error_answers import read_error
from lockstep.errors import LockstepError, StorageWriteError
from lockstep.storage.temporaries import create_temporary, temporary_name


def fetch_file(http: httpx.Client, path: str, *, to: Path, unavailable: Callable[[Exception], LockstepError]) -> None:
    """Downloads a file. It appears whole or not at all.

    Args:
        http: the connections to the service.
        path: the path of the request.
        to: the local file, which is replaced if it exists. Its folder is created.
        unavailable: returns the error for a service that does not respond.

    Raises:
        LockstepError: the service refuses, or does not send the whole file.
        StorageWriteError: the local file cannot be written.
    """
    temporary = to.with_name(temporary_name())
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with create_temporary(temporary) as file:
            try:
                with http.stream("GET", path, headers={"accept-encoding": "identity"}) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise read_error(answer)
                    for piece in answer.iter_bytes():
                        file.write(piece)
                file.flush()
                os.replace(temporary, to)  # while the file is locked: see lockstep.storage.temporaries
            except httpx.HTTPError as error:
                raise unavailable(error) from error
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageWriteError(f"cannot write {to}: {error.strerror or error}") from error
