"""One of the processes of `test_stateful_steps`: trains models whose step takes the batch alone, and writes numbers."""

import os

import numpy as np

from lockstep.strategies import MultiWorkerMirroredStrategy


def main():
    strategy = MultiWorkerMirroredStrategy()
    from tests.strategies.test_stateful_steps import train  # after the processes have met: it makes arrays

    for kind in ("gan", "distiller"):
        _, found = train(strategy, kind)
        np.savez(f"{os.environ['FOLDER']}/{kind}{strategy.topology.process_id}.npz", **found)


if __name__ == "__main__":
    main()
