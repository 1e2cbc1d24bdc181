"""Generates a systemd unit for the service. systemd starts it with the machine, and restarts it when it dies."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Final

from lockstep.clusters import read_choice
from lockstep.errors import InvalidInputError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.service.lifecycle import service_command
from lockstep.service.listening import check_binding, read_certificate
from lockstep.service.security.users import decide_users, users_warning
from lockstep.service.settings import Settings
from lockstep.service.store.postgres import PASSWORD_VARIABLE

NAME: Final = "lockstep.service"

_USERS: Final = """\
# Lockstep's service as a unit of your own. Save it where systemd finds units, and start it:
#
#   mkdir -p ~/.config/systemd/user
#   lockstep up --print-unit > ~/.config/systemd/user/{name}
#   systemctl --user daemon-reload
#   systemctl --user enable --now {name}
#   loginctl enable-linger     # so that it runs while you are not logged in, too
#
# End it with `systemctl --user stop {name}`; jobs run on, until `lockstep down --cancel` ends them with their engine.
"""
_SYSTEMS: Final = """\
# Lockstep's service as a unit of this machine. Save it where systemd finds units, and start it:
#
#   lockstep up --print-unit > /etc/systemd/system/{name}
#   systemctl daemon-reload
#   systemctl enable --now {name}
#
# End it with `systemctl stop {name}`; jobs run on, until `lockstep down --cancel` ends them with their engine.
"""
_UNIT: Final = """\
# It has the settings that `lockstep up` was given. Print it again when they change, quotas and budgets too.
[Unit]
Description=Lockstep service of {home}
{after}StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=exec
ExecStart={start}
ExecStopPost={end}
Restart=on-failure
RestartSec=2
# The engine and the jobs outlive the service; the next one finds them.
KillMode=process
OOMPolicy=continue
TimeoutStopSec=60
StandardOutput=append:{log}
StandardError=inherit
Environment={path}
# Variables with secrets, such as {password}: one NAME=value a line, in a file that its owner alone may read.
EnvironmentFile=-{variables}

[Install]
WantedBy={target}"""


def unit_of(settings: Settings) -> str:
    """Returns the text of a unit that runs a service with these settings: a system unit for root, else a user unit.

    Raises:
        InvalidInputError: If a setting cannot be written in a unit.
    """
    is_root = os.geteuid() == 0
    ends = [sys.executable, "-P", "-m", "lockstep.service.process.ends", str(settings.home.path)]
    unit = _UNIT.format(
        home=_escape(str(settings.home.path)),
        after="After=network-online.target\nWants=network-online.target\n" if is_root else "",
        start=_line([*service_command(settings), "--kept-by-systemd"]),
        end=_line(ends),
        path=_quote(_escape(f"PATH={os.environ.get('PATH', os.defpath)}")),
        password=PASSWORD_VARIABLE,
        variables=_escape(str(settings.home.path / "variables")),
        log=_escape(str(settings.home.service_log)),
        target="multi-user.target" if is_root else "default.target",
    )
    return (_SYSTEMS if is_root else _USERS).format(name=NAME) + unit


def check_unit(settings: Settings) -> str:
    """Returns a warning to the operator about a unit with these settings; "" if there is nothing to warn about.

    Raises:
        InvalidInputError: If the service would not start with these settings.
    """
    check_binding(settings.host, has_tls=settings.has_tls, has_keys=True)  # keys may be created later
    if settings.tls_certificate is not None and settings.tls_key is not None:
        read_certificate(settings.tls_certificate, key=settings.tls_key)
    home, asked = settings.home, settings.run_as
    nodes_are_here = read_choice(home, catalogue=load_catalogue()).is_local
    pool, note = decide_users(asked, home=home, bucket=settings.bucket, nodes_are_here=nodes_are_here)
    return users_warning(asked, pool=pool, note=note, nodes_are_here=nodes_are_here)


def _line(command: Sequence[str]) -> str:
    """Returns a command, quoted for systemd; see "COMMAND LINES" in systemd.service(5)."""
    return " ".join(_quote(_escape(word).replace("$", "$$")) for word in command)


def _escape(text: str) -> str:
    if not text.isprintable():  # a newline would begin another setting
        raise InvalidInputError(
            "a systemd unit cannot contain control characters", received=text, action="choose another path or value"
        )
    return text.replace("%", "%%")


def _quote(word: str) -> str:
    if re.fullmatch(r"[\w@%+=:,./$-]+", word, re.ASCII):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
