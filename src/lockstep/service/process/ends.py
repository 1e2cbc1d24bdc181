"""How a home's service last died: written down by whoever saw it, for `lockstep status`.

``python -m lockstep.service.process.ends HOME`` writes it down for systemd, whose variables say how a unit ended.
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
    """A death of the service; that it was brought down is none.

    Attributes:
        time_s: when it was seen, seconds since 1970 UTC; the last sign of it, where nobody saw it.
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


def unseen_end(home: Home, *, now_s: float) -> ServiceEnd | None:
    """Returns how the service of a home died, where it left its address and nobody saw its end; else None.

    It died after the last sign of it: it writes to its database every few seconds.

    Args:
        home: its home, where no service runs.
        now_s: seconds since 1970 UTC.
    """
    answered_s = _written_s(home.address)
    if answered_s is None:  # it went as it was told to
        return None
    last = read_end(home)
    if last is not None and last.time_s >= answered_s:
        return None
    names = [home.database.with_name(home.database.name + suffix) for suffix in ("", "-wal")]
    signs = [time_s for path in (*names, home.service_log) if (time_s := _written_s(path)) is not None]
    found = datetime.fromtimestamp(now_s, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return ServiceEnd(
        time_s=min(max([answered_s, *signs]), now_s),
        how=f"gave its last sign then, and was found dead at {found}: nobody saw how it ended",
        then="not started again yet",
    )


def record_unseen_end(home: Home) -> None:
    """Writes down that the service before this one died, where nobody saw its end.

    Who calls it has the home's lock, so none runs, and has written nothing to the home yet.
    """
    end = unseen_end(home, now_s=time.time())
    if end is not None:
        record_end(home, replace(end, then="started again"))


def _written_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


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
