"""A bucket of Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import functools
import importlib
from typing import Any, ClassVar, final

from lockstep.storage.remote import AbstractRemoteBucket, missing_extra
from lockstep.storage.retrying import RetryPolicy


@final
class GsBucket(AbstractRemoteBucket):
    """``gs://bucket`` or ``gs://bucket/prefix``.

    Credentials are Google's application default ones; ``STORAGE_EMULATOR_HOST`` names another server.
    """

    permission_advice: ClassVar[str] = "use an account whose role allows it (GOOGLE_APPLICATION_CREDENTIALS names one)"
    credentials_advice: ClassVar[str] = (
        "run: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
    )

    def _connect(self, policy: RetryPolicy) -> Any:  # fsspec is not typed
        try:
            # An optional extra. What `gcsfs` itself exports asks for each bucket's kind first, which takes a permission
            # of its own and is told as a warning where it is lacking.
            importlib.import_module("gcsfs.core")
        except ModuleNotFoundError:
            raise missing_extra(self.url, extra="gcs", package="gcsfs") from None
        aiohttp: Any = importlib.import_module("aiohttp")  # what gcsfs talks through
        # Otherwise a request may take five minutes in all, and be silent as long.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=policy.connect_timeout_s, sock_read=policy.read_timeout_s
        )
        return file_system_class()(use_listings_cache=False, requests_timeout=timeout)

    def _path_of_root(self) -> str:
        return self.url.removeprefix("gs://")


@functools.cache
def file_system_class() -> Any:
    """Returns gcsfs's file system without its own retries: six attempts over half a minute, and a traceback logged."""
    core: Any = importlib.import_module("gcsfs.core")
    names = ("_request", "_get_file_request", "_get_file_concurrent")
    return type(
        "FileSystem", (core.GCSFileSystem,), {name: getattr(core.GCSFileSystem, name).__wrapped__ for name in names}
    )
