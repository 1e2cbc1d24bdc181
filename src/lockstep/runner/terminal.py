"""Makes its standard input the controlling terminal of its session, and replaces itself with the given command.

It runs as a script of its own. Between a fork and the start of a program, no code may run in a process with threads, so
this code runs after both.
"""

import fcntl
import os
import sys
import termios

if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        sys.stderr.write(f"lockstep: {sys.argv[1]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)
