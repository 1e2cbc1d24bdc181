"""TensorBoard's event files in a folder or a bucket, written without TensorFlow."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, final

import tensorboardX

from lockstep.errors import StorageWriteError
from lockstep.storage import join_url, open_bucket

_FLUSH_S: Final = 5
"""The flush interval of tensorboardX, which writes in a thread. At the end, everything is flushed at once."""


@final
class EventFiles:
    """The event files of one process. Files for a remote bucket are written locally first, and uploaded by `publish`.

    Args:
        log_dir: a local path, or the URL of a bucket.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._url = os.fspath(log_dir)
        scheme, separator, rest = self._url.partition("://")
        self._is_local = not separator or scheme == "file"
        self._path = Path(rest if separator else self._url)
        if not self._is_local:
            self._path = Path(tempfile.mkdtemp(prefix="lockstep-tensorboard-"))
        self._writers: dict[str, tensorboardX.SummaryWriter] = {}

    def writer(self, run: str, *, purge_step: int | None = None) -> tensorboardX.SummaryWriter:
        """Returns the writer of a run. It is created with the first call.

        Args:
            run: the name of the run: a folder in the log folder; "." for the log folder itself.
            purge_step: the step from which on TensorBoard drops what an earlier, killed process wrote; None to keep it.

        Raises:
            StorageWriteError: the files cannot be written.
        """
        if run not in self._writers:
            try:
                self._writers[run] = tensorboardX.SummaryWriter(
                    str(self._path / run),
                    purge_step=purge_step,
                    flush_secs=_FLUSH_S,
                    filename_suffix=f".{os.getpid()}",  # another process may write to the same folder
                )
            except OSError as error:
                raise StorageWriteError(f"TensorBoard's files cannot be written to {self._url}: {error}") from error
        return self._writers[run]

    def publish(self) -> None:
        """Flushes the files, and uploads them if they are for a bucket."""
        for writer in self._writers.values():
            if writer.file_writer is not None:
                writer.flush()
        if self._is_local or not self._writers:
            return
        for path in sorted(self._path.rglob("*")):
            if path.is_file():
                bucket = open_bucket(join_url(self._url, path.parent.relative_to(self._path).as_posix()))
                bucket.upload(path.name, path=path)

    def close(self) -> None:
        """Closes the files, and uploads what has not been uploaded yet."""
        try:
            for writer in self._writers.values():
                writer.close()
            self.publish()
        finally:
            self._writers.clear()
            if not self._is_local:
                shutil.rmtree(self._path, ignore_errors=True)
