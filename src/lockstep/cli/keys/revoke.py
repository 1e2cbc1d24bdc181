"""``lockstep keys revoke``."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_key
from lockstep.cli.console import OUTPUT, connect
from lockstep.errors import InvalidInputError

_ID: Final = re.compile(r"lsk_[0-9a-f]{12}")


@answers("KeyForm")
def revoke(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="The key's id, such as lsk_0123456789ab.", autocompletion=complete_key),
    ],
) -> Answer:
    """Revoke a key immediately and permanently. Jobs that were submitted with it continue."""
    if not _ID.fullmatch(key):  # the error does not show the value, because it may be the whole key
        raise InvalidInputError("KEY is not a key's id", allowed="its first 16 characters: see `keys list`")
    with connect() as client:
        revoked = client.revoke_key(key)
    return Answer(show=lambda: OUTPUT.print(f"key {key} of {revoked['label']} is revoked"), document=revoked)
