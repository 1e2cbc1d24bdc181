"""One of the processes of `test_deaths`: saves twice, and ends while it writes the second time, or is killed."""

import os
import signal
import sys

import orbax.checkpoint as ocp
from tests.checkpoints.moving_process import HERE, make_model, make_strategy

from lockstep.checkpoints import CheckpointDirectory, TrainingState
from lockstep.topology import Topology


def die_while_writing():
    """Has this process be killed when its shards are being written, before it says that they are there."""
    write = ocp.PyTreeCheckpointHandler.async_save

    async def begin_and_die(self, *args, **kwargs):
        await write(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    ocp.PyTreeCheckpointHandler.async_save = begin_and_die


def main(folder, what):
    model = make_model(make_strategy("sharded-3"), seed=1)
    directory = CheckpointDirectory(folder)
    directory.save(TrainingState.capture(model, position=HERE))
    directory.wait()
    print("saved", flush=True)
    if what == "die" and Topology.from_env().process_id == 1:
        die_while_writing()
    directory.save(TrainingState.capture(model, position=HERE))
    if what == "die":
        directory.wait()
        print("saved again", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
