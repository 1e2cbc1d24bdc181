"""Shows a job while somebody waits for it: in a notebook, on a terminal, or as lines."""

from __future__ import annotations

import shutil
import sys
import time
from abc import ABC, abstractmethod
from typing import Any, Final, TextIO, final

LINE_S: Final = 30.0
"""The interval between lines about a job whose state stays the same, in seconds."""
UPDATE_S: Final = 1.0
"""The interval between updates of a notebook's output, in seconds."""
_CLEAR_LINE: Final = "\r\x1b[2K"


class AbstractDisplay(ABC):
    """Shows a job, and updates what it shows. For one thread."""

    @abstractmethod
    def show(self, shown: object, *, line: str, state: str) -> None:
        """Shows a job, or updates what is shown of it. Does not block.

        Args:
            shown: the job, as an object that a notebook can show.
            line: the job in one line.
            state: the job's state.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the display. What was shown last stays."""


@final
class NotebookDisplay(AbstractDisplay):
    """Shows a job as an output of a notebook.

    Args:
        display: IPython's function ``display``.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._state = ""
        self._time_s = 0.0

    def show(self, shown: object, *, line: str, state: str) -> None:
        """Shows the job, or updates the output: at once for a new state, otherwise once in `UPDATE_S`."""
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        elif state == self._state and time.monotonic() - self._time_s < UPDATE_S:
            return
        else:
            self._handle.update(shown)
        self._state, self._time_s = state, time.monotonic()

    def close(self) -> None:
        """Leaves the output as it is."""


@final
class TerminalDisplay(AbstractDisplay):
    """Shows a job on one line of a terminal.

    Args:
        stream: the terminal.
        width: the terminal's width, in columns.
    """

    def __init__(self, stream: TextIO, *, width: int) -> None:
        self._stream, self._width = stream, width
        self._has_line = False

    def show(self, shown: object, *, line: str, state: str) -> None:
        """Replaces the line."""
        text = line if len(line) < self._width else f"{line[: self._width - 2]}…"
        self._stream.write(f"{_CLEAR_LINE}{text}")
        self._stream.flush()
        self._has_line = True

    def close(self) -> None:
        """Begins a new line."""
        if self._has_line:
            self._stream.write("\n")
            self._stream.flush()


@final
class LineDisplay(AbstractDisplay):
    """Writes a line when a job's state changes, and otherwise once in `LINE_S`.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._state = ""
        self._time_s = 0.0

    def show(self, shown: object, *, line: str, state: str) -> None:
        """Writes a line if it is time."""
        if state == self._state and time.monotonic() - self._time_s < LINE_S:
            return
        self._state, self._time_s = state, time.monotonic()
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the lines as they are."""


def choose_display() -> AbstractDisplay:
    """Returns the display that fits this process: a notebook's kernel, a terminal, or anything else."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        from IPython.display import display  # only where IPython runs already

        return NotebookDisplay(display)
    if sys.stderr.isatty():
        return TerminalDisplay(sys.stderr, width=shutil.get_terminal_size().columns)
    return LineDisplay(sys.stderr)
