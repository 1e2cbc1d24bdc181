"""The command by which a machine becomes a node of the engine, and the labels of the node."""

from __future__ import annotations

from typing import Final

NODE_LABEL: Final = "lockstep.io/node"
"""Ray label of a node. Its value is the machine's name in the ledger."""

NODE_TYPE_LABEL: Final = "lockstep.io/node-type"
"""Ray label of a node. Its value is the node type, a name from the cluster's definition."""


def start_arguments(name: str, *, node_type: str, head_address: str) -> list[str]:
    """Returns the arguments of ``ray`` that start a machine's node and wait until it ends.

    Args:
        name: the machine's name.
        node_type: the node type of the machine.
        head_address: "host:port" of the head's control store.
    """
    return [
        "start",
        "--block",
        f"--address={head_address}",
        f"--labels={NODE_LABEL}={name},{NODE_TYPE_LABEL}={node_type}",
        "--disable-usage-stats",
        "--include-log-monitor=false",  # programs do not write the logs that it monitors
    ]
