from typing import Any

import numpy as np
import pytest

from lockstep.data.arguments import check_bool, check_bounds, check_float, check_int, int_or_none, is_sequence
from lockstep.errors import InvalidInputError


@pytest.mark.parametrize("given", [3, np.int8(3), np.array(3)], ids=["int", "int8", "array"])
def test_whole_numbers_are_taken_from_numpy_too(given: Any) -> None:
    number = check_int(given, name="a size", minimum=3, maximum=3)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("given", [True, np.True_, 3.0, "3", None, [3]], ids=repr)
def test_nothing_else_is_a_whole_number(given: Any) -> None:
    assert int_or_none(given) is None


def test_the_bounds_are_said() -> None:
    with pytest.raises(InvalidInputError, match="a size; received 2; allowed: a whole number, 3 or more"):
        check_int(2, name="a size", minimum=3)
    with pytest.raises(InvalidInputError, match="a size; received 5; allowed: a whole number, 3 to 4"):
        check_int(5, name="a size", minimum=3, maximum=4)
    with pytest.raises(InvalidInputError, match=r"a part; received 1.5; allowed: a number, 0 to 1"):
        check_float(1.5, name="a part", minimum=0, maximum=1)
    with pytest.raises(InvalidInputError, match=r"parts; received \(1, 0\); .*, the smaller one first, each 0 to 1"):
        check_bounds((1, 0), name="parts", minimum=0, maximum=1)
    with pytest.raises(InvalidInputError, match="a flag; received 'None'; allowed: True, False"):
        check_bool(None, name="a flag")


def test_numbers_within_their_bounds() -> None:
    assert check_float(np.float32(0.5), name="a part", minimum=0, maximum=1) == 0.5
    assert check_bounds([0, 1], name="parts", minimum=0, maximum=1) == (0.0, 1.0)
    assert check_bool(np.True_, name="a flag") is True


def test_text_is_no_sequence() -> None:
    assert [is_sequence(given) for given in ([], (), np.zeros(1), np.zeros(()), "a", b"a", {1})] == [True] * 3 + [
        False
    ] * 4
