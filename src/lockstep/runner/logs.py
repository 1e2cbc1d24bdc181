"""A replica's log: lines numbered from 0, carried to the bucket in segments while the program runs.

A segment is an immutable object named by the number of its first line, ``000000000042.jsonl``; each of its lines is a
JSON object ``{"seq", "time_s", "stream", "text"}``. The numbers have no gaps, so a reader that has seen line n knows
what comes next, whoever died in between; and a segment appears whole or not at all, so nothing is seen twice.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final, final

from lockstep.errors import LockstepError
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

FLUSH_INTERVAL_S: Final = 0.5
SEGMENT_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = 8 * 1024 * 1024
LINE_BYTES: Final = 64 * 1024
URL_FILE: Final = "url"
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)


def segment_key(first_seq: int) -> str:
    """Returns the object name of the segment that starts with a line number."""
    return f"{first_seq:012d}.jsonl"


@final
class LineSplitter:
    """Cuts a byte stream into lines of text.

    A carriage return starts its line anew, as on a terminal; what is not UTF-8 is replaced; a line longer than
    `LINE_BYTES` is cut into several.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Takes the next bytes and returns the lines that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        texts = [text for line in lines for text in self._texts(line)]
        while len(self._rest) > LINE_BYTES:
            texts.extend(self._texts(self._rest[:LINE_BYTES]))
            self._rest = self._rest[LINE_BYTES:]
        return texts

    def finish(self) -> list[str]:
        """Returns the last line, if the stream did not end with a line feed."""
        rest, self._rest = self._rest, b""
        return self._texts(rest) if rest else []

    @staticmethod
    def _texts(line: bytes) -> list[str]:
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        pieces = [shown[start : start + LINE_BYTES] for start in range(0, max(1, len(shown)), LINE_BYTES)]
        return [piece.decode("utf-8", errors="replace") for piece in pieces]


@final
class LogWriter:
    """Numbers lines and carries them to the bucket from a thread of its own.

    While the bucket refuses, segments wait in a folder on the node and are tried again; where that folder refuses too,
    lines wait in memory up to `BUFFER_BYTES` and `full` turns true: the caller then stops reading its program, so that
    nothing is lost.

    Args:
        url: bucket URL under which the segments appear.
        spool: folder for segments that the bucket did not take yet.
    """

    def __init__(self, url: str, *, spool: Path) -> None:
        self._bucket: AbstractBucket = open_bucket(url, policy=QUICK_POLICY)
        self._spool = spool
        self._lock = threading.Condition()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0
        self._num_lines = 0
        self._cut = (-1, 0)
        self._closed = False
        self._given_up = False
        self._backlog = deque(sorted(spool.glob("*.jsonl")))
        self._thread = threading.Thread(target=self._carry, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def num_lines(self) -> int:
        """How many lines were added so far."""
        return self._num_lines

    @property
    def full(self) -> bool:
        """Whether no more lines should be read for now."""
        return self._num_bytes > BUFFER_BYTES

    def add(self, stream: str, text: str) -> None:
        """Takes one line. Does not block.

        Args:
            stream: ``stdout`` or ``stderr``.
            text: the line without its line feed.
        """
        entry = {"seq": self._num_lines, "time_s": round(time.time(), 6), "stream": stream, "text": text}
        data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            self._lines.append((self._num_lines, data))
            self._num_lines += 1
            self._num_bytes += len(data)
            if self._num_bytes > SEGMENT_BYTES:
                self._lock.notify()

    def close(self, *, timeout_s: float) -> bool:
        """Carries what is left, and ends the thread.

        Args:
            timeout_s: how long to go on trying.

        Returns:
            Whether everything is in the bucket. What is not stays in the spool folder, beside the URL where it belongs.
        """
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # it hangs in the bucket, or goes on trying: the lines must not end with it
            self._given_up = True
            self._spill()
        return not self._backlog and not self._lines

    def _carry(self) -> None:
        failures = 0
        while True:
            with self._lock:
                pause_s = RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else FLUSH_INTERVAL_S
                if self._closed:
                    pause_s = min(pause_s, RETRY_S[0]) if failures else 0.0
                if pause_s and (failures or self._num_bytes <= SEGMENT_BYTES):
                    self._lock.wait(pause_s)
                closed = self._closed
            sent = self._send_backlog() and self._send_lines()
            failures = 0 if sent else failures + 1
            if self._given_up or (closed and sent and not self._lines):
                return

    def _send_backlog(self) -> bool:
        while self._backlog and not self._given_up:
            path = self._backlog[0]
            try:
                self._bucket.write(path.name, path.read_bytes())
            except FileNotFoundError:
                pass  # somebody else has carried it
            except (LockstepError, OSError):
                self._spill()
                return False
            path.unlink(missing_ok=True)
            self._backlog.popleft()
        return True

    def _send_lines(self) -> bool:
        while not self._given_up and (segment := self._take_segment()) is not None:
            first_seq, data, num_lines = segment
            try:
                self._bucket.write(segment_key(first_seq), data)
            except LockstepError:
                self._spill()
                return False
            self._drop(first_seq, num_lines)
        return True

    def _take_segment(self) -> tuple[int, bytes, int] | None:
        """Returns the first lines, up to a segment's size; they are removed once they are safe.

        A segment keeps the length that it was first taken with: a write that hung may still end, after another one of
        the same name, and must not replace it by less.
        """
        with self._lock:
            if not self._lines:
                return None
            first_seq = self._lines[0][0]
            if self._cut[0] != first_seq:
                self._cut = (first_seq, self._segment_length())
            num_lines = self._cut[1]
            return first_seq, b"".join(data for _, data in islice(self._lines, num_lines)), num_lines

    def _segment_length(self) -> int:
        size_bytes = 0
        for number, (_, data) in enumerate(self._lines, start=1):
            size_bytes += len(data)
            if size_bytes > SEGMENT_BYTES:
                return number
        return len(self._lines)

    def _drop(self, first_seq: int, num_lines: int) -> None:
        """Removes lines that are safe; those that the other thread removed meanwhile are gone already."""
        with self._lock:
            while self._lines and self._lines[0][0] < first_seq + num_lines:
                _, data = self._lines.popleft()
                self._num_bytes -= len(data)

    def _spill(self) -> None:
        """Moves the lines in memory to the spool folder; where that fails too they stay in memory."""
        with contextlib.suppress(OSError):
            while (segment := self._take_segment()) is not None:
                first_seq, data, num_lines = segment
                self._spool.mkdir(parents=True, exist_ok=True)
                (self._spool / URL_FILE).write_text(self._bucket.url)
                path = self._spool / segment_key(first_seq)
                partial = path.with_suffix(".partial")
                partial.write_bytes(data)
                partial.replace(path)
                self._backlog.append(path)
                self._drop(first_seq, num_lines)


def carry_leftovers(spool: Path) -> int:
    """Carries segments that a runner could not, from its spool folder to the bucket, and removes what it carried.

    May run beside the runner: a segment that both write is written twice with the same content.

    Args:
        spool: the folder that a `LogWriter` was given.

    Returns:
        How many segments were carried.

    Raises:
        StorageError: the bucket refuses still.
    """
    try:
        bucket = open_bucket((spool / URL_FILE).read_text())
    except FileNotFoundError:
        return 0
    num_carried = 0
    for path in sorted(spool.glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):  # its runner was quicker
            bucket.write(path.name, path.read_bytes())
            path.unlink()
            num_carried += 1
    return num_carried
