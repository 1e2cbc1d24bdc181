"""The home: the paths of the files in which Lockstep keeps its state on this machine, without their contents.

``$LOCKSTEP_HOME`` is the folder; the default is the platform's user data folder. This module is in row 0 because the
service, the client that finds the service, and the embedded engine all use it.
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
        path: the absolute path of the folder, which need not exist yet.
    """

    path: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Returns the home that ``$LOCKSTEP_HOME`` names, by default the platform's user data folder."""
        named = (os.environ if env is None else env).get(HOME_VARIABLE)
        path = Path(named) if named else Path(platformdirs.user_data_dir("lockstep"))
        return cls(path=path.expanduser().absolute())

    @property
    def database(self) -> Path:
        """The SQLite database of jobs, events and models."""
        return self.path / "lockstep.db"

    @property
    def database_choice(self) -> Path:
        """The file with the URL (without a password) of the database, if the home's own is not used."""
        return self.path / "database"

    @property
    def token(self) -> Path:
        """The file with the bearer token of the REST interface, mode 0600."""
        return self.path / "token"

    @property
    def secret_key(self) -> Path:
        """The file with the key that encrypts the secrets of jobs, mode 0600."""
        return self.path / "secret-key"

    @property
    def cluster_token(self) -> Path:
        """The file with the token of this user's parameter server clusters on loopback, mode 0600."""
        return self.path / "cluster-token"

    @property
    def address(self) -> Path:
        """The file to which the running service writes its URL and process id (JSON)."""
        return self.path / "service.json"

    @property
    def lock(self) -> Path:
        """The lock that the service running on this home holds; there is at most one."""
        return self.path / "service.lock"

    @property
    def lifecycle_lock(self) -> Path:
        """The lock held by each process that starts or stops the service, and by a service until it responds."""
        return self.path / "lifecycle.lock"

    @property
    def keeper(self) -> Path:
        """The file that says which process restarts the service when it dies (JSON)."""
        return self.path / "keeper.json"

    @property
    def service_end(self) -> Path:
        """The file that says how the service died the last time (JSON)."""
        return self.path / "service-end.json"

    @property
    def service_log(self) -> Path:
        """The file with the output of the service process."""
        return self.path / "service.log"

    @property
    def bucket(self) -> Path:
        """The default bucket: a local folder."""
        return self.path / "bucket"

    @property
    def engine(self) -> Path:
        """The embedded engine's folder: its token, its record and its logs."""
        return self.path / "engine"

    @property
    def cluster(self) -> Path:
        """The file that says which engine this home has, if it is not the embedded one (JSON)."""
        return self.path / "cluster.json"

    @property
    def machines(self) -> Path:
        """The folder with records of local machines that stand in for a cluster's."""
        return self.path / "machines"

    @property
    def spool(self) -> Path:
        """The folder with the working folders of replicas and prediction servers on this node."""
        return self.path / "spool"

    @property
    def cache(self) -> Path:
        """The folder for data that can be obtained again: downloads, record indexes and compiled programs."""
        return self.path / "cache"

    def environments(self, project: str) -> Path:
        """Returns the folder with the Python environments of a project's jobs on this node.

        Each project has a folder of its own, so that no project can tamper with another's environments.

        Args:
            project: the project's name.
        """
        return self.cache / "environments" / project

    def create(self) -> None:
        """Creates the folder with access for its owner alone, or removes others' access from an existing folder.

        Raises:
            StorageWriteError: the folder cannot be created or written, or is not this user's alone.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.path.stat()
            # A sticky folder, such as /tmp, is shared by many users, whoever owns it.
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
                raise StorageWriteError(
                    f"the home {self.path} is shared with other users",
                    action=f"set {HOME_VARIABLE} to a folder of your own",
                )
            if (
                stat.S_IMODE(found.st_mode) & 0o066
            ):  # others may have execute permission, since the service may grant it
                self.path.chmod(0o700)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise StorageWriteError(
                f"the home {self.path} cannot be written: {error.strerror}",
                action=f"set {HOME_VARIABLE} to a folder of your own",
            ) from error
