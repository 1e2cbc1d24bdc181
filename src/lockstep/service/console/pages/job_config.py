"""The configuration of a job, on its page: as it was submitted, and what the service made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import htpy as h

from lockstep.service.api.control import job_config
from lockstep.service.console.calls import call
from lockstep.service.console.job_forms.documents import text_of
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext


def config_section(session: Session, context: ServiceContext, *, project: str, job_id: str) -> h.Element:
    """Returns the part of a job's page with its configuration as text that can be copied."""
    found = call(job_config.get_config, session.principal, context, project=project, job_id=job_id)
    return h.section("#config")[
        h.h2["Config"],
        [h.p(".note")["Ignored: ", line] for line in found["ignored"]],
        _copyable("As submitted", "submitted", found["submitted"], is_open=True),
        _copyable("As resolved", "resolved", found["resolved"])
        if "resolved" in found
        else h.p(".error")[f"What the service made of it cannot be shown: {found['problem']}"],
    ]


def _copyable(title: str, name: str, document: Mapping[str, Any], *, is_open: bool = False) -> h.Element:
    """Returns a document as YAML. The button needs a script, which shows it."""
    text_id = f"config-{name}"
    return h.details(".group", open=is_open)[
        h.summary[title],
        h.button(type="button", data_copy=text_id, hidden=True)["Copy"],
        h.pre(".config", id=text_id, tabindex="0")[text_of(document)],
    ]
