"""Describes features in words."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.data.examples.feature import AbstractFeature


def describe_feature(feature: AbstractFeature) -> str:
    """Returns a description of a feature: its dtype, its shape, and how it is stored."""
    document = feature.to_json()
    dtype, kind = document["dtype"], document["type"]
    if kind == "sparse":
        keys, sizes = document["index_key"], document["size"]
        keys, sizes = ([keys], [sizes]) if isinstance(keys, str) else (keys, sizes)
        return f"{dtype}, sparse, {describe_shape(sizes)}: {document['value_key']} at {', '.join(keys)}"
    if kind == "fixed_sequence":
        return f"{dtype}, any number of steps, each {describe_shape(document['step_shape'])}"
    if kind == "ragged":
        named = f" of {document['value_key']}" if "value_key" in document else ""
        parts = [f"{name} {argument}" for name, argument in document.get("partitions", ())]
        return f"{dtype}, any number of values{named}{', parted by ' if parts else ''}{', then '.join(parts)}"
    if "shape" not in document:
        return f"{dtype}, any number of values"
    return f"{dtype}, {describe_shape(document['shape'])}{', kept as its bytes' if kind == 'raw' else ''}"


def describe_shape(shape: Sequence[int]) -> str:
    """Returns a shape as text, such as "28 x 28" or "one value"."""
    return " x ".join(map(str, shape)) or "one value"
