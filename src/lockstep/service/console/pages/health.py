"""What the service says of itself: what is wrong, what it is made of."""

from __future__ import annotations

import htpy as h
from starlette.requests import Request

from lockstep.service.api import system
from lockstep.service.console.calls import call
from lockstep.service.console.layout import facts, page, table, when
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext


def show(_request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    found = call(system.service, session.principal, context)
    problems = found["problems"]
    return page(
        h.h2["Problems"],
        table(
            ("Since", "Part", "Problem"),
            [(when(problem["since"]), problem["part"], problem["text"]) for problem in problems],
            label="Problems",
        )
        if problems
        else h.p["Everything works."],
        h.h2["Service"],
        facts(
            [
                ("Version", found["version"]),
                ("Started", when(found["startTime"])),
                ("Engine", found["engine"]["engine"]),
                ("Database", found["database"]),
                ("Bucket", h.code[found["bucket"]]),
                ("Programs", found["programs"]),
                ("Jobs at once", str(found["maxRunningJobs"])),
            ]
        ),
        title="Health",
        session=session,
        path="/health",
    )
