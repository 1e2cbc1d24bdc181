"""Opens buckets by URL, and splits, joins and matches URLs of objects.

A URL is ``gs://bucket/key``, ``s3://bucket/key``, ``memory://bucket/key``, ``file:///absolute/path``, or a local path,
absolute or relative to the working folder.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Final, cast

from lockstep.errors import InvalidInputError, closest
from lockstep.storage.base import AbstractBucket, StoredObject
from lockstep.storage.retrying import DEFAULT_POLICY, RetryPolicy

_CLASSES: Final = {
    "file": "lockstep.storage.local:LocalBucket",
    "memory": "lockstep.storage.memory:MemoryBucket",
    "gs": "lockstep.storage.gs:GsBucket",
    "s3": "lockstep.storage.s3:S3Bucket",
}
_WILDCARD: Final = re.compile(r"[*?[]")
_PART: Final = re.compile(r"\[!?[^\]/]+\]|.")


def open_bucket(url: str | os.PathLike[str], *, policy: RetryPolicy = DEFAULT_POLICY) -> AbstractBucket:
    """Opens a bucket, or a prefix within one: keys are relative to the whole URL. Nothing is read or written yet.

    Args:
        url: the bucket's URL, in one of the forms of `lockstep.storage.registry`; a trailing "/" is ignored.
        policy: the policy for retries and timeouts.

    Raises:
        InvalidInputError: the URL's scheme is unknown, the URL names no bucket, or it needs an extra that is not
            installed.
    """
    text = os.fspath(url)
    scheme, rest = _parse(text)
    module, _, name = _CLASSES[scheme].partition(":")
    # Each kind of bucket is imported on first use: the clouds' clients are slow to import, and optional.
    bucket_class = cast("type[AbstractBucket]", getattr(importlib.import_module(module), name))
    return bucket_class(rest if scheme == "file" else f"{scheme}://{rest}", policy=policy)


def check_shared_url(url: str, *, what: str) -> None:
    """Rejects a URL that means a different place in another process or folder: a relative path, or ``memory://``.

    Args:
        url: the URL of a bucket or object.
        what: the field or flag that has the URL, for the message.

    Raises:
        InvalidInputError: the URL is a relative path, begins with ``memory://``, or is invalid.
    """
    scheme, rest = _parse(url)
    if scheme == "memory" or (scheme == "file" and not rest.startswith("/")):
        kinds = ", ".join(f"{name}://bucket/key" for name in _CLASSES if name not in ("file", "memory"))
        raise InvalidInputError(
            f"{what}: must mean the same place in other processes",
            received=url,
            allowed=f"an absolute path, {kinds}",
        )


def local_path(url: str | os.PathLike[str]) -> str | None:
    """Returns the path of a local folder or file if its URL is absolute; None for any other URL.

    Raises:
        InvalidInputError: the URL is invalid.
    """
    scheme, rest = _parse(os.fspath(url))
    return os.path.normpath(rest) if scheme == "file" and rest.startswith("/") else None


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Splits an object's URL into its bucket's URL and its key.

    The bucket of a cloud's URL is its first name: ``gs://b/p/x`` gives ``("gs://b", "p/x")``. The bucket of a path is
    the folder that contains the file: ``/d/p/x`` gives ``("/d/p", "x")``.

    Raises:
        InvalidInputError: the URL names no object.
    """
    text = os.fspath(url)
    scheme, rest = _parse(text)
    if scheme == "file":
        folder, _, key = rest.rpartition("/")
        bucket_url = folder or ("/" if rest.startswith("/") else ".")
    else:
        name, _, key = rest.partition("/")
        bucket_url = f"{scheme}://{name}"
    if not key:
        raise InvalidInputError("the URL names a bucket, not an object in it", received=text)
    return bucket_url, key


def join_url(url: str | os.PathLike[str], *parts: str) -> str:
    """Appends names to a URL: ``join_url("gs://b/p/", "x/", "y")`` gives ``"gs://b/p/x/y"``.

    Args:
        url: the URL of a bucket or object.
        *parts: keys or parts of keys; empty ones are ignored.
    """
    text = os.fspath(url)
    joined = "/".join(part.strip("/") for part in parts if part.strip("/"))
    if not joined:
        return text
    return f"{text}{joined}" if text.endswith("/") else f"{text}/{joined}"


def write_once(url: str, *, data: bytes) -> bool:
    """Writes an object unless it exists already, and returns whether it was written.

    Args:
        url: the URL of the object, which names its content.
        data: the content.

    Raises:
        InvalidInputError: the URL is invalid.
        StorageError: the bucket could not be read or written.
    """
    bucket_url, key = split_url(url)
    bucket = open_bucket(bucket_url)
    if bucket.exists(key):
        return False
    bucket.write(key, data)
    return True


def read_url(url: str | os.PathLike[str]) -> bytes:
    """Reads a whole object.

    Raises:
        InvalidInputError: the URL is invalid.
        MissingInputError: the object does not exist.
        StorageError: the object could not be read.
    """
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url).read(key)


def glob_urls(pattern: str | os.PathLike[str]) -> list[str]:
    """Returns the URLs of the objects that match a pattern, sorted.

    Args:
        pattern: a URL with wildcards in its key: ``*`` matches any text within a name, ``?`` one character, ``[abc]``
            one of these characters, and ``**``, alone between slashes, any number of names. A URL without wildcards
            matches the one object that it names.

    Returns:
        The URLs, in the form of the pattern; an empty list if nothing matches.

    Raises:
        InvalidInputError: the URL is invalid.
        StorageError: the bucket could not be listed.
    """
    text = os.fspath(pattern)
    if not has_wildcard(text):
        bucket_url, key = split_url(text)
        return [text] if open_bucket(bucket_url).exists(key) else []
    return list(glob_objects(text))


def has_wildcard(url: str) -> bool:
    """Whether a URL contains wildcards."""
    return _WILDCARD.search(url) is not None


def glob_objects(pattern: str | os.PathLike[str], *, follows_links: bool = True) -> dict[str, StoredObject]:
    """Returns the objects that `glob_urls` finds, with their lengths and times.

    Lists the bucket even if the pattern has no wildcards.

    Args:
        pattern: a URL, as for `glob_urls`.
        follows_links: whether symbolic links are followed, as in `AbstractBucket.list`.

    Returns:
        The objects by URL, sorted. Each object's key is relative to the deepest folder without wildcards in the
        pattern. Without wildcards, it is the key that `split_url` returns.

    Raises:
        InvalidInputError: the URL is invalid.
        StorageError: the bucket could not be listed.
    """
    text = os.fspath(pattern)
    wildcard = _WILDCARD.search(text)
    if wildcard is None:
        bucket_url, key = split_url(text)
        listed = open_bucket(bucket_url).list(key, follows_links=follows_links)
        found = next((item for item in listed if item.key == key), None)
        return {} if found is None else {text: found}
    # The bucket is the deepest folder without wildcards. The beginning of the first name with a wildcard is the prefix
    # of the listing.
    folder = text[: text.rfind("/", 0, wildcard.start()) + 1]
    bucket = open_bucket(folder or ".")
    matching = re.compile(_translate(text[len(folder) :]))
    beginning = text[len(folder) : wildcard.start()]
    listed = bucket.list(beginning, follows_links=follows_links)
    return {folder + item.key: item for item in listed if matching.fullmatch(item.key)}


def _translate(pattern: str) -> str:
    names = pattern.split("/")
    expression = ""
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        if name == "**":
            expression += ".*" if is_last else "(?:[^/]+/)*"
        else:
            expression += _translate_name(name) + ("" if is_last else "/")
    return expression


def _translate_name(name: str) -> str:
    expression = ""
    for part in _PART.findall(name):
        if part == "*":
            expression += "[^/]*"
        elif part == "?":
            expression += "[^/]"
        elif len(part) > 1:
            negated = part[1] == "!"
            characters = part[2 if negated else 1 : -1].replace("\\", "\\\\").replace("^", "\\^")
            expression += f"(?!/)[{'^' if negated else ''}{characters}]"
        else:
            expression += re.escape(part)
    return expression


def _parse(url: str) -> tuple[str, str]:
    """Returns the scheme ("file" for a path) and the rest of the URL, without trailing slashes."""
    if not url:
        raise InvalidInputError("the URL is empty", allowed=_forms())
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "file", url.rstrip("/") or "/"
    if scheme not in _CLASSES:
        raise InvalidInputError(
            "no such kind of storage", received=url, allowed=_forms(), action=closest(scheme, _CLASSES)
        )
    if scheme == "file" and not rest.startswith("/"):
        raise InvalidInputError("a file URL names an absolute path", received=url, allowed="file:///path")
    if not rest.strip("/"):
        if scheme == "file":
            return scheme, "/"
        raise InvalidInputError("the URL names no bucket", received=url, allowed=_forms())
    return scheme, rest.rstrip("/")


def _forms() -> str:
    return ", ".join("a path" if scheme == "file" else f"{scheme}://bucket/key" for scheme in _CLASSES)
