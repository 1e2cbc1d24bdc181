"""``lockstep whoami``."""

from __future__ import annotations

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import OUTPUT, connect
from lockstep.jobs.security.access import ALL_PROJECTS


@answers("WhoAmIForm")
def whoami() -> Answer:
    """Show whose key you use, its permissions, and the address of the service."""
    with connect() as client:
        found = client.whoami()
        url = client.url
    key = "the home's token" if found["key"] is None else f"key {found['key']}"
    where = "all projects" if found["project"] == ALL_PROJECTS else f"project {found['project']}"
    return Answer(
        show=lambda: OUTPUT.print(f"{found['label']}, {found['scope']} of {where}, by {key}, at {url}"), document=found
    )
