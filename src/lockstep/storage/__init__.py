"""Buckets addressed by URL: local folders, this process's memory, Google Cloud Storage, and Amazon S3."""

from lockstep.storage.base import AbstractBucket, StoredObject
from lockstep.storage.faults import may_succeed_later
from lockstep.storage.registry import (
    check_shared_url,
    glob_objects,
    glob_urls,
    has_wildcard,
    join_url,
    local_path,
    open_bucket,
    read_url,
    split_url,
    write_once,
)
from lockstep.storage.retrying import QUICK_POLICY, RetryPolicy

__all__ = [
    "QUICK_POLICY",
    "AbstractBucket",
    "RetryPolicy",
    "StoredObject",
    "check_shared_url",
    "glob_objects",
    "glob_urls",
    "has_wildcard",
    "join_url",
    "local_path",
    "may_succeed_later",
    "open_bucket",
    "read_url",
    "split_url",
    "write_once",
]
