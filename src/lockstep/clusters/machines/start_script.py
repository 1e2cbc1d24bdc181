"""Generates the startup script of a machine, which joins the engine by itself and turns itself off at the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from lockstep.clusters.ray.node_start import start_arguments


def start_script(
    name: str,
    *,
    node_type: str,
    head_address: str,
    token: str,
    setup_commands: Sequence[str] = (),
    before_off: Sequence[str] = (),
) -> str:
    """Returns the startup script of a cloud's machine, for Bash, to be run as root.

    The script writes the token to a file in memory (``/run``), so that no command line and no environment contains it.
    The machine is turned off however the script ends, so that a forgotten machine does not cost money forever.

    Args:
        name: the machine's name.
        node_type: the node type of the machine.
        head_address: "host:port" of the head's control store.
        token: the token that all of Ray's ports require.
        setup_commands: commands to run before the node starts, in one shell. The first one that fails ends the script.
        before_off: commands to run before the machine is turned off. Their failures are ignored.
    """
    lines = [
        "#!/bin/bash",
        "set -e",
        "turn_off() {",
        "set +e",
        *before_off,
        "shutdown -P now || poweroff -f",
        "}",
        "trap turn_off EXIT",
        'export HOME="${HOME:-/root}"',
        *_setup(setup_commands),
        "folder=/run/lockstep",
        "mkdir -p -m 0700 $folder",
        f"(umask 077 && printf %s {shlex.quote(token)} > $folder/ray-token)",  # printf is a builtin: no command line
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/ray-token RAY_USAGE_STATS_ENABLED=0",
        "ulimit -n 65536 || true",
        _start(name, node_type=node_type, head_address=head_address),
    ]
    return "\n".join(lines) + "\n"


def pod_script(name: str, *, node_type: str, head_address: str, setup_commands: Sequence[str] = ()) -> str:
    """Returns the script that the container of a pod that is a machine runs. The token is mounted into the pod.

    Args:
        name: the machine's name.
        node_type: the node type of the machine.
        head_address: "host:port" of the head's control store.
        setup_commands: commands to run before the node starts, in one shell. The first one that fails ends the pod.
    """
    start = _start(name, node_type=node_type, head_address=head_address)
    return "\n".join(["set -e", *_setup(setup_commands), f"exec {start}"]) + "\n"


def _setup(commands: Sequence[str]) -> list[str]:
    return [f"eval {shlex.quote(command)}" for command in commands]


def _start(name: str, *, node_type: str, head_address: str) -> str:
    return f"ray {shlex.join(start_arguments(name, node_type=node_type, head_address=head_address))}"
