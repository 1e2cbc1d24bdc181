"""Bodies of requests for predictions that nobody thought of."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
from hypothesis import strategies as st

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
NUMBERS = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "255",
        "256",
        "-1",
        "0.5",
        "1e39",
        "-1e400",
        "1e-400",
        "2147483648",
        "9" * 19,
        "9" * 400,
        "01",
        "1.",
    ]
) | st.integers().map(str)
WORDS_OF_JSON = st.sampled_from(
    ["true", "false", "null", "NaN", "Infinity", "-Infinity", "undefined", '"\\ud800"', '"\\u0000"']
)
STRINGS = st.text(max_size=5).map(json.dumps) | st.just(json.dumps("x" * 500)) | st.sampled_from(['"1"', '"NaN"', '""'])
BYTES = st.sampled_from([b"", b"\x00" * 3, b"\x00" * 12, PNG, PNG[:20], b"\xff\xd8\xff\xe0"]) | st.binary(max_size=14)
B64 = (
    BYTES.map(base64.b64encode).map(bytes.decode)
    | st.text(max_size=6)
    | st.sampled_from(["====", "AA\nAA", "data:;base64,AAAA", "\u00e9"])
).map(lambda text: f'{{"b64":{json.dumps(text)}}}')
DEEP = st.sampled_from([2, 31, 64, 65, 400, 900, 990, 1015, 1021]).flatmap(
    lambda depth: st.sampled_from(["[" * depth + "1" + "]" * depth, '{"x":' * depth + "1" + "}" * depth])
)
KEYS = st.sampled_from(["x", "rate", "words", "flag", "image", "image_bytes", "b64", "instances", ""]) | st.text(
    max_size=3
)


def _list(items: list[str]) -> str:
    return f"[{','.join(items)}]"


def _object(pairs: list[tuple[str, str]]) -> str:
    """Returns an object, in which a key may be there several times."""
    return "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs) + "}"


VALUES = st.recursive(
    NUMBERS | WORDS_OF_JSON | STRINGS | B64 | DEEP,
    lambda inner: st.lists(inner, max_size=4).map(_list) | st.lists(st.tuples(KEYS, inner), max_size=4).map(_object),
    max_leaves=12,
)


def bodies(fitting: str) -> st.SearchStrategy[bytes]:
    """Returns bodies with instances of which some fit, and all around them.

    Args:
        fitting: the JSON of an instance that fits.
    """
    with_a_value = st.tuples(st.integers(0, fitting.count(",") + 1), VALUES).map(lambda at: _replaced(fitting, *at))
    instance = st.just(fitting) | with_a_value | VALUES
    instances = st.lists(instance, max_size=4).map(_list)
    whole = instances.map(lambda text: f'{{"instances":{text}}}')
    others = st.lists(st.tuples(st.sampled_from(["instances", "parameters", "x"]), instances | VALUES), max_size=3)
    texts = (whole | whole | others.map(_object) | VALUES).map(lambda text: text.encode("utf-8", "surrogatepass"))
    cut = st.tuples(texts, st.integers(0, 60), st.sampled_from([b"\xff", b"\x00", b"\xed\xa0\x80", b"", b",", b"]"]))
    return texts | texts | cut.map(lambda at: at[0][: at[1]] + at[2] + at[0][at[1] + 1 :]) | st.binary(max_size=20)


def _replaced(fitting: str, at: int, value: str) -> str:
    """Returns an instance with another value before its comma number `at`, or with one value more."""
    parts = fitting.split(",")
    if at >= len(parts):
        return f"{fitting[:-1]},{value}{fitting[-1]}"
    start = max(parts[at].rfind(mark) for mark in "[:") + 1
    end = len(parts[at].rstrip("]}"))
    parts[at] = f"{parts[at][:start]}{value}{parts[at][end:]}"
    return ",".join(parts)


def instances_in(body: bytes) -> list[Any] | None:
    """Returns the instances of a body; None if it is not one that is all right around them."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict) or set(document) != {"instances"}:
        return None
    return document["instances"] if isinstance(document["instances"], list) else None
