"""Where Lockstep keeps its state on this machine: paths alone, no contents.

``$LOCKSTEP_HOME`` names the folder; without it the platform's user data folder is used. The service, the client that
finds it, and the embedded engine all look here, which is why this stands in row 0.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs

from lockstep.errors import StorageWriteError

HOME_VARIABLE = "LOCKSTEP_HOME"


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folder of one Lockstep installation.

    Attributes:
        path: absolute path of the folder; it need not exist yet.
    """

    path: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Reads ``$LOCKSTEP_HOME``, or takes the platform's user data folder."""
        named = (os.environ if env is None else env).get(HOME_VARIABLE)
        path = Path(named) if named else Path(platformdirs.user_data_dir("lockstep"))
        return cls(path=path.expanduser().absolute())

    @property
    def database(self) -> Path:
        """The SQLite database of jobs, events and models."""
        return self.path / "lockstep.db"

    @property
    def database_choice(self) -> Path:
        """The URL of the database, without a password, where it is another one than the home's own."""
        return self.path / "database"

    @property
    def token(self) -> Path:
        """The bearer token of the REST interface, mode 0600."""
        return self.path / "token"

    @property
    def secret_key(self) -> Path:
        """The key that jobs' secrets are encrypted with, mode 0600."""
        return self.path / "secret-key"

    @property
    def cluster_token(self) -> Path:
        """The token of this user's clusters with parameter servers that are on loopback alone, mode 0600."""
        return self.path / "cluster-token"

    @property
    def address(self) -> Path:
        """Where the running service says its URL and pid (JSON)."""
        return self.path / "service.json"

    @property
    def lock(self) -> Path:
        """Held by the one service that runs on this home."""
        return self.path / "service.lock"

    @property
    def lifecycle_lock(self) -> Path:
        """Held by whoever brings the service up or down, and by a service until it answers."""
        return self.path / "lifecycle.lock"

    @property
    def keeper(self) -> Path:
        """Which process starts the service again when it dies (JSON)."""
        return self.path / "keeper.json"

    @property
    def service_end(self) -> Path:
        """How the service died last (JSON)."""
        return self.path / "service-end.json"

    @property
    def service_log(self) -> Path:
        """What the service process printed."""
        return self.path / "service.log"

    @property
    def bucket(self) -> Path:
        """The default bucket: a local folder."""
        return self.path / "bucket"

    @property
    def engine(self) -> Path:
        """The embedded engine's own folder: its token, its record, its logs."""
        return self.path / "engine"

    @property
    def cluster(self) -> Path:
        """Which engine this home has, where it is not the embedded one (JSON)."""
        return self.path / "cluster.json"

    @property
    def machines(self) -> Path:
        """Records of local machines that stand for a cluster's."""
        return self.path / "machines"

    @property
    def spool(self) -> Path:
        """Working folders of replicas and prediction servers on this node."""
        return self.path / "spool"

    @property
    def cache(self) -> Path:
        """What can be had again: downloaded data, record indexes, compiled programs."""
        return self.path / "cache"

    def environments(self, project: str) -> Path:
        """Python environments of a project's jobs on this node; a project cannot prepare another's.

        Args:
            project: the project's name.
        """
        return self.cache / "environments" / project

    def create(self) -> None:
        """Makes the folder, readable by its owner alone; one that is there already is made so.

        Raises:
            StorageWriteError: it cannot be made, or written to, or belongs to others too.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.path.stat()
            # A sticky folder, such as /tmp, is many people's, whoever owns it.
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
                raise StorageWriteError(
                    f"the home {self.path} is not this user's alone", action=f"set {HOME_VARIABLE} to a folder that is"
                )
            if stat.S_IMODE(found.st_mode) & 0o066:  # others may pass through, where the service lets them
                self.path.chmod(0o700)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise StorageWriteError(
                f"the home {self.path} cannot be written: {error.strerror}",
                action=f"set {HOME_VARIABLE} to a folder that is yours",
            ) from error
