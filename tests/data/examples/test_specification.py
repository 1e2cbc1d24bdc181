from typing import Any

import numpy as np
import pytest

from lockstep.data import ExampleParser, FixedLenFeature, SequenceExampleParser, VarLenFeature
from lockstep.errors import InvalidInputError

WRITTEN = '{"label": FixedLenFeature((), np.int64)}'


def fixed_len_feature_of_another_library() -> Any:
    return type("FixedLenFeature", (), {})()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, f"a specification of features; received 'None'; allowed: features by name, such as {WRITTEN}"),
        ("label", "a specification of features; received 'label'; allowed: "),
        ([VarLenFeature(np.int64)], "a specification of features; received [VarLenFeature("),
        ({1: VarLenFeature(np.int64)}, "the name of a feature in a specification; received 1; allowed: non-empty text"),
        ({"": VarLenFeature(np.int64)}, "the name of a feature in a specification; received ''; allowed: non-empty"),
        ({"a\ud800": VarLenFeature(np.int64)}, "the name of a feature in a specification; received "),
        ({"a": np.int64}, "FixedLenFeature, FixedLenSequenceFeature, RaggedFeature, RawFeature, SparseFeature, Var"),
        ({"a": np.int64}, f"of lockstep.data; write a feature with its arguments, such as {WRITTEN}"),
        ({"a": FixedLenFeature}, "'a' of the specification is not a feature; received <class "),
        ({"a": "int64"}, "'a' of the specification is not a feature; received 'int64'; allowed: "),
        ({"a": None}, "'a' of the specification is not a feature; received 'None'; allowed: "),
        ({"a": fixed_len_feature_of_another_library()}, "; use the class FixedLenFeature of lockstep.data"),
    ],
    ids=[
        "None",
        "text",
        "list",
        "number as name",
        "no name",
        "half a pair",
        "classes",
        "a dtype",
        "a class",
        "a dtype's name",
        "nothing",
        "another library's",
    ],
)
def test_what_is_no_specification_is_named(spec: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ExampleParser(spec)
    assert message in str(caught.value)
    if spec is not None:  # which sequence examples take for no feature
        for arguments in ((spec,), (None, spec)):
            with pytest.raises(InvalidInputError) as caught:
                SequenceExampleParser(*arguments)
            assert message in str(caught.value)


def test_an_empty_specification_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="the specification is empty; allowed: one feature or more"):
        ExampleParser({})
