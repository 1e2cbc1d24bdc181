"""The journal of a packing run, from which the next run resumes: which shards are finished, and where they are.

The journal is in the bucket, in the folder ``NAME.packing``, and is rewritten after each shard. A run resumes from it
if the source and the options are the same, as the fingerprint tells. Otherwise the run starts from the beginning.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, final

from lockstep.data.packing.manifest import Skipped
from lockstep.data.packing.writer import FinishedShard
from lockstep.errors import MissingInputError, StorageWriteError
from lockstep.storage import AbstractBucket

_FORMAT: Final = 1
_FOLDER_SUFFIX: Final = ".packing"


@final
@dataclass(frozen=True, kw_only=True)
class JournalState:
    """The contents of a journal.

    Attributes:
        fingerprint: the fingerprint of source and options; None if no run can resume from this journal.
        created: the time at which packing began.
        is_direct: whether shards are uploaded directly under their final names; otherwise, they wait in the journal's
            folder.
        is_publishing: whether all shards are finished, an earlier data set has been deleted, and the waiting shards are
            being moved to their final names.
        shards: the finished shards in the bucket, those of each split in the order of their index.
        run: the id of the run that writes this journal. A run that takes the journal over replaces it by its own id.
    """

    fingerprint: str | None
    created: datetime
    is_direct: bool
    is_publishing: bool = False
    shards: tuple[FinishedShard, ...] = ()
    run: str = ""

    def to_json(self) -> str:
        """Serializes the journal to JSON."""
        document = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "created": self.created.isoformat(),
            "is_direct": self.is_direct,
            "is_placing": self.is_publishing,
            "run": self.run,
            "shards": [asdict(shard) for shard in self.shards],
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> JournalState | None:
        """Parses a journal; None if it is damaged or has another format."""
        try:
            document: dict[str, Any] = json.loads(text)
            if document["format"] != _FORMAT:
                return None
            state = cls(
                fingerprint=document["fingerprint"],
                created=datetime.fromisoformat(document["created"]),
                is_direct=bool(document["is_direct"]),
                is_publishing=bool(document["is_placing"]),
                shards=tuple(_read_shard(shard) for shard in document["shards"]),
                run=str(document.get("run", "")),
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return state if _is_consistent(state.shards) else None


def journal_folder(name: str) -> str:
    """Returns the key prefix of everything that a run stores in the bucket only until it ends."""
    return f"{name}{_FOLDER_SUFFIX}/"


def journal_key(name: str) -> str:
    """Returns the key of the journal."""
    return f"{journal_folder(name)}journal.json"


def name_of_journal(key: str) -> str | None:
    """Returns the data set's name, with its folders, for a key in a journal's folder; None for any other key."""
    folder, separator, _ = key.rpartition("/")
    return folder.removesuffix(_FOLDER_SUFFIX) if separator and folder.endswith(_FOLDER_SUFFIX) else None


def pending_key(name: str, shard: FinishedShard) -> str:
    """Returns the key of a finished shard until it is moved to its final name."""
    return f"{journal_folder(name)}{shard.split}-{shard.index:05d}.part"


def read_journal(bucket: AbstractBucket, name: str) -> JournalState | None:
    """Reads the journal of a data set; None if it is missing or cannot be used."""
    try:
        return JournalState.from_json(bucket.read(journal_key(name)))
    except MissingInputError:
        return None


def claim_journal(bucket: AbstractBucket, name: str, state: JournalState) -> JournalState:
    """Writes the journal of a run that begins or resumes, with a new run id, and returns it."""
    claimed = replace(state, run=uuid.uuid4().hex)
    bucket.write(journal_key(name), claimed.to_json().encode())
    return claimed


def write_journal(bucket: AbstractBucket, name: str, state: JournalState) -> None:
    """Writes the journal after checking that it still belongs to this run.

    Raises:
        StorageWriteError: another run has taken the journal over.
    """
    check_journal(bucket, name, state)
    bucket.write(journal_key(name), state.to_json().encode())


def check_journal(bucket: AbstractBucket, name: str, state: JournalState) -> None:
    """Checks that the journal still belongs to this run, because two concurrent runs would mix their shards.

    The stores have no locks, so a run that begins at the same moment may be missed here. It is noticed at the next
    shard.

    Raises:
        StorageWriteError: another run has taken the journal over.
    """
    found = read_journal(bucket, name)
    if found is None or found.run != state.run:
        raise StorageWriteError(
            f"another run is packing {name} into {bucket.url}",
            action="wait until it ends; if it has already ended, start this run again: it resumes where it can",
        )


def _read_shard(document: dict[str, Any]) -> FinishedShard:
    skipped = tuple(Skipped(key=str(item["key"]), reason=str(item["reason"])) for item in document.pop("skipped"))
    shard = FinishedShard(skipped=skipped, **document)
    numbers = (shard.index, shard.num_records, shard.size_bytes, shard.last_position)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(shard.split, str):
        raise ValueError("not a shard")
    return shard


def _is_consistent(shards: Sequence[FinishedShard]) -> bool:
    """Whether the shards of each split are numbered from 0 without a gap."""
    nexts: dict[str, int] = {}
    for shard in shards:
        if shard.index != nexts.get(shard.split, 0):
            return False
        nexts[shard.split] = shard.index + 1
    return True
