"""Every strategy behaves alike: `lockstep.testing.strategies`."""

import pytest
from tests.strategies.setups import SETUPS

from lockstep.testing.strategies import BEHAVIOURS

DEAR = {"keeps_state_where_its_layout_says", "takes_single_batches"}
"""Behaviours that compile the most: `make test` asks them of one strategy of each kind."""
OF_A_KIND = {"mirrored", "sharded_3", "central_storage"}
CELLS = [
    pytest.param(
        setup,
        behaviour,
        id=f"{setup.name}-{behaviour.__name__}",
        marks=pytest.mark.heavy if behaviour.__name__ in DEAR and setup.name not in OF_A_KIND else (),
    )
    for setup in SETUPS
    for behaviour in BEHAVIOURS
]


@pytest.mark.parametrize(("setup", "behaviour"), CELLS)
def test_behaviour(setup, behaviour):
    behaviour(setup)
