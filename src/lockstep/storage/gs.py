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

_RANDOM: Final = random.SystemRandom()  # the global generator belongs to the user's program, which may have seeded it
_PART_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)


@final
class GsBucket(AbstractRemoteBucket):
    """A bucket with the URL ``gs://bucket`` or ``gs://bucket/prefix``.

    Uses Google's application default credentials. The environment variable ``STORAGE_EMULATOR_HOST`` selects another
    server.
    """

    permission_advice: ClassVar[str] = "use an account whose role allows it (GOOGLE_APPLICATION_CREDENTIALS names one)"
    credentials_advice: ClassVar[str] = (
        "run: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
    )
    host_advice: ClassVar[str] = "check the network; where STORAGE_EMULATOR_HOST is set, check the host that it names"

    def _connect(self, policy: RetryPolicy, *, num_attempts: int) -> Any:  # fsspec is not typed
        try:
            # An optional extra. The class that `gcsfs` exports first requests each bucket's type, which needs a
            # permission of its own and logs a warning without it. The class in `gcsfs.core` does not.
            importlib.import_module("gcsfs.core")
        except ModuleNotFoundError:
            raise missing_extra(self.url, extra="gcs", package="gcsfs") from None
        aiohttp: Any = importlib.import_module("aiohttp")  # gcsfs's HTTP client
        # By default, aiohttp limits only the total time of a request, to five minutes, and not the time without data.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=policy.connect_timeout_s, sock_read=policy.read_timeout_s
        )
        return _file_system_class(num_attempts)(use_listings_cache=False, requests_timeout=timeout)

    def _path_of_root(self) -> str:
        return self.url.removeprefix("gs://")


@functools.cache
def _file_system_class(num_attempts: int) -> Any:
    """Returns a subclass of gcsfs's file system that makes a given number of attempts at each request.

    gcsfs makes six attempts, over half a minute, and logs a traceback for each refused request. Without credentials, it
    also requests the machine's metadata server twice: once in Google's search for default credentials, and once
    directly, which takes 15 seconds if there is no such server.
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
                await asyncio.sleep(pause_s * _RANDOM.uniform(0.5, 1))
        return await request_once(self, *arguments, **options)

    def on_google(self: Any) -> bool:
        is_account_known = hasattr(self, "credentials")  # until then, only gcsfs's direct request asks
        return is_account_known and base.on_google.fget(self)

    return type("FileSystem", (base,), {"_request": request, "on_google": property(on_google)})
