"""Records how a home's service last died, for `lockstep status`.

systemd runs ``python -m lockstep.service.process.ends HOME`` when the unit has ended, and says how in variables.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from lockstep.home import Home


@final
@dataclass(frozen=True, kw_only=True)
class ServiceEnd:
    """A death of the service. A stop by `lockstep down` is not a death.

    Attributes:
        time_s: the time when the death was observed, in seconds since 1970 UTC. If nobody observed it, the time of the
            last sign of life.
        how: how the service died, such as "was killed by SIGKILL".
        followed_by: what followed, such as "restarted".
    """

    time_s: float
    how: str
    followed_by: str


def record_death(home: Home, end: ServiceEnd) -> None:
    """Records the last death of a home's service."""
    partial = home.service_end.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(end)))
    partial.replace(home.service_end)


def read_death(home: Home) -> ServiceEnd | None:
    """Returns the last death of a home's service; None if it never died, or if the record cannot be read."""
    try:
        return ServiceEnd(**json.loads(home.service_end.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def unobserved_death(home: Home, *, now_s: float) -> ServiceEnd | None:
    """Returns a death of a home's service that nobody observed; None if there is none.

    A service that died left its address behind. Its time of death is estimated by the last sign of life: the service
    writes to its database every few seconds.

    Args:
        home: the home. No service runs on it.
        now_s: the current time, in seconds since 1970 UTC.
    """
    answered_s = _written_s(home.address)
    if answered_s is None:  # it was stopped normally
        return None
    last = read_death(home)
    if last is not None and last.time_s >= answered_s:
        return None
    names = [home.database.with_name(home.database.name + suffix) for suffix in ("", "-wal")]
    signs = [time_s for path in (*names, home.service_log) if (time_s := _written_s(path)) is not None]
    found = datetime.fromtimestamp(now_s, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return ServiceEnd(
        time_s=min(max([answered_s, *signs]), now_s),
        how=f"gave its last sign of life then, and was found dead at {found}; the cause is unknown",
        followed_by="not restarted yet",
    )


def record_unobserved_death(home: Home) -> None:
    """Records that the previous service died, if nobody observed its death.

    The caller holds the home's lock, so no other service runs, and has written nothing to the home yet.
    """
    end = unobserved_death(home, now_s=time.time())
    if end is not None:
        record_death(home, replace(end, followed_by="restarted"))


def _written_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def end_of_unit(environment: Mapping[str, str], *, now_s: float) -> ServiceEnd | None:
    """Returns the death of a systemd unit; None if the unit was stopped normally.

    Args:
        environment: the variables that systemd sets for ``ExecStopPost``; see systemd.exec(5).
        now_s: the current time, in seconds since 1970 UTC.
    """
    code, status = environment.get("EXIT_CODE", ""), environment.get("EXIT_STATUS", "")
    if environment.get("SERVICE_RESULT", "success") == "success":
        return None
    how = f"ended with exit code {status}" if code == "exited" else f"was killed by SIG{status}"
    return ServiceEnd(time_s=now_s, how=how, followed_by="systemd restarts it, or logs why not")


def main(arguments: list[str]) -> None:
    """Records how a systemd unit ended.

    Args:
        arguments: the path of the home.
    """
    end = end_of_unit(os.environ, now_s=time.time())
    if end is not None:
        record_death(Home(path=Path(arguments[0])), end)


if __name__ == "__main__":
    main(sys.argv[1:])
