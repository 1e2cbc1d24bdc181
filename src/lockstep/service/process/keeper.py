"""``python -m lockstep.service.process.keeper``: starts the service of a home, and restarts it when it dies.

`lockstep up` starts the keeper, and `lockstep down` ends it. The service does not depend on the keeper: if the keeper
is killed, the service continues to run, but nothing restarts it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from lockstep.errors import AlreadyRunningError, CorruptDataError
from lockstep.home import Home
from lockstep.processes import ProcessIdentity, describe_exit
from lockstep.service.process.ends import ServiceEnd, record_death
from lockstep.service.process.lifecycle_lock import lifecycle_lock

LOGGER: Final = logging.getLogger(__name__)

PAUSES_S: Final = (0.5, 2.0, 5.0, 15.0, 60.0)
"""The pauses after the first, the second, ... death within `WINDOW_S`. After more deaths, the keeper gives up."""
WINDOW_S: Final = 600.0
END_TIMEOUT_S: Final = 10.0
LOCK_FLAG: Final = "--lifecycle-descriptor"


@final
@dataclass(frozen=True, kw_only=True)
class Keeper:
    """The keeper of a home's service, which restarts the service when it dies.

    Attributes:
        process: the process of the keeper; if the keeper is systemd, the process of the service.
        is_systemd: whether the keeper is systemd.
    """

    process: ProcessIdentity
    is_systemd: bool = False

    def describe(self) -> str:
        """Returns a description: "process 4711" or "systemd"."""
        return "systemd" if self.is_systemd else f"process {self.process.pid}"


def write_keeper(home: Home, keeper: Keeper) -> None:
    """Records the keeper of a home's service."""
    partial = home.keeper.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(keeper)))
    partial.replace(home.keeper)


def find_keeper(home: Home) -> Keeper | None:
    """Returns the keeper of a home's service; None if it has no keeper that runs."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, CorruptDataError):
        document = json.loads(home.keeper.read_text())
        process = ProcessIdentity.from_json(document["process"])
        return Keeper(process=process, is_systemd=document["is_systemd"]) if process.is_alive else None
    return None


def end_keeper(home: Home) -> None:
    """Ends the keeper of a home's service, unless it is systemd. The service continues to run.

    The caller holds the home's lifecycle lock (`lifecycle_lock`), so no service is being started.
    """
    keeper = find_keeper(home)
    if keeper is not None and not keeper.is_systemd:
        keeper.process.send(signal.SIGKILL)
        keeper.process.wait(timeout_s=END_TIMEOUT_S)
        home.keeper.unlink(missing_ok=True)


def keep(home: Home, command: Sequence[str], *, lock: int) -> int:
    """Runs the service until it is stopped normally or dies too often. Blocks. Returns the service's last exit code.

    Args:
        home: the home of the service.
        command: the command that runs the service.
        lock: the file descriptor of the home's lifecycle lock, which is passed on to the service.
    """
    process = _start(command, lock=lock)
    os.close(lock)
    deaths: list[float] = []
    while (code := process.wait()) != 0:
        if not deaths and not _has_answered(home, process.pid):
            return code if code > 0 else 1  # `lockstep up` is still waiting, and reports the error from the log
        now_s = time.time()
        deaths = [*(death for death in deaths if now_s - death < WINDOW_S), now_s]
        is_last = len(deaths) > len(PAUSES_S)
        pause_s = 0.0 if is_last else PAUSES_S[len(deaths) - 1]
        followed_by = f"not restarted: it died {len(deaths)} times within {WINDOW_S / 60:.0f} minutes"
        followed_by = followed_by if is_last else f"restarted after {pause_s:g} s"
        record_death(home, ServiceEnd(time_s=now_s, how=describe_exit(code), followed_by=followed_by))
        LOGGER.error("the service, pid %d, %s: %s", process.pid, describe_exit(code), followed_by)
        if is_last:
            return code
        time.sleep(pause_s)
        try:
            with lifecycle_lock(home) as lock:
                process = _start(command, lock=lock)
        except AlreadyRunningError as error:
            LOGGER.error("the service is not restarted: %s", error)
            return error.exit_code
    return 0


def _start(command: Sequence[str], *, lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command, f"{LOCK_FLAG}={lock}"], stdin=subprocess.DEVNULL, pass_fds=[lock])


def _has_answered(home: Home, pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads(home.address.read_text())["process"]["pid"] == pid
    return False


def main(arguments: Sequence[str]) -> int:
    """Runs the keeper of a service, and returns its exit code.

    Args:
        arguments: the path of the home, the file descriptor of its lifecycle lock, and the command of the service.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    path, lock, *command = arguments
    home = Home(path=Path(path))
    os.set_inheritable(int(lock), False)
    write_keeper(home, Keeper(process=ProcessIdentity.of_self()))
    code = keep(home, command, lock=int(lock))
    home.keeper.unlink(missing_ok=True)
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
