"""Large JSON read in parts is what Python's own reader makes of it, errors included."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.serving.json_parts import load_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_a_document_is_read_as_by_python(document: object, indent: int | None, ascii_only: bool) -> None:
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert load_object(data) == json.loads(data)


@given(st.text(alphabet='{}[]":,1e-. \n\tntrue\\u00e4', max_size=24))
def test_what_is_no_json_is_refused_as_by_python(text: str) -> None:
    data = text.encode()
    try:
        wanted: object = json.loads(data)
    except ValueError:
        with pytest.raises(ValueError, match=r"line \d+ column \d+"):
            load_object(data)
    else:
        assert load_object(data) == wanted


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b'{"a":[1,]}', b'{"a":[1 2]}', b'{"a":1} x', b"{1:2}"],
)
def test_a_document_that_ends_too_soon_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"line 1 column \d+"):
        load_object(data)


@pytest.mark.parametrize("data", [b'{"a": NaN}', b'{"a": [Infinity]}', b"NaN"])
def test_numbers_that_json_does_not_know_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        load_object(data)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_encodings_of_json_are_known(encoding: str) -> None:
    assert load_object('{"ä": [1]}'.encode(encoding)) == {"ä": [1]}
