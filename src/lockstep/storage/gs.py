"""A bucket of Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import importlib
from typing import Any, final

from lockstep.storage.remote import AbstractRemoteBucket, missing_extra


@final
class GsBucket(AbstractRemoteBucket):
    """``gs://bucket`` or ``gs://bucket/prefix``.

    Credentials are Google's application default ones; ``STORAGE_EMULATOR_HOST`` names another server.
    """

    def _connect(self) -> Any:  # fsspec is not typed
        try:
            # An optional extra. What `gcsfs` itself exports asks for each bucket's kind first, which takes a permission
            # of its own and is told as a warning where it is lacking.
            gcsfs: Any = importlib.import_module("gcsfs.core")
        except ModuleNotFoundError:
            raise missing_extra(self.url, extra="gcs", package="gcsfs") from None
        return gcsfs.GCSFileSystem(use_listings_cache=False)

    def _path_of_root(self) -> str:
        return self.url.removeprefix("gs://")
