"""What a machine of a cloud runs when it comes up: it joins the engine by itself, and turns itself off at the end."""

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
    """Returns the start-up script of a machine, for bash, as root.

    The token goes into a file of the memory file system: neither a command line nor an environment has it. The machine
    is turned off however the script ends, so that one that nobody asks back does not cost for ever.

    Args:
        name: the machine's name.
        node_type: its type.
        head_address: "host:port" of the head's control store.
        token: what Ray asks for at every port of its own.
        setup_commands: what is run before, in one shell; the first that fails ends the script.
        before_off: what is run before the machine is turned off, whether it fails or not.
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
        f"(umask 077 && printf %s {shlex.quote(token)} > $folder/ray-token)",  # printf is the shell's own: no process
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/ray-token RAY_USAGE_STATS_ENABLED=0",
        "ulimit -n 65536 || true",
        _start(name, node_type=node_type, head_address=head_address),
    ]
    return "\n".join(lines) + "\n"


def pod_script(name: str, *, node_type: str, head_address: str, setup_commands: Sequence[str] = ()) -> str:
    """Returns what the container of a pod that is a machine runs; its token is mounted.

    Args:
        name: the machine's name.
        node_type: its type.
        head_address: "host:port" of the head's control store.
        setup_commands: what is run before, in one shell; the first that fails ends the pod.
    """
    start = _start(name, node_type=node_type, head_address=head_address)
    return "\n".join(["set -e", *_setup(setup_commands), f"exec {start}"]) + "\n"


def _setup(commands: Sequence[str]) -> list[str]:
    return [f"eval {shlex.quote(command)}" for command in commands]


def _start(name: str, *, node_type: str, head_address: str) -> str:
    return f"ray {shlex.join(start_arguments(name, node_type=node_type, head_address=head_address))}"
