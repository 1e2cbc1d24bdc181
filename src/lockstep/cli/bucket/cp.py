"""``lockstep bucket cp``: copies between buckets, this machine, and standard input or output."""

from __future__ import annotations

import codecs
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.bucket.objects import FoundObject, find_below, find_objects, folder_name, is_folder, local_path
from lockstep.cli.console import ERRORS, OUTPUT, print_document, size
from lockstep.errors import InvalidInputError, counted
from lockstep.storage import has_wildcard, join_url, open_bucket, split_url

STREAM: Final = "-"
NUM_THREADS: Final = 8
COPY_BYTES: Final = 1 << 20


@answers("ObjectsForm")
def cp(
    places: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE... TARGET", help="URLs, paths, patterns; - for standard input, output."),
    ],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Copy folders with everything in them.")] = False,
) -> Answer | None:
    """Copy objects between buckets and this machine.

    Each copy appears whole or not at all, and replaces an existing object. If TARGET is an existing folder or bucket,
    or ends in /, the copies keep their names.
    """
    *sources, target = places
    if not sources:
        raise InvalidInputError("cp needs a source and a target")
    if STREAM in (*sources, target):
        _stream(sources, target)
        return None
    pairs = plan_copies(sources, target=target, recursive=recursive)
    total_bytes = sum(found.item.size_bytes for found, _ in pairs)
    with _progress(total_bytes) as advance, ThreadPoolExecutor(NUM_THREADS, "lockstep-copy") as executor:
        for num_bytes in executor.map(lambda pair: _copy(*pair), pairs):
            advance(num_bytes)
    return Answer(
        show=lambda: OUTPUT.print(f"copied {counted(len(pairs), 'object')}, {size(total_bytes)}, to {target}"),
        document={"numObjects": len(pairs), "sizeBytes": total_bytes},
    )


def plan_copies(sources: Sequence[str], *, target: str, recursive: bool) -> list[tuple[FoundObject, str]]:
    """Returns the objects to copy, each with the URL of its copy.

    Args:
        sources: the URLs, paths or patterns to copy from.
        target: the URL or path to copy to.
        recursive: whether to copy folders.

    Raises:
        MissingInputError: a source does not exist.
        InvalidInputError: a source is a folder and ``recursive`` is False, or several sources would get the same URL.
        StorageError: a bucket could not be listed.
    """
    into = target.endswith("/") or is_folder(target)
    pairs: list[tuple[FoundObject, str]] = []
    for source in sources:
        is_tree = recursive and not has_wildcard(source) and is_folder(source)
        for found in find_below(source) if is_tree else find_objects(source):
            names = (folder_name(source), found.name) if is_tree else (found.name,)
            if is_tree and not into:
                names = (found.name,)
            pairs.append((found, join_url(target, *names) if into or is_tree else target))
    url, number = Counter(url for _, url in pairs).most_common(1)[0]
    if number > 1:
        raise InvalidInputError(
            f"several sources would be copied to {url}", action="give an existing folder, or end the target with /"
        )
    return pairs


def _copy(found: FoundObject, url: str) -> int:
    """Copies one object, and returns its size in bytes."""
    source, target = local_path(found.url), local_path(url)
    if source is not None:
        _upload(source, url)
    elif target is not None:
        _download(found.url, target)
    else:
        with tempfile.TemporaryDirectory(prefix="lockstep-copy-") as folder:
            passing = Path(folder) / "object"
            _download(found.url, passing)
            _upload(passing, url)
    return found.item.size_bytes


def _upload(path: Path, url: str) -> None:
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).upload(key, path=path)


def _download(url: str, path: Path) -> None:
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).download(key, path=path)


def _stream(sources: Sequence[str], target: str) -> None:
    """Copies standard input to an object, or an object to standard output."""
    if len(sources) > 1 or sources[0] == target:
        raise InvalidInputError(
            f"{STREAM} can be combined with only one object", allowed=f"cp {STREAM} URL, or cp URL {STREAM}"
        )
    if target == STREAM:
        (found, *others) = find_objects(sources[0])
        if others:
            raise InvalidInputError(
                f"{STREAM} can be combined with only one object",
                received=sources[0],
                allowed="no pattern that matches several",
            )
        bucket_url, key = split_url(found.url)
        with open_bucket(bucket_url).open(key) as source:
            if OUTPUT.is_terminal:  # sanitized, since a job may have written the object
                for part in codecs.iterdecode(iter(partial(source.read, COPY_BYTES), b""), "utf-8", errors="replace"):
                    print_document(part)
                return
            shutil.copyfileobj(source, sys.stdout.buffer, COPY_BYTES)
        sys.stdout.buffer.flush()
        return
    with tempfile.NamedTemporaryFile(prefix="lockstep-copy-") as passing:  # complete before the upload
        shutil.copyfileobj(sys.stdin.buffer, passing, COPY_BYTES)
        passing.flush()
        _upload(Path(passing.name), target)


@contextmanager
def _progress(total_bytes: int) -> Generator[Callable[[int], object]]:
    """Shows a progress bar on a terminal, and nothing elsewhere, because the last line says what was copied."""
    if not ERRORS.is_terminal:
        yield lambda _: None
        return
    # Imported here because the help needs none of it.
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=ERRORS, transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda num_bytes: bar.advance(task, num_bytes)
