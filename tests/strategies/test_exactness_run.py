"""Every strategy gives the numbers of one device in a custom loop (``run``): `lockstep.testing.exactness`."""

import pytest
from tests.strategies.setups import SETUPS

from lockstep.testing.exactness import check, full_product, pairwise

PAIRWISE = [cell for cell in pairwise(SETUPS) if cell.way == "run" and cell.fits_here]
REST = [cell for cell in full_product(SETUPS) if cell.way == "run" and cell.fits_here and cell not in PAIRWISE]

FEW, seen = [], set()  # in which each strategy, each net, and each optimizer with each dtype is once at least
for one in reversed(PAIRWISE):
    values = {one.setup.name, one.net, (one.dtype, one.optimizer)}
    if values - seen:
        FEW.append(one)
        seen |= values


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=() if cell in FEW else pytest.mark.heavy) for cell in PAIRWISE], ids=str
)
def test_pairwise(cell, references):
    check(cell, references=references)


@pytest.mark.product
@pytest.mark.parametrize("cell", REST, ids=str)
def test_the_rest(cell, references):
    check(cell, references=references)
