"""Finds the paths in a program's arguments and environment variables."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Final

_WILDCARD: Final = re.compile(r"/[^/]*[*?[].*")


def named_paths(words: Iterable[str]) -> tuple[str, ...]:
    """Returns the absolute paths in the given words, without duplicates; for a glob pattern, the folder above it.

    Args:
        words: arguments or values, such as ``/data/*.tfrec``, ``--data=/data`` or ``file:///data``.
    """
    found: list[str] = []
    for word in words:
        text = word[word.find("=") + 1 :] if word.startswith("-") else word
        path = _WILDCARD.sub("", text.removeprefix("file://"))
        if path.startswith("/"):
            found.append(posixpath.normpath(path))
    return tuple(dict.fromkeys(found))
