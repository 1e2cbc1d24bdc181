"""A bucket of Amazon S3, or of a server with the same protocol, through s3fs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

from lockstep.storage.remote import AbstractRemoteBucket, missing_extra
from lockstep.storage.retrying import RetryPolicy

_MAX_CONNECTIONS: Final = 128


@final
class S3Bucket(AbstractRemoteBucket):
    """A bucket with the URL ``s3://bucket`` or ``s3://bucket/prefix``.

    botocore finds the credentials. The environment variable ``AWS_ENDPOINT_URL`` selects another server.
    """

    permission_advice: ClassVar[str] = "use credentials whose policy allows it (AWS_PROFILE chooses others)"
    credentials_advice: ClassVar[str] = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run: aws configure"
    host_advice: ClassVar[str] = (
        "check the network, the region, and where AWS_ENDPOINT_URL is set the host that it names"
    )
    # By default, s3fs requests the size first and reads a large object in several requests, between which the object
    # may change.
    whole_read_options: ClassVar[Mapping[str, Any]] = {"max_concurrency": 1}

    def _connect(self, policy: RetryPolicy, *, num_attempts: int) -> Any:  # fsspec is not typed
        try:
            s3fs: Any = importlib.import_module("s3fs")  # an optional extra
        except ModuleNotFoundError:
            raise missing_extra(self.url, extra="s3", package="s3fs") from None
        files = s3fs.S3FileSystem(
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": policy.connect_timeout_s,
                "read_timeout": policy.read_timeout_s,
                # The default is 10, and concurrent reads of more records would wait for a free connection.
                "max_pool_connections": _MAX_CONNECTIONS,
                "retries": {"total_max_attempts": num_attempts, "mode": "standard"},
            },
        )
        files.retries = 1  # by default, s3fs makes five attempts in addition to botocore's
        return files

    def _path_of_root(self) -> str:
        return self.url.removeprefix("s3://")
