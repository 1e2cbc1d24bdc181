"""Processes of a cluster that die at random, and what its coordinator says was lost with them."""

from __future__ import annotations

import random
import re
import time
from collections import Counter

from lockstep.testing.script_cluster import ScriptCluster

FOR_S = 120


def kill_at_random(cluster: ScriptCluster, *, num_workers: int, num_servers: int = 0, seed: int) -> Counter[str]:
    """Kills workers, and servers half as often, for two minutes; returns how many of each role.

    Something is trained between two deaths, so that they fall at all places of a step: "epoch" is said anew.

    Args:
        cluster: starts who dies again by itself.
        num_workers: of which one is chosen.
        num_servers: of which one is chosen; with none, only workers die.
        seed: of what is chosen.
    """
    chance = random.Random(seed)
    num_killed: Counter[str] = Counter()
    until = time.monotonic() + FOR_S
    while time.monotonic() < until:
        before = cluster.text("chief").count("\nepoch ")
        role = chance.choice(["worker", "worker", "ps"] if num_servers else ["worker"])
        cluster.kill(role, chance.randrange(num_workers if role == "worker" else num_servers))
        num_killed[role] += 1
        again = time.monotonic() + chance.uniform(0.1, 3.0)
        cluster.wait_until(
            lambda before=before, again=again: (
                time.monotonic() > again and cluster.text("chief").count("\nepoch ") > before
            )
        )
    return num_killed


def lost_steps(text: str, *, num_servers: int) -> list[int]:
    """Returns how many steps each server lacks, by what the coordinator has said.

    Args:
        text: the coordinator's, which says "epoch 5 of 100 steps" at the end of each.
        num_servers: how many there are.
    """
    lost = [0] * num_servers
    at_epoch = {0: list(lost)}  # what a checkpoint was without
    for line in text.splitlines():
        if said := re.search(r"ps (\d) has its part of the checkpoint after epoch (\d+): (\d+) steps? since", line):
            server, epoch, num_steps = map(int, said.groups())
            lost[server] = at_epoch[epoch][server] + num_steps
        elif said := re.search(r"ps (\d) missed the gradients of (\d+) steps?", line):
            lost[int(said.group(1))] += int(said.group(2))
        elif said := re.match(r"epoch (\d+) of", line):
            at_epoch[int(said.group(1))] = list(lost)
    return lost
