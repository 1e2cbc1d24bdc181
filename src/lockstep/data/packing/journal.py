"""What an interrupted run leaves, so that the next one goes on: which shards are finished, and where they are.

It stands in the bucket, in the folder ``NAME.packing``, and is written anew after each shard. A run goes on from it
where source and options are the same, which a fingerprint tells; otherwise it starts anew.
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
    """What a journal says.

    Attributes:
        fingerprint: of the source and the options; None where nobody can go on from it.
        created: when the packing began.
        is_direct: whether shards are put at once under their final names; otherwise they wait in the journal's folder.
        is_placing: whether all shards are finished, earlier ones deleted, and the waiting ones being moved.
        shards: those that are finished and in the bucket, those of each split by their index.
        run: names the run that goes on with it; another one that takes it over puts its own name there.
    """

    fingerprint: str | None
    created: datetime
    is_direct: bool
    is_placing: bool = False
    shards: tuple[FinishedShard, ...] = ()
    run: str = ""

    def to_json(self) -> str:
        """Returns the file's text."""
        document = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "created": self.created.isoformat(),
            "is_direct": self.is_direct,
            "is_placing": self.is_placing,
            "run": self.run,
            "shards": [asdict(shard) for shard in self.shards],
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> JournalState | None:
        """Reads the file's text; None where it is damaged or of another version."""
        try:
            document: dict[str, Any] = json.loads(text)
            if document["format"] != _FORMAT:
                return None
            state = cls(
                fingerprint=document["fingerprint"],
                created=datetime.fromisoformat(document["created"]),
                is_direct=bool(document["is_direct"]),
                is_placing=bool(document["is_placing"]),
                shards=tuple(_read_shard(shard) for shard in document["shards"]),
                run=str(document.get("run", "")),
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return state if _is_consistent(state.shards) else None


def journal_folder(name: str) -> str:
    """Returns the beginning of the keys of all that a run keeps in the bucket while it lasts."""
    return f"{name}{_FOLDER_SUFFIX}/"


def journal_key(name: str) -> str:
    """Returns the journal's own key."""
    return f"{journal_folder(name)}journal.json"


def name_of_journal(key: str) -> str | None:
    """Returns the name, with the folders before it, of the packing that keeps an object; None of any other object."""
    folder, separator, _ = key.rpartition("/")
    return folder.removesuffix(_FOLDER_SUFFIX) if separator and folder.endswith(_FOLDER_SUFFIX) else None


def waiting_key(name: str, shard: FinishedShard) -> str:
    """Returns the key under which a shard waits for its place."""
    return f"{journal_folder(name)}{shard.split}-{shard.index:05d}.part"


def read_journal(bucket: AbstractBucket, name: str) -> JournalState | None:
    """Reads the journal of an interrupted run; None where there is none that is usable."""
    try:
        return JournalState.from_json(bucket.read(journal_key(name)))
    except MissingInputError:
        return None


def take_journal(bucket: AbstractBucket, name: str, state: JournalState) -> JournalState:
    """Writes the journal for a run that begins or goes on: from then on it is this run's, and returned so."""
    taken = replace(state, run=uuid.uuid4().hex)
    bucket.write(journal_key(name), taken.to_json().encode())
    return taken


def write_journal(bucket: AbstractBucket, name: str, state: JournalState) -> None:
    """Writes the journal of a run whose it still is.

    Raises:
        StorageWriteError: another run has taken it.
    """
    check_journal(bucket, name, state)
    bucket.write(journal_key(name), state.to_json().encode())


def check_journal(bucket: AbstractBucket, name: str, state: JournalState) -> None:
    """Looks whether the journal still is this run's. Two runs at once would mix their shards.

    No store locks: who begins within the same moments may not be seen here, but is at the next shard.

    Raises:
        StorageWriteError: another run has taken it.
    """
    found = read_journal(bucket, name)
    if found is None or found.run != state.run:
        raise StorageWriteError(
            f"another run packs {name} into {bucket.url}",
            action="let that one end; or, if it has ended, start this one again, which goes on where it can",
        )


def _read_shard(document: dict[str, Any]) -> FinishedShard:
    skipped = tuple(Skipped(key=str(item["key"]), reason=str(item["reason"])) for item in document.pop("skipped"))
    shard = FinishedShard(skipped=skipped, **document)
    numbers = (shard.index, shard.num_records, shard.size_bytes, shard.last_position)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(shard.split, str):
        raise ValueError("not a shard")
    return shard


def _is_consistent(shards: Sequence[FinishedShard]) -> bool:
    """Whether the shards of each split are there from the first on, none left out."""
    nexts: dict[str, int] = {}
    for shard in shards:
        if shard.index != nexts.get(shard.split, 0):
            return False
        nexts[shard.split] = shard.index + 1
    return True
