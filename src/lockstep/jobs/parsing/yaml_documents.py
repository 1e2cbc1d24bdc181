"""YAML as people write it: read safely, and a key that is given twice is refused rather than the first one dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import yaml

from lockstep.errors import ConfigError, MissingInputError


@final
class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader, for mappings without doubled keys."""


def parse_yaml(text: str, *, source: str) -> Any:
    """Returns what a YAML document says; an empty one says no keys.

    Args:
        text: the document.
        source: what to call it in errors.

    Raises:
        ConfigError: it is not YAML, or has a key twice.
    """
    loader: _UniqueKeyLoader | None = None
    try:
        loader = _UniqueKeyLoader(text)
        document = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"{source} is not YAML{where}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:  # of PyYAML's own constructors
        raise ConfigError(f"{source} has a value that is not what it looks like: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()  # pyright: ignore[reportUnknownMemberType]  # PyYAML's types leave it open
    return {} if document is None else document


def read_yaml(path: Path, *, flag: str) -> Any:
    """Returns what a YAML file that a flag names says.

    Args:
        path: the file.
        flag: the flag, for errors.

    Raises:
        MissingInputError: it is not there, or cannot be read.
        ConfigError: it is not YAML, or has a key twice.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise MissingInputError(f"{flag}: no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MissingInputError(f"{flag}: {path} cannot be read: {error}") from None
    return parse_yaml(text, source=str(path))


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key that is no text", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
