"""Every strategy gives the numbers of one device under a pure step in JAX: `lockstep.testing.exactness`."""

import pytest
from tests.strategies.setups import SETUPS

from lockstep.testing.exactness import check, pairwise

PAIRWISE = [cell for cell in pairwise(SETUPS) if cell.way == "pure" and cell.fits_here]


@pytest.mark.heavy
@pytest.mark.parametrize("cell", PAIRWISE, ids=str)
def test_pairwise(cell, references):
    check(cell, references=references)
