"""Finds the objects that the URLs and patterns of ``lockstep bucket`` name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.storage import StoredObject, glob_objects, has_wildcard, join_url, open_bucket


@final
@dataclass(frozen=True, kw_only=True)
class FoundObject:
    """An object that was found under a URL.

    Attributes:
        url: the object's URL.
        name: the last part of the object's key; for an object found below a folder, its key relative to this folder.
        item: the key, size and time of the stored object.
    """

    url: str
    name: str
    item: StoredObject


def folder_name(url: str) -> str:
    """Returns the last part of a folder's URL; "" for a whole bucket, and for ".", which means a folder's contents."""
    _, separator, rest = url.rstrip("/").rpartition("://")
    if separator and "/" not in rest:
        return ""
    name = rest.rpartition("/")[2]
    return "" if name == "." else name


def local_path(url: str) -> Path | None:
    """Returns the path for a URL on this machine; None for a URL of a store, such as ``gs://``."""
    scheme, separator, rest = url.rpartition("://")
    return Path(rest).expanduser() if not separator or scheme == "file" else None


def is_link(url: str) -> bool:
    """Whether a URL is a symbolic link on this machine."""
    path = local_path(url)
    return path is not None and path.is_symlink()


def is_folder(url: str) -> bool:
    """Whether a URL is a whole bucket, a folder of this machine, or has objects below it.

    Raises:
        StorageError: the bucket could not be listed.
    """
    path = local_path(url)
    if path is not None:
        return path.is_dir()
    return is_bucket(url) or bool(open_bucket(url).list())


def is_bucket(url: str) -> bool:
    """Whether a URL is a whole bucket of a store."""
    return local_path(url) is None and "/" not in url.partition("://")[2].rstrip("/")


def find_objects(url: str, *, follows_links: bool = True) -> list[FoundObject]:
    """Finds the objects that match a URL or a pattern, in sorted order, without folders.

    Args:
        url: the URL or the pattern.
        follows_links: whether to follow symbolic links; see `lockstep.storage.AbstractBucket.list`.

    Raises:
        MissingInputError: there are no such objects.
        InvalidInputError: the URL is not valid, or is a folder.
        StorageError: the bucket could not be listed.
    """
    found = {} if is_bucket(url) or url.endswith("/") else glob_objects(url, follows_links=follows_links)
    if found:
        return [FoundObject(url=name, name=name.rpartition("/")[2], item=item) for name, item in found.items()]
    if not has_wildcard(url) and is_folder(url):
        raise InvalidInputError(f"{url} is a folder", action="add --recursive to include its contents")
    raise MissingInputError(f"there is no object {url}")


def find_below(url: str, *, follows_links: bool = True) -> list[FoundObject]:
    """Finds all objects in a folder or a bucket, in sorted order; like `find_objects` for an object or a pattern.

    Args:
        url: the URL or the pattern.
        follows_links: whether to follow symbolic links; see `lockstep.storage.AbstractBucket.list`.

    Raises:
        MissingInputError: there are no such objects.
        InvalidInputError: the URL is not valid.
        StorageError: the bucket could not be listed.
    """
    if has_wildcard(url) or not is_folder(url) or (is_link(url) and not follows_links):
        return find_objects(url, follows_links=follows_links)
    listed = open_bucket(url).list(follows_links=follows_links)
    below = [FoundObject(url=join_url(url, item.key), name=item.key, item=item) for item in listed]
    if not below:
        raise MissingInputError(f"there is nothing in {url}")
    return below
