"""Parses and checks the flags of ``lockstep data pack``, and puts the names of flags into error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lockstep.errors import InvalidInputError, LockstepError

# The commands import these rooms when they run, so that other commands start without NumPy.
if TYPE_CHECKING:
    from lockstep.data.sources import AbstractSource
    from lockstep.data.sources.transcoding import Transcoding

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(|K|KI|M|MI|G|GI)B", re.IGNORECASE)
_BYTES: Final = {"": 1, "K": 1000, "KI": 1 << 10, "M": 1000**2, "MI": 1 << 20, "G": 1000**3, "GI": 1 << 30}
_IMAGE_SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")

_FLAGS: Final = {
    "num_shards": "--shards",
    "bytes_per_shard": "--shard-size",
    "records_per_shard": "--records-per-shard",
    "num_workers": "--workers",
    "on_error": "--on-error",
    "max_skipped": "--max-skipped",
    "size": "--image-size",
    "resizing": "--resize",
    "transcoding": "--image-size, --resize, --codec, --quality",
    "column_types": "--column",
    **{name: f"--{name}" for name in ("codec", "quality", "key", "delimiter", "name", "split", "folder", "seed")},
}
"""The flags for the API's parameters, by the parameter's name."""

_IN_BRACKETS: Final = re.compile(r"\(([a-z_]+(?:, [a-z_]+)*)(?:: (\w+))?\)")
_UNMISTAKABLE: Final = re.compile(rf"\b({'|'.join(name for name in _FLAGS if '_' in name)})\b")


def in_flags(error: LockstepError) -> LockstepError:
    """Returns an error of packing with the names of flags in place of the API's parameters."""
    allowed = error.allowed
    return type(error)(
        _in_flags(error.what),
        received=error.received,
        allowed=_in_flags(allowed) if isinstance(allowed, str) else allowed,
        action=None if error.action is None else _in_flags(error.action),
    )


def _in_flags(text: str) -> str:
    def named(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        if not all(name in _FLAGS for name in names):
            return found[0]
        return f"({', '.join(_FLAGS[name] for name in names)}{' ' + found[2] if found[2] else ''})"

    return _UNMISTAKABLE.sub(lambda found: _FLAGS[found[1]], _IN_BRACKETS.sub(named, text))


def read_size(text: str) -> int:
    """Parses a size with its unit, such as 500KB or 64MiB, and returns the number of bytes.

    Raises:
        InvalidInputError: the text is not a size, or has no unit; a number alone would be ambiguous.
    """
    found = _SIZE.fullmatch(text.strip())
    size_bytes = 0 if found is None else round(float(found[1]) * _BYTES[found[2].upper()])
    if size_bytes < 1:
        raise InvalidInputError(
            "--shard-size",
            received=text,
            allowed="a number with its unit: B, KB, MB, GB (of 1000), KiB, MiB, GiB (of 1024), such as 64MiB",
        )
    return size_bytes


def read_split(text: str | None) -> str | dict[str, float] | None:
    """Parses ``--split``: the name of a split, or the fractions of several splits by name."""
    from lockstep.data.packing.assigning import parse_fractions

    return parse_fractions(text) if text is not None and "=" in text else text


def read_transcoding(
    *, image_size: str | None, resize: str | None, codec: str | None, quality: int | None
) -> Transcoding | None:
    """Parses the flags for images; returns None if images are kept unchanged.

    Raises:
        InvalidInputError: a flag is not valid.
    """
    if image_size is None and resize is None and codec is None and quality is None:
        return None
    from lockstep.data.sources.transcoding import Transcoding

    size: tuple[int, int] | None = None
    if image_size is not None:
        found = _IMAGE_SIZE.fullmatch(image_size)
        if found is None:
            raise InvalidInputError("--image-size", received=image_size, allowed="HEIGHTxWIDTH, such as 224x224")
        size = (int(found[1]), int(found[2]))
    elif resize is not None:
        raise InvalidInputError("--resize needs --image-size", action="give --image-size HxW")
    words: Any = {"resizing": resize or "crop", "codec": codec}  # `Transcoding` checks them
    return Transcoding(size=size, quality=quality, **words)


def read_columns(texts: list[str]) -> Iterator[tuple[str, str]]:
    """Parses the values of ``--column``, and yields the name and type of each column.

    Raises:
        InvalidInputError: a text is not ``NAME=TYPE``, or a column is named twice.
    """
    names: set[str] = set()
    for text in texts:
        name, separator, word = text.rpartition("=")
        if not separator or not name:
            raise InvalidInputError("--column", received=text, allowed="NAME=TYPE, such as age=float")
        if name in names:
            raise InvalidInputError("--column names a column twice", received=name)
        names.add(name)
        yield name, word


def check_places(*, source: str, bucket: str) -> None:
    """Rejects ``memory://`` URLs, because the memory of this process is lost when the command ends.

    Raises:
        InvalidInputError: the source or the bucket is a ``memory://`` URL.
    """
    for what, url in (("SOURCE", source), ("BUCKET", bucket)):
        if url.startswith("memory://"):
            raise InvalidInputError(
                f"{what}: memory:// is lost when this command ends",
                received=url,
                allowed="a path, gs://bucket/path or s3://bucket/path",
            )


def check_one_size(given: Mapping[str, object]) -> None:
    """Checks that at most one of the flags for the size of shards is given.

    Raises:
        InvalidInputError: several are given.
    """
    flags = [flag for flag, value in given.items() if value is not None]
    if len(flags) > 1:
        raise InvalidInputError(
            "the size of shards is given more than once",
            received=", ".join(flags),
            allowed=f"one of {', '.join(given)}",
        )


def check_fit(
    source: AbstractSource, *, shuffle: bool | None, seed: int | None, on_error: str | None, max_skipped: int | None
) -> None:
    """Rejects flags that have no effect for the source, or together with other flags.

    Raises:
        InvalidInputError: such a flag is given.
    """
    from lockstep.data.sources.image_files import ImageFiles

    if seed is not None and not (source.is_sorted if shuffle is None else shuffle):
        raise InvalidInputError(
            "--seed has no effect without shuffling", received=seed, action="give --shuffle, or omit --seed"
        )
    if max_skipped is not None and on_error == "raise":
        raise InvalidInputError("--max-skipped has no effect with --on-error raise", action="give one of them")
    for flag, value in (("--on-error skip", on_error == "skip"), ("--max-skipped", max_skipped is not None)):
        if value and not isinstance(source, ImageFiles):
            raise InvalidInputError(f"{flag} is only for images; packing other sources stops at the first damage")
