"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockstep.doctor.checks.buckets import check_bucket
from lockstep.doctor.checks.clocks import check_certificate, check_clocks
from lockstep.doctor.checks.containers import check_containers
from lockstep.doctor.checks.credentials import check_credentials, check_service_version
from lockstep.doctor.checks.devices import PROBE_S, check_devices
from lockstep.doctor.checks.disks import check_disks
from lockstep.doctor.checks.drivers import check_drivers
from lockstep.doctor.checks.kernel import check_kernel
from lockstep.doctor.checks.leftovers import check_leftovers
from lockstep.doctor.checks.limits import check_limits
from lockstep.doctor.checks.ports import check_names, check_ports
from lockstep.doctor.checks.variables import check_variables
from lockstep.doctor.checks.versions import check_byte_code, check_versions
from lockstep.doctor.findings import Diagnosis, Finding
from lockstep.doctor.running import Check, run_checks
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import InvalidInputError, closest
from lockstep.home import Home

BUCKET_S: Final = 20.0
"""How long the bucket may take: it is written, read and deleted from, each within some seconds."""

CHECKS: Final = (
    Check(name="credentials", run=check_credentials, limit_s=15.0, for_service=False),
    Check(name="client", run=check_service_version, limit_s=15.0, for_service=False),
    Check(name="clocks", run=check_clocks, for_service=False),
    Check(name="certificate", run=check_certificate),
    Check(name="bucket", run=check_bucket, limit_s=BUCKET_S),
    Check(name="devices", run=check_devices, limit_s=PROBE_S + 15.0),
    Check(name="drivers", run=check_drivers),
    Check(name="versions", run=check_versions),
    Check(name="bytecode", run=check_byte_code),
    Check(name="variables", run=check_variables),
    Check(name="disk", run=check_disks),
    Check(name="limits", run=check_limits),
    Check(name="kernel", run=check_kernel),
    Check(name="ports", run=check_ports),
    Check(name="names", run=check_names),
    Check(name="containers", run=check_containers, limit_s=20.0),
    Check(name="leftovers", run=check_leftovers),
)
"""The checks. Clocks and credentials are those of a client; a service compares its clock with its database's."""


def diagnose(surroundings: Surroundings | None = None, *, only: Sequence[str] = ()) -> Diagnosis:
    """Runs the checks. Blocks for as long as the slowest one takes, which is bounded.

    Args:
        surroundings: what they look at; by default this process's home and environment.
        only: the names of the checks to run; empty for all.

    Raises:
        InvalidInputError: there is no check of a name.
    """
    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            raise InvalidInputError("no such check", received=name, allowed=names, action=closest(name, names))
    chosen = [check for check in CHECKS if not only or check.name in only]
    return run_checks(chosen, surroundings or Surroundings(home=Home.from_env()))


def find_faults(surroundings: Surroundings | None = None) -> list[Finding]:
    """Returns what is wrong with a machine and with what it can reach, errors first. Blocks as `diagnose` does.

    Args:
        surroundings: what the checks look at; by default this process's home and environment.
    """
    return list(diagnose(surroundings).findings)
