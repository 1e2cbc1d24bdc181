"""A bucket of Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import asyncio
import functools
import importlib
import random
from typing import Any, ClassVar, Final, final

from lockstep.storage.faults import Fault, find_fault
from lockstep.storage.remote import AbstractRemoteBucket, missing_extra
from lockstep.storage.retrying import RetryPolicy

_PART_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)


@final
class GsBucket(AbstractRemoteBucket):
    """``gs://bucket`` or ``gs://bucket/prefix``.

    Credentials are Google's application default ones; ``STORAGE_EMULATOR_HOST`` names another server.
    """

    permission_advice: ClassVar[str] = "use an account whose role allows it (GOOGLE_APPLICATION_CREDENTIALS names one)"
    credentials_advice: ClassVar[str] = (
        "run: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
    )
    host_advice: ClassVar[str] = "check the network; where STORAGE_EMULATOR_HOST is set, check the host that it names"

    def _connect(self, policy: RetryPolicy, *, num_attempts: int) -> Any:  # fsspec is not typed
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
        return _file_system_class(num_attempts)(use_listings_cache=False, requests_timeout=timeout)

    def _path_of_root(self) -> str:
        return self.url.removeprefix("gs://")


@functools.cache
def _file_system_class(num_attempts: int) -> Any:
    """Returns gcsfs's file system with so many attempts at a request.

    By itself it makes six, over half a minute, and logs a traceback for each request that is refused. And where there
    is no account it asks the machine's metadata server twice: once as Google's search for default credentials does, and
    once more by itself, for 15 seconds where there is no such server.
    """
    base: Any = importlib.import_module("gcsfs.core").GCSFileSystem
    request_once = base._request.__wrapped__

    async def request(self: Any, *arguments: Any, **options: Any) -> Any:
        for pause_s in _PART_PAUSES_S[: num_attempts - 1]:
            try:
                return await request_once(self, *arguments, **options)
            except Exception as error:
                if find_fault(error) is not Fault.TRANSIENT:
                    raise
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
        return await request_once(self, *arguments, **options)

    def on_google(self: Any) -> bool:
        is_account_known = hasattr(self, "credentials")  # before that, only the second search asks
        return is_account_known and base.on_google.fget(self)

    return type("FileSystem", (base,), {"_request": request, "on_google": property(on_google)})
