"""YAML as people write it: read safely, and a key that is given twice is refused rather than the first one dropped."""

from __future__ import annotations

from typing import Any, final

import yaml


@final
class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader, for mappings without doubled keys."""


def read_yaml(text: str) -> Any:
    """Returns what a YAML document says.

    Raises:
        yaml.YAMLError: it is not YAML, or has a key twice.
    """
    loader = _UniqueKeyLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
