"""Code that is uploaded with the form: checked, put into the bucket as `lockstep submit` does, and named in the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, final

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.jobs.running.packages import ARCHIVES, WHEEL, check_package, pack_script, package_digest
from lockstep.service.console.forms import SentFile
from lockstep.service.console.job_forms.documents import TRAINING, Document
from lockstep.service.console.job_forms.fields import with_value
from lockstep.service.security.locations import STAGING_FOLDER
from lockstep.storage import join_url, write_once

FILE: Final = "code"
"""The name of the form's field with a file."""
SCRIPT: Final = ".py"
PACKED_FOLDER: Final = "uploaded"
"""The top folder of the archive that an uploaded script becomes."""
ALLOWED: Final = "one .py script, .tar.gz archive or .whl wheel"

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,199}")
_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GZIP: Final = b"\x1f\x8b"


@final
@dataclass(frozen=True, kw_only=True)
class StagedCode:
    """Code in the bucket.

    Attributes:
        url: the URL of the package.
        earlier: a pattern of the URLs of other contents of the same file.
        module: the module that a script becomes; None for a package.
    """

    url: str
    earlier: re.Pattern[str]
    module: str | None


def stage_code(sent: SentFile, *, bucket: str) -> StagedCode:
    """Puts an uploaded file into the folder of the bucket for code, unless the same content is there already. Blocks.

    Args:
        sent: the file.
        bucket: the URL of the service's bucket.

    Raises:
        InvalidInputError: If the file's name or kind is not allowed.
        CorruptDataError: If it is not what its name says.
        StorageError: If the bucket cannot be written.
    """
    name = PurePosixPath(sent.name.replace("\\", "/")).name
    if _NAME.fullmatch(name) is None or not name.endswith((SCRIPT, *ARCHIVES, WHEEL)):
        raise InvalidInputError(f"{FILE}: the name of the file", received=sent.name, allowed=ALLOWED)
    if not sent.data:
        raise InvalidInputError(f"{FILE}: the file {name} is empty", allowed=ALLOWED)
    folder = join_url(bucket, STAGING_FOLDER)
    if name.endswith(SCRIPT):
        return _stage_script(name, sent.data, folder=folder)
    if name.endswith(ARCHIVES) and not sent.data.startswith(_GZIP):
        raise CorruptDataError(f"{FILE}: {name} is not a .tar.gz archive", action="make one with `tar -czf`")
    check_package(name, data=sent.data)
    url = join_url(folder, package_digest(sent.data), name)
    write_once(url, data=sent.data)
    earlier = re.compile(rf"{re.escape(folder)}/[0-9a-f]{{16}}/{re.escape(name)}")
    return StagedCode(url=url, earlier=earlier, module=None)


def with_code(document: Mapping[str, Any], staged: StagedCode) -> Document:
    """Returns a document whose job runs staged code. Another content of the same file is replaced.

    The program's own code is the first package of a job, so new code is put first.

    Args:
        document: the document of a training job.
        staged: the code.
    """
    asked = document.get(TRAINING)
    given = asked.get("packageUris") if isinstance(asked, dict) else None
    before = given if isinstance(given, list) else []
    is_earlier = [isinstance(url, str) and staged.earlier.fullmatch(url) is not None for url in before]
    place = is_earlier.index(True) if True in is_earlier else 0
    packages = [url for url, is_replaced in zip(before, is_earlier, strict=True) if not is_replaced]
    packages.insert(place, staged.url)
    changed = with_value(document, (TRAINING, "packageUris"), packages)
    return changed if staged.module is None else with_value(changed, (TRAINING, "pythonModule"), staged.module)


def _stage_script(name: str, data: bytes, *, folder: str) -> StagedCode:
    module = name.removesuffix(SCRIPT)
    if _MODULE.fullmatch(module) is None:
        allowed = "letters, digits and _ before .py, not a digit first: it is the module to run"
        raise InvalidInputError(f"{FILE}: the name of the script", received=name, allowed=allowed)
    packed = pack_script(name, data=data, folder=PACKED_FOLDER)
    url = join_url(folder, f"{module}-{package_digest(packed)}.tar.gz")
    write_once(url, data=packed)
    earlier = re.compile(rf"{re.escape(folder)}/{re.escape(module)}-[0-9a-f]{{16}}\.tar\.gz")
    return StagedCode(url=url, earlier=earlier, module=module)
