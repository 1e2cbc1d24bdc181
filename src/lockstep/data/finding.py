"""Finds packed files by name: groups them by data set, and reports what is missing or left by other packing runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.files.shards import ShardName, check_complete, data_set_of, find_set, is_pattern
from lockstep.data.packing.journal import journal_folder, name_of_journal
from lockstep.data.packing.leftovers import Unfinished, describe_earlier, find_unfinished
from lockstep.data.packing.manifest import SUFFIX as MANIFEST_SUFFIX
from lockstep.data.packing.manifest import Manifest, Shard
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, MissingInputError, counted
from lockstep.storage import StoredObject, glob_urls, join_url, open_bucket, read_url, split_url

COPY_AGAIN: Final = "copy the file again from its source, or pack it again"
"""The advice for a file that differs from what was packed."""

_PACKED: Final = re.compile(r".*\.tfrec(ord)?s?(-\d{5,}-of-\d{5,})?(\.(gz|gzip|zlib|zz))?")


@final
@dataclass(frozen=True, kw_only=True)
class Damage:
    """One error in packed data.

    Attributes:
        url: the URL of the file, or of the data set.
        error: the error; its one-line message names the file.
        record: the number of the damaged record in its file, from 0; None if the damage is not in a single record.
        offset: the byte at which the record begins in the file, or in the decompressed data of a compressed file.
        num_files: the number of files that are affected.
    """

    url: str
    error: LockstepError
    record: int | None = None
    offset: int | None = None
    num_files: int = 1


@final
@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """One file of records.

    Attributes:
        url: the file's URL.
        size_bytes: the file's length in bytes.
        stated: the manifest's entry for the file; None if no manifest has one.
    """

    url: str
    size_bytes: int
    stated: Shard | None = None

    @property
    def num_stated(self) -> int | None:
        """The number of records that the manifest states, or else the file's name; None if neither states it."""
        if self.stated is not None:
            return self.stated.num_records
        name = ShardName.parse(self.url)
        return None if name is None else name.num_records


@final
@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """The files of one split of a data set, or a single file that is not a shard.

    Attributes:
        url: the folder and the split's name, such as "gs://b/pets-train"; `find_packed` accepts it as a target.
        files: the files that exist, in the order of their names.
        missing: the shards that the manifest states but that do not exist.
        manifest: the split's manifest; None if there is none that can be read.
        damages: what is wrong, as far as names and the manifest show it.
    """

    url: str
    files: tuple[PackedFile, ...]
    missing: tuple[Shard, ...]
    manifest: Manifest | None
    damages: tuple[Damage, ...]


@final
@dataclass(frozen=True, kw_only=True)
class PackedSets:
    """The result of `find_packed`.

    Attributes:
        sets: the splits and single files that were found, in the order of their URLs.
        notes: remarks of one line each that are not damage: unfinished packing runs, and splits of earlier runs.
    """

    sets: tuple[PackedSet, ...]
    notes: tuple[str, ...]


def find_packed(target: str) -> PackedSets:
    """Finds packed files by their names and manifests, without reading the files.

    Args:
        target: the URL of a file; a pattern; a bucket or folder, which is searched recursively; or the name of a data
            set's split, ``BUCKET/NAME-train``.

    Raises:
        InvalidInputError: If the target is not usable.
        MissingInputError: If nothing was found.
        StorageError: If the bucket could not be listed.
    """
    listing = _list(target)
    members: dict[str, list[str]] = {url.removesuffix(MANIFEST_SUFFIX): [] for url in listing.manifest_urls or ()}
    for url in listing.sizes:
        folder, separator, file = url.rpartition("/")
        members.setdefault(folder + separator + data_set_of(file), []).append(url)
    sets = tuple(_make_set(url, urls, listing) for url, urls in sorted(members.items()))
    unfinished = [f"{found}" for found in listing.unfinished]
    if not sets:
        if unfinished:
            raise MissingInputError(f"no packed file is at {target} yet; {'; '.join(unfinished)}")
        raise MissingInputError(
            f"no packed file is at {target}",
            allowed="a bucket or folder, a data set's split in it (BUCKET/NAME-train), a pattern, or a file",
        )
    manifests = {found.url: found.manifest for found in sets if found.manifest is not None}
    return PackedSets(sets=sets, notes=(*unfinished, *describe_earlier(manifests)))


@final
@dataclass(frozen=True, kw_only=True)
class PackedObjects:
    """The objects of a listing that belong to one split of a data set, or a single file that is not a shard.

    Attributes:
        key: the folder and the split's name, such as "pets/pets-train", below what was listed.
        files: the files of records, in the order of their names.
        manifest: the manifest; None if there is none.
    """

    key: str
    files: tuple[StoredObject, ...]
    manifest: StoredObject | None


def group_objects(items: Iterable[StoredObject]) -> list[PackedObjects]:
    """Groups the packed files and manifests of a listing by the split that they belong to, without reading any.

    Args:
        items: the objects; those that are neither are left out.

    Returns:
        The splits, in the order of their keys.
    """
    files: dict[str, list[StoredObject]] = {}
    manifests: dict[str, StoredObject] = {}
    for item in items:
        if item.key.endswith(MANIFEST_SUFFIX):
            manifests[item.key.removesuffix(MANIFEST_SUFFIX)] = item
        elif _PACKED.fullmatch(item.key):
            folder, separator, file = item.key.rpartition("/")
            files.setdefault(folder + separator + data_set_of(file), []).append(item)
    return [
        PackedObjects(key=key, files=tuple(sorted(files.get(key, ()), key=_key_of)), manifest=manifests.get(key))
        for key in sorted(files.keys() | manifests.keys())
    ]


def _key_of(item: StoredObject) -> str:
    return item.key


def raise_damages(damages: Sequence[Damage], *, num_files: int, num_damaged: int = 0) -> None:
    """Raises an error if anything is wrong: the error itself if there is only one, else one that counts them.

    Args:
        damages: what is wrong.
        num_files: the number of files that were checked.
        num_damaged: the number of damaged records.

    Raises:
        CorruptDataError: If data is damaged.
        MissingInputError: If no data is damaged, but a file is missing.
        StorageError: If no data is damaged and no file is missing, but a file could not be read.
    """
    if not damages:
        return
    errors = [damage.error for damage in damages]
    for kind in (CorruptDataError, MissingInputError):
        worst = [error for error in errors if isinstance(error, kind)]
        if worst:
            break
    else:
        worst = errors
    if len(errors) == 1 and num_damaged <= 1:
        raise errors[0]
    num_wrong = sum({damage.url: damage.num_files for damage in damages}.values())
    wrong = "1 file is damaged or missing" if num_wrong == 1 else f"{num_wrong} files are damaged or missing"
    damaged = f"; {num_damaged:,} records are damaged" if num_damaged > 1 else ""
    raise type(worst[0])(f"{wrong}, {num_files} {'was' if num_files == 1 else 'were'} checked{damaged}")


@final
@dataclass(frozen=True, kw_only=True)
class _Listing:
    """What listing a target shows, before any file is read.

    Attributes:
        sizes: the files' lengths in bytes, by URL.
        manifest_urls: the manifests that exist; None if that is not known.
        unfinished: the unfinished packing runs.
        is_whole: whether the other files of the same data set were looked for; False if the target is a single file.
    """

    sizes: dict[str, int]
    manifest_urls: tuple[str, ...] | None = None
    unfinished: tuple[Unfinished, ...] = ()
    is_whole: bool = True


def _list(target: str) -> _Listing:
    target = target.removesuffix(MANIFEST_SUFFIX)  # the URL of a manifest stands for its split
    if is_pattern(target):
        urls = [url for url in glob_urls(target) if _may_have_records(url)]
        sizes = dict(zip(urls, map(_size_bytes, urls), strict=True))
        return _Listing(sizes=sizes, unfinished=_find_unfinished_of(sizes))
    with suppress(InvalidInputError, MissingInputError):  # the target may be a bucket, not an object
        return _Listing(sizes={target: _size_bytes(target)}, is_whole=False)
    bucket = open_bucket(target)
    items = bucket.list()
    listing = _Listing(
        sizes={join_url(target, item.key): item.size_bytes for item in items if _PACKED.fullmatch(item.key)},
        manifest_urls=tuple(join_url(target, item.key) for item in items if item.key.endswith(MANIFEST_SUFFIX)),
        unfinished=find_unfinished(bucket, items, beginning=f"{target.rstrip('/')}/"),
    )
    if listing.sizes or listing.manifest_urls or listing.unfinished:
        return listing
    sizes = find_set(target)
    manifest_urls: tuple[str, ...] = ()
    with suppress(InvalidInputError, MissingInputError):
        manifest_url = f"{target.rstrip('/')}{MANIFEST_SUFFIX}"
        _size_bytes(manifest_url)
        manifest_urls = (manifest_url,)
    return _Listing(sizes=sizes, manifest_urls=manifest_urls, unfinished=_find_unfinished_of(sizes))


def _may_have_records(url: str) -> bool:
    """Whether a file may contain records: manifests, indexes and journals do not."""
    return not url.endswith((MANIFEST_SUFFIX, INDEX_SUFFIX)) and name_of_journal(url) is None


def _size_bytes(url: str) -> int:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url).size_bytes(key)


def _find_unfinished_of(urls: Iterable[str]) -> tuple[Unfinished, ...]:
    """Finds unfinished packing runs that have already finished shards of the same splits as these files."""
    names = {(url.removesuffix(url.rpartition("/")[2]), ShardName.parse(url)) for url in urls}
    splits = sorted({(beginning, name.data_set) for beginning, name in names if name is not None})
    found: dict[str, Unfinished] = {}
    for beginning, data_set in splits:
        bucket = open_bucket(beginning or ".")
        for dash in (place for place, character in enumerate(data_set) if character == "-"):
            name, split = data_set[:dash], data_set[dash + 1 :]
            items = bucket.list(journal_folder(name))
            if items:
                shards = bucket.list(f"{name}-")
                for unfinished in find_unfinished(bucket, [*items, *shards], beginning=beginning):
                    if unfinished.has_begun(split):
                        found[unfinished.url] = unfinished
    return tuple(found.values())


def _make_set(url: str, urls: Sequence[str], listing: _Listing) -> PackedSet:
    damages: list[Damage] = []
    manifest: Manifest | None = None
    manifest_url = url + MANIFEST_SUFFIX
    if listing.manifest_urls is None or manifest_url in listing.manifest_urls:
        try:
            manifest = Manifest.from_json(read_url(manifest_url), url=manifest_url)
        except MissingInputError:
            pass
        except LockstepError as error:
            damages.append(Damage(url=manifest_url, error=error))
    stated = {} if manifest is None else {shard.file: shard for shard in manifest.shards}
    files = tuple(PackedFile(url=of, size_bytes=listing.sizes[of], stated=stated.get(_name(of))) for of in urls)
    missing: tuple[Shard, ...] = ()
    if manifest is not None:
        others = [file.url for file in files if file.stated is None]
        if others:
            damages.append(_describe_others(url if listing.is_whole else others[0], others, manifest))
        if listing.is_whole:
            present = {_name(file.url) for file in files}
            missing = tuple(shard for shard in manifest.shards if shard.file not in present)
        folder = url.removesuffix(_name(url))
        for shard in missing:
            lost = folder + shard.file
            error = MissingInputError(f"{lost}: the manifest lists it, but it does not exist")
            damages.append(Damage(url=lost, error=error))
    elif listing.is_whole:
        try:
            check_complete(urls, what=url)
        except (MissingInputError, CorruptDataError) as error:
            damages.append(Damage(url=url, error=_explain_missing(error, url, listing.unfinished)))
    return PackedSet(url=url, files=files, missing=missing, manifest=manifest, damages=tuple(damages))


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _describe_others(url: str, others: Sequence[str], manifest: Manifest) -> Damage:
    """Describes files of a data set that come from another packing run than its manifest."""
    what = f"{len(others)} files, {_name(others[0])} and others, belong"
    if len(others) == 1:
        what = "it belongs" if url == others[0] else f"{_name(others[0])} belongs"
    listed = counted(len(manifest.shards), "other shard")
    error = CorruptDataError(
        f"{url}: {what} to another packing run: {manifest.key} lists {listed}",
        action="delete the outdated files: readers reject a mix of both",
    )
    return Damage(url=url, error=error, num_files=len(others))


def _explain_missing(error: LockstepError, url: str, unfinished: Iterable[Unfinished]) -> LockstepError:
    """Explains missing shards by a packing run that has not written them yet, if there is one."""
    if isinstance(error, MissingInputError) and any(found.has_placed(url) for found in unfinished):
        action = "its packing run is unfinished; run the same command again to resume it"
        return MissingInputError(error.what, action=action)
    return error
