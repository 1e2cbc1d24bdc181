"""Every strategy gives the numbers of one device under Keras's ``fit``: `lockstep.testing.exactness`."""

import pytest
from tests.strategies.setups import SETUPS, few_light, of_each_value

from lockstep.testing.exactness import check, full_product, pairwise

PAIRWISE = [cell for cell in pairwise(SETUPS) if cell.way == "fit" and cell.fits_here]
REST = [cell for cell in full_product(SETUPS) if cell.way == "fit" and cell.fits_here and cell not in PAIRWISE]


@pytest.mark.parametrize("cell", few_light(PAIRWISE, of_each_value), ids=str)
def test_pairwise(cell, references):
    check(cell, references=references)


@pytest.mark.product
@pytest.mark.parametrize("cell", REST, ids=str)
def test_the_rest(cell, references):
    check(cell, references=references)
