"""What the service says of itself: what is wrong, with itself and with its machine, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api import doctor as doctor_api
from lockstep.service.api import system
from lockstep.service.console.calls import call
from lockstep.service.console.layout import facts, page, table, when
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

CHECKS_PATH: Final = "/health/checks"
_SOON: Final = "every 2s"
"""How often the page asks for the results of checks that run."""
_TITLES: Final = {"error": "Error", "warning": "Warning"}


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
        else h.p["Every part of the service works."],
        _checks(call(doctor_api.doctor, session.principal, context)),
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


def show_checks(_request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page with the checks of the machine, which is asked for again while they run."""
    return _checks(call(doctor_api.doctor, session.principal, context))


def _checks(found: Mapping[str, Any]) -> h.Element:
    live = {"hx-get": CHECKS_PATH, "hx-trigger": _SOON} if found["checking"] else {}
    return h.section("#checks", live)[
        h.h2["This machine"],
        _standing(found),
        h.ul(".findings")[(_finding(each) for each in found["findings"])] if found["findings"] else None,
        _remarks("Checks that passed", found["passed"]),
        _remarks("Checks that do not apply", found["skipped"]),
    ]


def _standing(found: Mapping[str, Any]) -> h.Element:
    if found["time"] is None:
        return h.p(".muted", role="status")["The checks run. Open this page again in some seconds."]
    number = len(found["findings"])
    text = "No faults were found" if not number else f"{number} {'fault was' if number == 1 else 'faults were'} found"
    return h.p(role="status")[
        f"{text} by the checks that ended ",
        when(found["time"]),
        "; newer ones run." if found["checking"] else ".",
    ]


def _finding(found: Mapping[str, str]) -> h.Element:
    severity = found["severity"]
    return h.li(class_=f"finding {severity}-finding")[
        h.p[h.strong[_TITLES[severity]], f" {found['check']}: {found['what']}"],
        facts([("Received", found["received"]), ("Needed", found["needed"])]),
        h.p(".remedy.copy")[
            h.code(tabindex="0")[found["remedy"]],
            h.button(type="button", data_copy="on", hidden=True, aria_label=f"Copy: {found['remedy']}")["Copy"],
        ],
    ]


def _remarks(title: str, remarks: Sequence[Mapping[str, str]]) -> h.Element | None:
    if not remarks:
        return None
    return h.details[
        h.summary[f"{title}: {len(remarks)}"],
        facts([(remark["check"], remark["text"]) for remark in remarks]),
    ]
