"""Reads YAML safely, and rejects a key that is given twice; PyYAML would silently drop the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import yaml

from lockstep.errors import ConfigError, MissingInputError


@final
class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader; rejects mappings with duplicate keys."""


def parse_yaml(text: str, *, source: str) -> Any:
    """Parses a YAML document; an empty document gives an empty dictionary.

    Args:
        text: the document's text.
        source: the name of the document in error messages.

    Raises:
        ConfigError: If the text is not valid YAML, or has a key twice.
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
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:  # by PyYAML's constructors
        raise ConfigError(f"{source} has an invalid value: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()  # pyright: ignore[reportUnknownMemberType]  # PyYAML's types leave it open
    return {} if document is None else document


def read_yaml(path: Path, *, flag: str) -> Any:
    """Reads and parses the YAML file that a command-line flag names.

    Args:
        path: the path of the file.
        flag: the flag, for error messages.

    Raises:
        MissingInputError: If the file does not exist or cannot be read.
        ConfigError: If the file is not valid YAML, or has a key twice.
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
            raise yaml.MarkedYAMLError(problem="a key that is not text", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
