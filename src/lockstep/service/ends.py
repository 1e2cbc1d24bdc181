"""How a home's service last died: written down by whoever saw it, for `lockstep status`.

``python -m lockstep.service.ends HOME`` writes it down for systemd, which says in its variables how a unit ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from lockstep.home import Home

UNSEEN: Final = "ended, and nobody saw how: it was found so at the next start"


@final
@dataclass(frozen=True, kw_only=True)
class ServiceEnd:
    """A death of the service; that it was brought down is none.

    Attributes:
        time_s: when it was seen, seconds since 1970 UTC.
        how: "was killed by SIGKILL".
        then: what followed: "started again".
    """

    time_s: float
    how: str
    then: str


def record_end(home: Home, end: ServiceEnd) -> None:
    """Writes down how the service of a home died last."""
    partial = home.service_end.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(end)))
    partial.replace(home.service_end)


def read_end(home: Home) -> ServiceEnd | None:
    """Returns how the service of a home died last; None where it never did, or nobody can read it."""
    try:
        return ServiceEnd(**json.loads(home.service_end.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def record_unseen_end(home: Home) -> None:
    """Writes down that the service before this one died, where it left its address and nobody saw its end.

    Who calls it has the home's lock, so none runs.
    """
    last = read_end(home)
    try:
        answered_s = home.address.stat().st_mtime
    except OSError:  # it went as it was told to
        return
    if last is None or last.time_s < answered_s:
        record_end(home, ServiceEnd(time_s=time.time(), how=UNSEEN, then="started again"))


def end_of_unit(environment: Mapping[str, str], *, now_s: float) -> ServiceEnd | None:
    """Returns how a unit of systemd ended; None where it did as it was told to.

    Args:
        environment: what systemd gives to ``ExecStopPost``, see systemd.exec(5).
        now_s: seconds since 1970 UTC.
    """
    code, status = environment.get("EXIT_CODE", ""), environment.get("EXIT_STATUS", "")
    if environment.get("SERVICE_RESULT", "success") == "success":
        return None
    how = f"ended with exit code {status}" if code == "exited" else f"was killed by SIG{status}"
    return ServiceEnd(time_s=now_s, how=how, then="systemd starts it again, or says why not")


def main(arguments: list[str]) -> None:
    """Writes down how a unit of systemd ended.

    Args:
        arguments: the home's path.
    """
    end = end_of_unit(os.environ, now_s=time.time())
    if end is not None:
        record_end(Home(path=Path(arguments[0])), end)


if __name__ == "__main__":
    main(sys.argv[1:])
