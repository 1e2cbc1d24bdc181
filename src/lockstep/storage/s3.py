"""A bucket of Amazon S3, or of a server that speaks its protocol, through s3fs."""

from __future__ import annotations

import importlib
from typing import Any, final

from lockstep.storage.remote import AbstractRemoteBucket, missing_extra


@final
class S3Bucket(AbstractRemoteBucket):
    """``s3://bucket`` or ``s3://bucket/prefix``.

    Credentials are those that botocore finds; ``AWS_ENDPOINT_URL`` names another server.
    """

    def _connect(self) -> Any:  # fsspec is not typed
        try:
            s3fs: Any = importlib.import_module("s3fs")  # an optional extra
        except ModuleNotFoundError:
            raise missing_extra(self.url, extra="s3", package="s3fs") from None
        return s3fs.S3FileSystem(use_listings_cache=False)

    def _path_of_root(self) -> str:
        return self.url.removeprefix("s3://")
