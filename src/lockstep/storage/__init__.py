"""Buckets by URL: local folders, this process's memory, Google Cloud Storage, Amazon S3."""

from lockstep.storage.base import AbstractBucket, StoredObject
from lockstep.storage.registry import glob_urls, join_url, open_bucket, read_url, split_url

__all__ = ["AbstractBucket", "StoredObject", "glob_urls", "join_url", "open_bucket", "read_url", "split_url"]
