"""``python -m lockstep.service.process.keeper``: starts the service of a home, and starts it again when it dies.

`lockstep up` starts it, `lockstep down` ends it. It keeps nothing that the service needs: where it is killed, the
service runs on, and nobody starts that one again.
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
from lockstep.service.process.ends import ServiceEnd, record_end
from lockstep.service.process.turns import alone

LOGGER: Final = logging.getLogger(__name__)

PAUSES_S: Final = (0.5, 2.0, 5.0, 15.0, 60.0)
"""How long is waited after the first death, the second one, ... of those within `WINDOW_S`; after more, it gives up."""
WINDOW_S: Final = 600.0
END_TIMEOUT_S: Final = 10.0
LOCK_FLAG: Final = "--lifecycle-descriptor"


@final
@dataclass(frozen=True, kw_only=True)
class Keeper:
    """What starts a home's service again when it dies.

    Attributes:
        process: its process; where it is systemd, the service's own.
        is_systemd: whether it is systemd.
    """

    process: ProcessIdentity
    is_systemd: bool = False

    def describe(self) -> str:
        """Names it: "process 4711", "systemd"."""
        return "systemd" if self.is_systemd else f"process {self.process.pid}"


def write_keeper(home: Home, keeper: Keeper) -> None:
    """Writes down what keeps a home's service."""
    partial = home.keeper.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(keeper)))
    partial.replace(home.keeper)


def find_keeper(home: Home) -> Keeper | None:
    """Returns what keeps a home's service; None if nothing does."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, CorruptDataError):
        document = json.loads(home.keeper.read_text())
        process = ProcessIdentity.from_json(document["process"])
        return Keeper(process=process, is_systemd=document["is_systemd"]) if process.is_alive else None
    return None


def end_keeper(home: Home) -> None:
    """Ends the keeper of a home's service, where it is a process of ours; the service runs on.

    Who calls it has the home's turn, so that no service is being started.
    """
    keeper = find_keeper(home)
    if keeper is not None and not keeper.is_systemd:
        keeper.process.send(signal.SIGKILL)
        keeper.process.wait(timeout_s=END_TIMEOUT_S)
        home.keeper.unlink(missing_ok=True)


def keep(home: Home, command: Sequence[str], *, lock: int) -> int:
    """Runs the service until it ends as it was told to, or dies too often; returns its last exit code. Blocks.

    Args:
        home: the service's.
        command: the service's.
        lock: descriptor of the home's lifecycle lock, which is handed on to the service.
    """
    process = _start(command, lock=lock)
    os.close(lock)
    deaths: list[float] = []
    while (code := process.wait()) != 0:
        if not deaths and not _has_answered(home, process.pid):
            return code if code > 0 else 1  # `lockstep up` waits still, and says what its log says
        now_s = time.time()
        deaths = [*(death for death in deaths if now_s - death < WINDOW_S), now_s]
        is_last = len(deaths) > len(PAUSES_S)
        pause_s = 0.0 if is_last else PAUSES_S[len(deaths) - 1]
        then = f"not started again: it died {len(deaths)} times within {WINDOW_S / 60:.0f} minutes"
        then = then if is_last else f"started again after {pause_s:g} s"
        record_end(home, ServiceEnd(time_s=now_s, how=describe_exit(code), then=then))
        LOGGER.error("the service, pid %d, %s: %s", process.pid, describe_exit(code), then)
        if is_last:
            return code
        time.sleep(pause_s)
        try:
            with alone(home) as lock:
                process = _start(command, lock=lock)
        except AlreadyRunningError as error:
            LOGGER.error("the service is not started again: %s", error)
            return error.exit_code
    return 0


def _start(command: Sequence[str], *, lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command, f"{LOCK_FLAG}={lock}"], stdin=subprocess.DEVNULL, pass_fds=[lock])


def _has_answered(home: Home, pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads(home.address.read_text())["process"]["pid"] == pid
    return False


def main(arguments: Sequence[str]) -> int:
    """Keeps a service.

    Args:
        arguments: the home's path, the descriptor of its lifecycle lock, and the service's command.
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
