"""Writes a replica's log: entries numbered from 0, which are uploaded in segments while the program runs.

A segment is an immutable object named for the number of its first entry, such as ``000000000042.jsonl``. Each of its
lines is a `lockstep.jobs.logs.StoredEntry` as JSON. The numbers have no gaps, so a reader that has seen entry n knows
which one is next, whichever process died in between. A segment appears whole or not at all, so no entry is seen twice.

An entry is one line, or lines that belong together, such as a traceback. Every line gets its number and is stored
without delay: a line that continues an entry is added to it while the entry is still in memory, and otherwise becomes
an entry of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, final

from lockstep.errors import LockstepError
from lockstep.jobs.logs import ORDINARY, LineClass, Severity, encode_entry
from lockstep.runner.redaction import Redactor
from lockstep.spools import URL_FILE, keep_segment, segments_in, write_whole
from lockstep.storage import QUICK_POLICY, AbstractBucket, open_bucket

FLUSH_INTERVAL_S: Final = 0.5
SEGMENT_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = 8 * 1024 * 1024
LINE_BYTES: Final = 64 * 1024
ENTRY_BYTES: Final = 128 * 1024
"""The maximum size of an entry's text, in bytes; further lines begin a new entry."""
HOLD_S: Final = 0.2
"""How long an unfinished entry is kept out of a segment, in seconds; below `FLUSH_INTERVAL_S`, so no line is late."""
OVERHEAD_BYTES: Final = 100
"""The approximate size of an entry without its text, in bytes."""
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)


def segment_key(first_seq: int) -> str:
    """Returns the object name of the segment that starts with an entry's number."""
    return f"{first_seq:012d}.jsonl"


@final
class LineSplitter:
    """Splits a stream of bytes into lines of text.

    A carriage return restarts its line, as on a terminal. Bytes that are not UTF-8 are replaced. A line longer than
    `LINE_BYTES` is split into several.

    Args:
        redactor: removes secrets, before anything is split.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or Redactor(())
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Adds the next bytes and returns the lines that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        texts = [text for line in lines for text in self._texts(line)]
        # The limit leaves room for a secret that the end of the data cuts; the secrets before it are redacted first.
        most = LINE_BYTES + self._redactor.longest_bytes
        if len(self._rest) > most:
            self._rest = self._redactor.redact(self._rest)
        while len(self._rest) > most:
            texts.extend(self._texts(self._rest[:LINE_BYTES]))
            self._rest = self._rest[LINE_BYTES:]
        return texts

    def finish(self) -> list[str]:
        """Returns the last line, if the stream did not end with a line feed."""
        rest, self._rest = self._rest, b""
        return self._texts(rest) if rest else []

    def _texts(self, line: bytes) -> list[str]:
        shown = self._redactor.redact(line).rstrip(b"\r").rpartition(b"\r")[2]
        pieces = [shown[start : start + LINE_BYTES] for start in range(0, max(1, len(shown)), LINE_BYTES)]
        return [piece.decode("utf-8", errors="replace") for piece in pieces]


@final
@dataclass(kw_only=True, slots=True)
class _Entry:
    """An entry that is not in the bucket yet."""

    seq: int
    time_s: float
    stream: str
    severity: Severity
    lines: list[str]
    size_bytes: int
    held_until: float
    """The time, by ``time.monotonic()``, when it is uploaded even if it is unfinished; 0 for a finished entry."""

    def encode(self) -> bytes:
        text = "\n".join(self.lines)
        return encode_entry(seq=self.seq, time_s=self.time_s, stream=self.stream, severity=self.severity, text=text)


@final
class LogWriter:
    """Numbers entries and uploads them from a thread of its own.

    While the bucket fails, segments are kept in a folder on the node and retried. If that folder fails too, entries
    stay in memory. When they exceed `BUFFER_BYTES`, `full` becomes true, and the caller stops reading the program's
    output, so that nothing is lost.

    Args:
        url: the bucket URL for the segments.
        spool: the folder for segments that the bucket has not accepted yet.
        first_seq: the number of the first entry; entries with lower numbers are in the bucket or in the folder.
    """

    def __init__(self, url: str, *, spool: Path, first_seq: int = 0) -> None:
        self._bucket: AbstractBucket = open_bucket(url, policy=QUICK_POLICY)
        self._spool = spool
        self._lock = threading.Condition()
        self._entries: deque[_Entry] = deque()
        self._last: dict[str, _Entry] = {}
        self._num_bytes = 0
        self._num_entries = first_seq
        self._cut = (-1, 0)
        self._first_uncut_seq = 0
        self._is_holding = False
        self._closed = False
        self._given_up = False
        self._backlog = deque(segments_in(spool))
        self._thread = threading.Thread(target=self._upload_loop, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def num_entries(self) -> int:
        """The number of entries in the log so far."""
        return self._num_entries

    @property
    def full(self) -> bool:
        """Whether the caller should stop reading lines for now."""
        return self._num_bytes > BUFFER_BYTES

    def add(self, stream: str, text: str, *, line_class: LineClass = ORDINARY) -> None:
        """Adds one line. Does not block.

        Args:
            stream: ``stdout`` or ``stderr``.
            text: the line, without its line feed.
            line_class: the classification of the line.
        """
        size_bytes = (len(text) if text.isascii() else len(text.encode())) + 1
        with self._lock:
            last = self._last.get(stream) if line_class.continues else None
            if last is not None and last.seq >= self._first_uncut_seq and last.size_bytes + size_bytes <= ENTRY_BYTES:
                last.lines.append(text)
                last.size_bytes += size_bytes
                if not line_class.open:
                    last.held_until = 0.0
            else:
                size_bytes += OVERHEAD_BYTES
                last = _Entry(
                    seq=self._num_entries,
                    time_s=round(time.time(), 6),
                    stream=stream,
                    severity=line_class.severity,
                    lines=[text],
                    size_bytes=size_bytes,
                    held_until=time.monotonic() + HOLD_S if line_class.open else 0.0,
                )
                self._entries.append(last)
                self._last[stream] = last
                self._num_entries += 1
            self._num_bytes += size_bytes
            if self._num_bytes > SEGMENT_BYTES or len(self._entries) == 1:
                self._lock.notify()

    def close(self, *, timeout_s: float) -> bool:
        """Uploads the remaining entries, and ends the thread.

        Args:
            timeout_s: how long to wait for the upload, in seconds.

        Returns:
            Whether everything is in the bucket. The rest stays in the spool folder, beside a file with the log's URL.
        """
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # the thread hangs or retries: the lines must not end with it
            self._given_up = True
            self._move_to_spool()
        return not self._backlog and not self._entries

    def save_remaining(self) -> bool:
        """Tries once more to save what `close` left in memory, to the node's disk or the bucket.

        Returns:
            Whether nothing is left in memory that would be lost with this process.
        """
        self._move_to_spool()
        with contextlib.suppress(LockstepError):
            while (segment := self._take_segment(self._num_entries, whole=True)) is not None:
                first_seq, data, num_entries = segment
                self._bucket.write(segment_key(first_seq), data)
                self._drop(first_seq, num_entries)
        return not self._entries

    def _upload_loop(self) -> None:
        failures = 0
        next_s = 0.0
        while True:
            with self._lock:
                while not (failures or self._entries or self._backlog or self._closed):
                    self._lock.wait()
                # A line after a pause is uploaded at once; the lines that follow it are collected first.
                pause_s = RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else next_s - time.monotonic()
                if self._closed:
                    pause_s = min(pause_s, RETRY_S[0]) if failures else 0.0
                elif self._is_holding and not failures:
                    pause_s = HOLD_S
                self._pause(pause_s, is_firm=failures > 0)
                closed = self._closed
            next_s = time.monotonic() + FLUSH_INTERVAL_S
            sent = self._send_backlog() and self._send_entries(whole=closed)
            failures = 0 if sent else failures + 1
            if self._given_up or (closed and sent and not self._entries):
                return

    def _pause(self, pause_s: float, *, is_firm: bool) -> None:
        """Waits without the lock until the time is over, the log is closed, or (unless `is_firm`) a segment is full."""
        until_s, was_closed = time.monotonic() + pause_s, self._closed
        while (left_s := until_s - time.monotonic()) > 0 and self._closed is was_closed:
            if not is_firm and self._num_bytes > SEGMENT_BYTES:
                return
            self._lock.wait(left_s)

    def _send_backlog(self) -> bool:
        while self._backlog and not self._given_up:
            path = self._backlog[0]
            try:
                self._bucket.write(path.name, path.read_bytes())
            except FileNotFoundError:
                pass  # another process has uploaded it
            except (LockstepError, OSError):
                self._move_to_spool()
                return False
            path.unlink(missing_ok=True)
            self._backlog.popleft()
        return True

    def _send_entries(self, *, whole: bool) -> bool:
        end_seq = self._num_entries  # later lines wait for the next round, so that segments do not get tiny
        while not self._given_up and (segment := self._take_segment(end_seq, whole=whole)) is not None:
            first_seq, data, num_entries = segment
            try:
                self._bucket.write(segment_key(first_seq), data)
            except LockstepError:
                self._move_to_spool()
                return False
            self._drop(first_seq, num_entries)
        return True

    def _take_segment(self, end_seq: int, *, whole: bool) -> tuple[int, bytes, int] | None:
        """Returns the first entries, up to a segment's size; `_drop` removes them when they are safe.

        A segment keeps the length with which it was first taken. A write that hung may still complete after another
        write of the same name, and must not replace it with less.

        Args:
            end_seq: the number of an entry; no segment begins with this entry or a later one.
            whole: whether to take unfinished entries, too.
        """
        with self._lock:
            if not self._entries or self._entries[0].seq >= end_seq:
                return None
            first_seq = self._entries[0].seq
            if self._cut[0] != first_seq:
                length = self._segment_length(hold=not whole and self._num_bytes <= SEGMENT_BYTES)
                if not length:
                    return None
                self._cut = (first_seq, length)
                self._first_uncut_seq = first_seq + length
            num_entries = self._cut[1]
            entries = list(islice(self._entries, num_entries))
        return first_seq, b"".join(entry.encode() for entry in entries), num_entries

    def _segment_length(self, *, hold: bool) -> int:
        """Returns the number of entries of the next segment; with `hold`, it ends before an unfinished entry."""
        now = time.monotonic()
        size_bytes = 0
        self._is_holding = False
        for number, entry in enumerate(self._entries):
            if hold and entry.held_until > now:
                self._is_holding = True
                return number
            size_bytes += entry.size_bytes
            if size_bytes > SEGMENT_BYTES:
                return number + 1
        return len(self._entries)

    def _drop(self, first_seq: int, num_entries: int) -> None:
        """Removes entries that are safe, except those that the other thread has removed already."""
        with self._lock:
            while self._entries and self._entries[0].seq < first_seq + num_entries:
                self._num_bytes -= self._entries.popleft().size_bytes

    def _move_to_spool(self) -> None:
        """Moves the entries in memory to the spool folder; if that fails, they stay in memory."""
        with contextlib.suppress(OSError):
            while (segment := self._take_segment(self._num_entries, whole=True)) is not None:
                first_seq, data, num_entries = segment
                path = keep_segment(self._spool, url=self._bucket.url, key=segment_key(first_seq), data=data)
                self._backlog.append(path)
                self._drop(first_seq, num_entries)


def next_seq(url: str, *, spool: Path) -> int:
    """Returns the number that follows the last entry of a writer that has ended.

    Args:
        url: the bucket URL of the log.
        spool: the spool folder of the writer.

    Raises:
        StorageError: If the bucket cannot be read.
    """
    bucket = open_bucket(url)
    # The folder comes first: segments that the service uploads from it meanwhile are then found in the bucket.
    ends = [0, *(_waiting_end_seq(path) for path in segments_in(spool)[-1:])]
    carried = max((item.key for item in bucket.list()), default=None)
    if carried is not None:
        ends.append(_end_seq(carried, bucket.read(carried)))
    return max(ends)


def _waiting_end_seq(path: Path) -> int:
    try:
        return _end_seq(path.name, path.read_bytes())
    except FileNotFoundError:  # the service has uploaded it: it is in the bucket
        return 0


def _end_seq(key: str, data: bytes) -> int:
    return int(key.partition(".")[0]) + len(data.splitlines())


def upload_leftovers(spool: Path) -> int:
    """Uploads the segments that a runner left in its spool folder, and removes them there.

    This may run at the same time as the runner: a segment that both write is written twice with the same content, and a
        segment that appears meanwhile is left for the next call. A folder that becomes empty is removed; a runner that
        still needs it creates it again.

    Args:
        spool: the spool folder of a `LogWriter`.

    Returns:
        The number of segments that were uploaded.

    Raises:
        StorageError: If the bucket still fails.
    """
    try:
        url = (spool / URL_FILE).read_text()
    except FileNotFoundError:
        return 0
    bucket = open_bucket(url)
    num_uploaded = 0
    for path in segments_in(spool):
        with contextlib.suppress(FileNotFoundError):  # its runner was faster
            bucket.write(path.name, path.read_bytes())
            path.unlink()
            num_uploaded += 1
    if num_uploaded:
        _remove_empty(spool, url=url)
    return num_uploaded


def _remove_empty(spool: Path, *, url: str) -> None:
    """Removes a spool folder without segments, without losing a segment that a runner writes meanwhile."""
    with contextlib.suppress(FileNotFoundError):  # the runner's end removed it, or it is rewriting it
        for path in (*spool.glob("*.partial"), spool / URL_FILE):
            path.unlink(missing_ok=True)
        try:
            spool.rmdir()
        except OSError:
            if any(spool.iterdir()):  # a new segment needs the URL of its log
                write_whole(spool / URL_FILE, url.encode())
