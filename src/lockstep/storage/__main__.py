"""``python -m lockstep.storage FOLDER URL``: uploads the files in a folder, at every depth, to a bucket.

A training program runs it beside itself, so that the upload does not take time from training.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.storage.registry import open_bucket


def upload_folder(folder: Path, url: str) -> None:
    """Uploads the files in a folder.

    Args:
        folder: the folder.
        url: the URL under which the files have the same paths as in the folder.

    Raises:
        StorageError: a file cannot be written.
        InvalidInputError: the URL is not that of a bucket.
    """
    bucket = open_bucket(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bucket.upload(path.relative_to(folder).as_posix(), path=path)


def main() -> int:
    """Uploads the files; returns the exit code."""
    folder, url = sys.argv[1:]
    try:
        upload_folder(Path(folder), url)
    except LockstepError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
