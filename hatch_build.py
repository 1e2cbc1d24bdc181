"""Puts the scripts of the console beside its code, whenever Lockstep is built or installed from its source.

They come from npm, by the version and the digest of their package. Wheels contain them. Where npm's registry cannot be
reached, Lockstep is installed without them: the pages of the console then do not change by themselves.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASSETS = "src/lockstep/service/console/assets"
REGISTRY = "https://registry.npmjs.org"
TIMEOUT_S = 60


class Script(NamedTuple):  # Hatch loads this file in a way that dataclasses do not work in
    """A file of a package.

    Attributes:
        package: the name of the package.
        version: its version.
        sha512: the digest of the package, as npm has it.
        path: the path of the file in it.
        name: the name of the file in the folder of assets.
    """

    package: str
    version: str
    sha512: str
    path: str
    name: str


_HTMX = "oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg=="

SCRIPTS = (
    Script(package="htmx.org", version="4.0.1", sha512=_HTMX, path="package/dist/htmx.min.js", name="htmx.js"),
    Script(package="htmx.org", version="4.0.1", sha512=_HTMX, path="package/dist/ext/hx-sse.min.js", name="hx-sse.js"),
)


class AssetsHook(BuildHookInterface):
    """Downloads the scripts that are not there yet."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before a wheel, a source distribution or an editable installation is built."""
        folder = Path(self.root, ASSETS)
        folder.mkdir(parents=True, exist_ok=True)
        for script in SCRIPTS:
            stamp, path = folder / f"{script.name}.version", folder / script.name
            if not (path.exists() and stamp.exists() and stamp.read_text() == script.sha512):
                try:
                    path.write_bytes(download(script))
                except OSError as error:
                    if version == "standard":  # a wheel, or a source distribution, is for others
                        raise
                    self.app.display_warning(f"the console has no {script.name}, so its pages are not live: {error}")
                    continue
                stamp.write_text(script.sha512)
            build_data["artifacts"].append(f"{ASSETS}/{script.name}*")


def download(script: Script) -> bytes:
    """Returns a file of a package, whose digest is checked.

    Raises:
        OSError: If the registry does not answer, or sends something else.
    """
    url = f"{REGISTRY}/{script.package}/-/{script.package}-{script.version}.tgz"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - of the registry above
        content = answer.read()
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != script.sha512:
        raise OSError(f"{url} is not the package that was tested")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        file = archive.extractfile(script.path)
        assert file is not None, "the package has the file"
        return file.read()
