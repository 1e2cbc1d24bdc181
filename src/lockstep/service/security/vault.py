"""The vault: stores projects' secrets encrypted, and decrypts them only for the programs that receive them.

A value is encrypted with AES-256-GCM with the key in a file of the home. Project and name are authenticated with it. So
a copy of the database reveals no value, and a value cannot be moved to another name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.service.store import SecretRecord, SecretStore

MIN_BYTES: Final = 8
"""The minimum length of a value: shorter ones could not be redacted from a log without other text."""
MAX_BYTES: Final = 64 * 1024
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


@final
class Vault:
    """Sets secrets, and decrypts them for jobs. Thread-safe.

    Args:
        store: the store of encrypted secrets.
        key_path: the file of the key, which is created with the first secret and only its owner can read.
    """

    def __init__(self, *, store: SecretStore, key_path: Path) -> None:
        self._store = store
        self._key_path = key_path
        self._lock = threading.Lock()

    def put(self, *, project: str, name: str, value: str, principal_label: str) -> None:
        """Creates or replaces a secret. Jobs that start from now on receive the new value.

        Raises:
            InvalidInputError: If the value is too short or too long, or contains NUL, which no variable can.
        """
        data = value.encode()
        if not MIN_BYTES <= len(data) <= MAX_BYTES or b"\0" in data:
            allowed = f"{MIN_BYTES} to {MAX_BYTES} bytes of text without NUL"
            raise InvalidInputError("the secret's value", received=f"{len(data)} bytes", allowed=allowed)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher().encrypt(nonce, data, _bound(project, name))
        self._store.put(project=project, name=name, sealed=sealed, principal_label=principal_label)

    def list(self, *, project: str) -> list[SecretRecord]:
        """Returns a project's secrets by name, without their values."""
        return self._store.list(project=project)

    def remove(self, *, project: str, name: str) -> None:
        """Removes a secret. Jobs that have received it keep it until they end.

        Raises:
            NotFoundError: If the project has no secret of this name.
        """
        self._store.remove(project=project, name=name)

    def check(self, *, project: str, names: Mapping[str, str]) -> None:
        """Checks that secrets exist.

        Args:
            project: the project.
            names: the names of the secrets, by the fields that refer to them.

        Raises:
            InvalidInputError: If a secret does not exist; the message names the first one.
        """
        known = {record.name for record in self.list(project=project)}
        for field, name in names.items():
            if name not in known:
                raise InvalidInputError(
                    f"{field}: project {project} has no secret {name!r}",
                    action=f"set it with `lockstep secrets set {name}`",
                )

    def values(self, *, project: str, names: Mapping[str, str]) -> dict[str, str]:
        """Returns the values of secrets by variable. They are only for the program that receives them.

        Args:
            project: the project.
            names: the names of the secrets, by variable.

        Raises:
            NotFoundError: If a secret does not exist any more.
            CorruptDataError: If a secret was encrypted with another key, or is damaged.
        """
        return {variable: self._open(project, name) for variable, name in names.items()}

    def seal(self, text: str, *, project: str, purpose: str) -> bytes:
        """Encrypts a text of a project that is private but not one of the project's secrets, such as a webhook's URL.

        Args:
            text: the text.
            project: the project.
            purpose: the purpose, without which the text cannot be decrypted.
        """
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher().encrypt(nonce, text.encode(), _bound_to_purpose(project, purpose))

    def unseal(self, sealed: bytes, *, project: str, purpose: str) -> str:
        """Decrypts a text that `seal` has encrypted.

        Raises:
            CorruptDataError: If the text was encrypted with another key or for another purpose, or is damaged.
        """
        nonce, data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher().decrypt(nonce, data, _bound_to_purpose(project, purpose)).decode()
        except (InvalidTag, ValueError):
            raise CorruptDataError(
                f"a {purpose} of project {project} was not encrypted with this service's secrets key",
                action="give the service the key that it was encrypted with",
            ) from None

    def derive(self, text: str, *, purpose: str) -> str:
        """Returns a token, such as that of a prediction server. It is the same each time, and stored nowhere.

        Args:
            text: what distinguishes the token from others of the same purpose.
            purpose: the purpose.
        """
        info = f" {purpose}/{text}".encode()
        return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(self._key()).hex()

    def _open(self, project: str, name: str) -> str:
        sealed = self._store.sealed(project=project, name=name)
        nonce, data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher().decrypt(nonce, data, _bound(project, name)).decode()
        except (InvalidTag, ValueError):
            raise CorruptDataError(
                f"secret {name!r} of project {project} was not encrypted with the key in {self._key_path}",
                action=f"set it again with `lockstep secrets set {name}`",
            ) from None

    def _cipher(self) -> AESGCM:
        return AESGCM(self._key())

    def _key(self) -> bytes:
        with self._lock:  # concurrent first secrets must use one key
            if not self._key_path.exists():
                self._make_key()
        key = self._key_path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise CorruptDataError(f"{self._key_path} is not a key", action="restore the correct key file")
        return key

    def _make_key(self) -> None:
        partial = self._key_path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())  # a power failure must not lose the key of encrypted values
        partial.replace(self._key_path)


def _bound(project: str, name: str) -> bytes:
    return f"{project}/{name}".encode()


def _bound_to_purpose(project: str, purpose: str) -> bytes:
    return f"{project}/ {purpose}".encode()  # a secret's name never begins with a space
