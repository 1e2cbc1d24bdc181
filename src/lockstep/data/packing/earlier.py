"""Decides whether a data set is already packed, from the same source and with the same options.

A wrong "yes" would leave outdated records in the bucket. So everything has to match: the fingerprint in the manifests,
the names and lengths of the shards, and there must be no journal of a run that was interrupted since.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from lockstep.data.files.shards import ShardName
from lockstep.data.packing.journal import journal_folder
from lockstep.data.packing.manifest import Manifest, manifest_key
from lockstep.data.packing.placing import find_earlier_keys
from lockstep.data.packing.plan import Plan
from lockstep.data.packing.run import Say
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import AbstractBucket

SETTLED_S: Final = 2.0
"""The age, in seconds, that a source's last change must have when packing begins, so that a later change gets another
modification time: the times of stores and file systems have a resolution of up to 2 s."""


def find_finished(bucket: AbstractBucket, plan: Plan, *, say: Say) -> dict[str, Manifest] | None:
    """Looks for a finished packing that the plan would only repeat.

    Args:
        bucket: the bucket of the packed data.
        plan: the plan to compare with.
        say: the function to call with a message that says why an earlier packing differs.

    Returns:
        The manifests of the finished packing, by the split's name; None if there is none.

    Raises:
        StorageError: the bucket could not be read.
    """
    if plan.fingerprint is None or bucket.list(journal_folder(plan.name)):
        return None
    manifests: dict[str, Manifest] = {}
    for split in plan.splits:
        key = manifest_key(plan.name, split=split)
        try:
            manifests[split] = Manifest.from_json(bucket.read(key), url=bucket.url_of(key))
        except (CorruptDataError, MissingInputError):
            return None
    if any(manifest.fingerprint is None for manifest in manifests.values()):
        reason = "it cannot be determined whether its source has changed"
    elif any((of.fingerprint, of.source) != (plan.fingerprint, plan.source.origin) for of in manifests.values()):
        reason = "the source or the options are not the same"
    elif sum(len(manifest.skipped) for manifest in manifests.values()) > plan.options.max_skipped:
        reason = "it skipped more damaged items than may be skipped now"
    elif not _are_there(bucket, plan, manifests):
        reason = "its files do not match its manifests"
    else:
        return manifests
    say(f"packing {plan.name} again: {reason}")
    return None


def settled_fingerprint(plan: Plan, *, begun: datetime) -> str | None:
    """Returns the fingerprint for the manifests.

    Args:
        plan: the plan that was packed.
        begun: the time at which the packing began.

    Returns:
        The plan's fingerprint; None if a file of the source was changed so recently that it may have changed again
        after it was read, with the same length and modification time.
    """
    changed_time_s = plan.source.changed_time_s
    is_settled = changed_time_s is None or changed_time_s + SETTLED_S <= begun.timestamp()
    return plan.fingerprint if is_settled else None


def _are_there(bucket: AbstractBucket, plan: Plan, manifests: dict[str, Manifest]) -> bool:
    stated = {shard.file: shard.size_bytes for manifest in manifests.values() for shard in manifest.shards}
    names = [key for key in find_earlier_keys(bucket, plan.name, plan.splits) if ShardName.parse(key) is not None]
    sizes = {item.key: item.size_bytes for item in bucket.list(f"{plan.name}-")}
    return {key: sizes.get(key) for key in names} == stated
