"""A process of `test_watchdog` and `test_meeting`: meets the others and is watched; without JAX, so it starts fast.

Its argument says what it does when all have met, `VICTIM` which rank does it; the others wait.
"""

import functools
import os
import signal
import sys
import threading

from lockstep.strategies.peers.endings import ProcessExit
from lockstep.strategies.peers.joining import TIMEOUT_VARIABLE, seconds_from
from lockstep.strategies.peers.meeting import meet_peers
from lockstep.strategies.peers.watchdog import Watchdog
from lockstep.topology import Topology


def finish(watchdog, failed):
    if not failed:
        watchdog.leave()


def main(what):
    topology = Topology.from_env()
    timeout_s = seconds_from(os.environ, TIMEOUT_VARIABLE)
    wait_s = seconds_from(os.environ, "WAIT_S") or 30
    process_exit = ProcessExit()
    meeting = meet_peers(topology, wait_s=wait_s, timeout_s=timeout_s)
    watchdog = Watchdog(meeting, on_loss=process_exit.exit_now)
    process_exit.watch(watchdog, on_exit=functools.partial(finish, watchdog))
    print("met", *map(str, meeting.peers), flush=True)
    is_victim = topology.process_id == int(os.environ.get("VICTIM", "-1"))
    if what == "agree":
        for number in range(3):
            watchdog.agree(f"round {number}", ["the same", f"{number}"])
        print("agreed", flush=True)
        watchdog.agree("fit", ["one", "other" if is_victim else "another"])
    if what == "agree with a leaver" and not is_victim:
        watchdog.agree("fit", [])
    if what == "runtime error" and not is_victim:
        threading.Event().wait(0.5)
        raise ValueError("UNKNOWN: Gloo AllReduce failed: Connection closed by peer")
    if is_victim and what == "raise":
        raise ValueError("a fault of its own")
    if what == "all raise":
        raise ValueError("the same fault everywhere")
    if is_victim and what == "fork":
        child = os.fork()
        if child == 0:
            signal.pause()
        print("forked", child, flush=True)
    if what == "all leave" or (is_victim and what in ("leave", "agree with a leaver", "runtime error")):
        return
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
