"""Every strategy behaves alike: `lockstep.testing.strategies`."""

import pytest
from tests.strategies.setups import SETUPS

from lockstep.testing.strategies import BEHAVIOURS


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_behaviour(setup, behaviour):
    behaviour(setup)
