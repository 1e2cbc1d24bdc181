"""What the checks look at: the machine's files and variables, and the settings of a service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

from lockstep.errors import CorruptDataError
from lockstep.home import Home

ROOT: Final = Path("/")


@final
@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the checks look at.

    Attributes:
        home: the home.
        env: the environment variables.
        of_service: whether a service examines its own machine. It has no key of its own, and programs of jobs use the
            devices meanwhile, so no check takes a device.
        bucket: the default bucket of the service; empty if it is not known.
        tls_certificate: the file with the certificate of the service; None if it has none, or it is not known.
        root: the folder in which the checks look for ``proc``, ``sys``, ``dev`` and ``etc``.
    """

    home: Home
    env: Mapping[str, str] = field(repr=False, default_factory=lambda: dict(os.environ))
    of_service: bool = False
    bucket: str = ""
    tls_certificate: Path | None = None
    root: Path = ROOT

    def read(self, path: str) -> str:
        """Returns the content of a file of the system without surrounding white space; "" if it cannot be read.

        Args:
            path: the path below the root, such as ``proc/mounts``.
        """
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """Returns the paths below the root that match a pattern, sorted; none if they cannot be listed."""
        try:
            return sorted(self.root.glob(pattern))
        except OSError:
            return []

    def to_json(self) -> dict[str, Any]:
        """Returns the parts that another process of the machine needs; the variables are those of that process."""
        return {
            "home": str(self.home.path),
            "ofService": self.of_service,
            "bucket": self.bucket,
            "tlsCertificate": None if self.tls_certificate is None else str(self.tls_certificate),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Reads the document that `to_json` returns.

        Raises:
            CorruptDataError: the document has another form.
        """
        match document:
            case {"home": str(home), "ofService": bool(of_service), "bucket": str(bucket), "tlsCertificate": file}:
                return cls(
                    home=Home(path=Path(home)),
                    of_service=of_service,
                    bucket=bucket,
                    tls_certificate=None if file is None else Path(file),
                )
            case _:
                raise CorruptDataError("not the surroundings of a check", received=sorted(document))
