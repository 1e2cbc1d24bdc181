"""Counts with parameter servers: each worker adds its share to a number that the servers hold, and the master reads it.

It uses the addresses of ``TF_CONFIG`` and sockets alone, as any program may: every role runs this same script.
"""

from __future__ import annotations

import json
import os
import socket
import time

CONNECT_TIMEOUT_S = 60.0


def ask(address: str, request: str) -> str:
    """Sends a line to a server and returns its answer; waits until the server listens."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as peer:
                peer.sendall(f"{request}\n".encode())
                return peer.makefile().readline().strip()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def serve(address: str) -> None:
    """Holds a number: "add N" adds to it, "get" asks for it and how many have added. Ends when the job does."""
    total, num_adds = 0, 0
    host, port = address.rsplit(":", 1)
    with socket.create_server((host, int(port))) as server:
        print(f"serving at {address}", flush=True)
        while True:
            peer, _ = server.accept()
            with peer:
                words = peer.makefile().readline().split()
                if words[:1] == ["add"]:
                    total, num_adds = total + int(words[1]), num_adds + 1
                peer.sendall(f"{num_adds} {total}\n".encode())


def main() -> None:
    """Does what this replica's role asks for."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    role, index = task["type"], task["index"]
    workers, servers = cluster["worker"], cluster["ps"]
    print(f"{role} {index} of 1 master, {len(workers)} workers, {len(servers)} parameter servers", flush=True)
    if role == "ps":
        serve(servers[index])
    elif role == "worker":
        for number, server in enumerate(servers):
            ask(server, f"add {(index + 1) * 10**number}")
    else:
        totals: list[int] = []
        for server in servers:
            while True:
                num_adds, total = (int(word) for word in ask(server, "get").split())
                if num_adds == len(workers):
                    break
                time.sleep(0.1)
            totals.append(total)
        print(f"totals {totals}", flush=True)


if __name__ == "__main__":
    main()
