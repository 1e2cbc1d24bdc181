"""How a machine becomes a node: the command that it runs, and the labels by which it is known."""

from __future__ import annotations

from typing import Final

NODE_LABEL: Final = "lockstep.io/node"
"""Ray label of a node: its machine's name, as the ledger knows it."""

NODE_TYPE_LABEL: Final = "lockstep.io/node-type"
"""Ray label of a node: its type, a name of the cluster's definition."""


def start_arguments(name: str, *, node_type: str, head_address: str) -> list[str]:
    """Returns the arguments of ``ray`` that start the node of a machine, and wait for its end.

    Args:
        name: the machine's name.
        node_type: its type.
        head_address: "host:port" of the head's control store.
    """
    return [
        "start",
        "--block",
        f"--address={head_address}",
        f"--labels={NODE_LABEL}={name},{NODE_TYPE_LABEL}={node_type}",
        "--disable-usage-stats",
        "--include-log-monitor=false",  # programs write none of the logs that it looks for
    ]
