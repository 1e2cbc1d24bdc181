"""A job that is being written: what its form contains, read without losing any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, final

from lockstep.errors import ConfigError, LockstepError
from lockstep.service.console.job_forms.documents import SOURCE, Document, is_prediction, parse_text, text_of
from lockstep.service.console.job_forms.fields import with_edits
from lockstep.service.console.job_forms.rows import with_rows
from lockstep.service.console.job_forms.sections import fields_of

JOB_ID: Final = "jobId"
VIEW: Final = "view"
MAX_NAME_LENGTH: Final = 128


@final
class View(StrEnum):
    """How the document is edited. There is one way at a time, so two edits never disagree."""

    FIELDS = "fields"
    TEXT = "text"


@final
@dataclass(frozen=True, kw_only=True)
class Draft:
    """A job that is being written.

    Attributes:
        job_id: the job's name.
        view: how the document is edited.
        text: the document as text, with the edits of the fields. Its comments stay until a field is edited.
        document: the document; None if the text cannot be parsed.
        given: what the fields contain, if an edit could not be put into the document; it is shown again.
        error: why that failed, or why the text cannot be parsed; None if neither did.
    """

    job_id: str
    view: View
    text: str
    document: Document | None
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    error: LockstepError | None = None

    @property
    def body(self) -> Document:
        """The Job resource that the REST interface gets.

        Raises:
            LockstepError: If the form cannot be read; see `error`.
        """
        if self.error is not None or self.document is None:
            raise self.error or ConfigError(SOURCE, allowed="YAML or JSON")
        named = self.document.get(JOB_ID, self.job_id)
        if named != self.job_id:
            raise ConfigError(JOB_ID, received=named, allowed=f"{self.job_id} in the document, or no jobId there")
        return {**self.document, JOB_ID: self.job_id}

    def with_document(self, document: Document) -> Draft:
        """Returns the draft with another document."""
        return replace(self, document=document, text=text_of(document))


def draft_of(document: Document, *, job_id: str, view: View = View.FIELDS) -> Draft:
    """Returns the draft of a document that nobody has edited yet."""
    return Draft(job_id=job_id, view=view, text=text_of(document), document=document)


def read_draft(given: Mapping[str, str]) -> Draft:
    """Reads a form.

    Args:
        given: the text of each field.

    Returns:
        The draft. If the form cannot be read, it says why, and has everything that was given.
    """
    job_id, text = given.get(JOB_ID, "").strip(), given.get(SOURCE, "")
    view = View.TEXT if given.get(VIEW) == View.TEXT else View.FIELDS
    try:
        document = parse_text(text)
    except LockstepError as error:
        return Draft(job_id=job_id, view=View.TEXT, text=text, document=None, error=error)
    if view is View.TEXT:
        return Draft(job_id=job_id, view=view, text=text, document=document)
    try:
        edited = with_rows(with_edits(document, fields_of(document), given=given), given=given)
    except LockstepError as error:
        return Draft(job_id=job_id, view=view, text=text, document=document, given=given, error=error)
    if edited == document:
        return Draft(job_id=job_id, view=view, text=text, document=document)
    return Draft(job_id=job_id, view=view, text=text_of(edited), document=edited)


def next_name(job_id: str, *, number: int) -> str:
    """Returns the name of the number-th job like another one: ``train_2`` for ``train``, ``train_3`` for ``train_2``.

    Args:
        job_id: the name of the other job.
        number: 1 for the first name to try, 2 for the one after it.
    """
    stem, sign, last = job_id.rpartition("_")
    is_numbered = bool(sign and stem) and last.isascii() and last.isdecimal() and len(last) < 7
    ending = f"_{(int(last) if is_numbered else 1) + number}"
    return f"{(stem if is_numbered else job_id)[: MAX_NAME_LENGTH - len(ending)]}{ending}"


def region_of(draft: Draft) -> str | None:
    """Returns the region of a draft; None if it has none."""
    if draft.document is None:
        return None
    asked: Any = draft.document.get("predictionInput" if is_prediction(draft.document) else "trainingInput")
    region = asked.get("region") if isinstance(asked, dict) else None
    return region if isinstance(region, str) else None
