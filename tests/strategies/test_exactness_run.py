"""Every strategy gives the numbers of one device in a custom loop (``run``): `lockstep.testing.exactness`."""

import pytest
from tests.strategies.setups import SETUPS, few_light

from lockstep.testing.exactness import check, full_product, pairwise

PAIRWISE = [cell for cell in pairwise(SETUPS) if cell.way == "run" and cell.fits_here]
REST = [cell for cell in full_product(SETUPS) if cell.way == "run" and cell.fits_here and cell not in PAIRWISE]


def of_some_strategies(cell):
    """The strategies that cut most differently; `fit`, beside this, is compared for each in `make test`."""
    return {cell.setup.name} & {"mirrored", "multi_worker", "sharded_3", "tensor_parallel"}


@pytest.mark.parametrize("cell", few_light(reversed(PAIRWISE), of_some_strategies), ids=str)
def test_pairwise(cell, references):
    check(cell, references=references)


@pytest.mark.product
@pytest.mark.parametrize("cell", REST, ids=str)
def test_the_rest(cell, references):
    check(cell, references=references)
