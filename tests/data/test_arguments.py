from typing import Any

import numpy as np
import pytest

from lockstep.data.arguments import flag_given, is_sequence, number_given, range_given, whole_given, whole_or_none
from lockstep.errors import InvalidInputError


@pytest.mark.parametrize("given", [3, np.int8(3), np.array(3)], ids=["int", "int8", "array"])
def test_whole_numbers_are_taken_from_numpy_too(given: Any) -> None:
    number = whole_given(given, of="a size", least=3, most=3)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("given", [True, np.True_, 3.0, "3", None, [3]], ids=repr)
def test_nothing_else_is_a_whole_number(given: Any) -> None:
    assert whole_or_none(given) is None


def test_the_bounds_are_said() -> None:
    with pytest.raises(InvalidInputError, match="a size; received 2; allowed: a whole number, 3 or more"):
        whole_given(2, of="a size", least=3)
    with pytest.raises(InvalidInputError, match="a size; received 5; allowed: a whole number, 3 to 4"):
        whole_given(5, of="a size", least=3, most=4)
    with pytest.raises(InvalidInputError, match=r"a part; received 1.5; allowed: a number, 0 to 1"):
        number_given(1.5, of="a part", least=0, most=1)
    with pytest.raises(InvalidInputError, match=r"parts; received \(1, 0\); .*, the smaller one first, each 0 to 1"):
        range_given((1, 0), of="parts", least=0, most=1)
    with pytest.raises(InvalidInputError, match="a flag; received 'None'; allowed: True, False"):
        flag_given(None, of="a flag")


def test_numbers_within_their_bounds() -> None:
    assert number_given(np.float32(0.5), of="a part", least=0, most=1) == 0.5
    assert range_given([0, 1], of="parts", least=0, most=1) == (0.0, 1.0)
    assert flag_given(np.True_, of="a flag") is True


def test_text_is_no_sequence() -> None:
    assert [is_sequence(given) for given in ([], (), np.zeros(1), np.zeros(()), "a", b"a", {1})] == [True] * 3 + [
        False
    ] * 4
