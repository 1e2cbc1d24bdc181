"""How the form that submits a job is shown: its fields, with problems beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h

from lockstep.service.console.forms import MAX_FILE_BYTES
from lockstep.service.console.job_forms.choices import Choice
from lockstep.service.console.job_forms.documents import SOURCE, is_prediction
from lockstep.service.console.job_forms.drafts import JOB_ID, VIEW, Draft, View
from lockstep.service.console.job_forms.fields import Field, Kind, shown
from lockstep.service.console.job_forms.rows import (
    SECRETS,
    WEBHOOKS,
    SecretRow,
    WebhookRow,
    given_secrets,
    secret_rows,
    webhook_rows,
)
from lockstep.service.console.job_forms.sections import LABELS, Section, fields_of, sections_of
from lockstep.service.console.job_forms.uploads import ALLOWED, FILE, SCRIPT

FORM: Final = "job-form"
SECRETS_NAME: Final = ".".join(SECRETS)
WEBHOOKS_NAME: Final = ".".join(WEBHOOKS)
_IN_THE_TEXT: Final = "This value can only be edited in the text: see “Edit as text”."
_LONG_CHOICES: Final = ("tiers", "machines", "accelerators")
_NUM_LINES: Final = {Kind.LINES: "3", Kind.PAIRS: "2"}


def names_of(draft: Draft) -> tuple[str, ...]:
    """Returns the names of what the form shows and a problem can be about."""
    if draft.view is View.TEXT or draft.document is None:
        return (JOB_ID, SOURCE)
    own = tuple(field.name for field in fields_of(draft.document))
    if is_prediction(draft.document):
        return (JOB_ID, *own)
    hooks = (f"{WEBHOOKS_NAME}.{index}.url" for index, _ in enumerate(webhook_rows(draft.document) or ()))
    return (JOB_ID, *own, FILE, SECRETS_NAME, WEBHOOKS_NAME, *hooks)


def problem_line(name: str, problem: str | None, *, is_part: bool = False) -> h.Element:
    """Returns the line below a field that says what is wrong with it; an empty one if nothing is.

    Args:
        name: the field.
        problem: what is wrong; None if nothing is.
        is_part: whether it replaces the line of a page that is shown already.
    """
    out_of_band = {"hx-swap-oob": "true"} if is_part else {}
    return h.small(".problem", out_of_band, id=_problem_id(name))[problem or ""]


def form_content(
    draft: Draft,
    *,
    choices: Mapping[str, Sequence[Choice]],
    secrets: Sequence[str],
    problem: tuple[str | None, str | None],
) -> h.Node:
    """Returns the content of the form.

    Args:
        draft: what it shows.
        choices: the choices of its fields.
        secrets: the names of the project's secrets.
        problem: the field that a problem is about, and the problem; None for each that there is not.
    """
    wrong, said = problem
    name = [
        h.label[
            "Name",
            h.input(
                name=JOB_ID, value=draft.job_id, required=True, autocomplete="off", spellcheck="false", maxlength="128",
                **_described(JOB_ID, wrong),
            ),
            problem_line(JOB_ID, said if wrong == JOB_ID else None),
        ]
    ]  # fmt: skip
    hidden = h.input(type="hidden", name=VIEW, value=str(draft.view))
    if draft.view is View.TEXT or draft.document is None:
        return [hidden, h.div(".fields")[name], _text(draft, wrong, said)]

    def show(field: Field) -> h.Element:
        return _input(draft, field, choices=choices, problem=said if wrong == field.name else None)

    def section(part: Section) -> h.Element:
        is_used = any(shown(draft.document or {}, field) != "" or wrong == field.name for field in part.fields)
        return h.details(".group", open=part.is_open or is_used)[
            h.summary[part.title],
            h.p(".muted")[part.hint] if part.hint else None,
            h.div(".fields")[(show(field) for field in part.fields)],
        ]

    is_training = not is_prediction(draft.document)
    *first, last = sections_of(draft.document)
    return [
        hidden,
        h.input(type="hidden", name=SOURCE, value=draft.text),
        h.div(".fields")[name, show(LABELS)],
        _upload(said if wrong == FILE else None) if is_training else None,
        (section(part) for part in first),
        _secrets(draft, secrets, said if wrong == SECRETS_NAME else None) if is_training else None,
        _webhooks(draft, secrets, wrong, said) if is_training else None,
        section(last),
    ]


def _described(name: str, wrong: str | None) -> dict[str, Any]:
    return {"id": name, "aria-describedby": _problem_id(name), "aria-invalid": "true" if wrong == name else None}


def _problem_id(name: str) -> str:
    return f"problem-{name}"


def _text(draft: Draft, wrong: str | None, said: str | None) -> h.Element:
    return h.div(".fields")[
        h.label(".whole")[
            "The job, as config.yaml or JSON",
            h.textarea(
                name=SOURCE, rows="28", spellcheck="false", wrap="off", class_="code", **_described(SOURCE, wrong)
            )[f"\n{draft.text}"],  # HTML drops the first line end
            problem_line(SOURCE, said if wrong == SOURCE else None),
        ]
    ]


def _input(draft: Draft, field: Field, *, choices: Mapping[str, Sequence[Choice]], problem: str | None) -> h.Element:
    before = shown(draft.document or {}, field)
    if before is None:
        return h.div(".fixed")[h.span[field.title], h.small(".muted")[_IN_THE_TEXT], problem_line(field.name, problem)]
    default = "" if field.kind is Kind.FLAG and draft.given else before
    value = draft.given.get(field.name, default)
    common = {"name": field.name, **_described(field.name, field.name if problem else None)}
    is_wide = field.kind in (Kind.LINES, Kind.PAIRS)
    width = "whole" if field.kind is Kind.LINES else "long" if field.choices in _LONG_CHOICES else None
    return h.label(class_=[str(field.kind), width])[
        field.title,
        h.textarea(common, rows=_NUM_LINES[field.kind], spellcheck="false", wrap="off", placeholder=field.example)[
            f"\n{value}"
        ]
        if is_wide
        else _select(common, value, choices[field.choices])
        if field.kind is Kind.CHOICE
        else h.input(common, type="checkbox", value="on", checked=value == "on")
        if field.kind is Kind.FLAG
        else h.input(
            common,
            value=value,
            placeholder=field.example or None,
            inputmode="numeric" if field.kind is Kind.NUMBER else None,
            autocomplete="off",
            spellcheck="false",
        ),
        h.small(".muted")[field.hint] if field.hint else None,
        problem_line(field.name, problem),
    ]


def _select(common: Mapping[str, Any], value: str, choices: Sequence[Choice]) -> h.Element:
    others = [] if any(value == choice for choice, _ in choices) else [(value, f"{value} (not known here)")]
    return h.select(common)[
        (h.option(value=choice, selected=choice == value)[text] for choice, text in (*choices, *others))
    ]


def _upload(problem: str | None) -> h.Element:
    return h.div(".fields")[
        h.label(".whole")[
            "Upload code",
            h.input(type="file", name=FILE, accept=f"{SCRIPT},.gz,.tgz,.whl", **_described(FILE, FILE * bool(problem))),
            h.small(".muted")[
                f"{ALLOWED.capitalize()}, {MAX_FILE_BYTES >> 20} MiB at most. It is put into the bucket with the next "
                "“Check” or “Submit”, and named below. Leave it out for code in a bucket, or in a container image."
            ],
            problem_line(FILE, problem),
        ]
    ]


def _secret_choices(secrets: Sequence[str], value: str) -> h.Node:
    known = [("", "-"), *((name, name) for name in secrets)]
    if value and value not in secrets:
        known.append((value, f"{value} (the project has no such secret)"))
    return (h.option(value=choice, selected=choice == value)[text] for choice, text in known)


def _secrets(draft: Draft, secrets: Sequence[str], problem: str | None) -> h.Element:
    found = secret_rows(draft.document or {})
    rows = found
    if draft.given and found is not None:
        rows = [row for row in given_secrets(draft.given) if row != SecretRow()]
    is_used = bool(rows) or problem is not None
    shown_rows: list[SecretRow] = [*(rows or []), SecretRow()]
    return h.details(".group", id=SECRETS_NAME, open=is_used)[
        h.summary["Secrets"],
        h.p(".muted")["Secrets of the project, by the environment variables that pass them to the programs."],
        h.p(".muted")[_IN_THE_TEXT] if rows is None else None,
        [
            h.div(".fields")[
                h.label[
                    "Environment variable",
                    h.input(
                        name=f"{SECRETS_NAME}.{index}.variable", value=row.variable, autocomplete="off",
                        spellcheck="false",
                    ),
                ],
                h.label[
                    "Secret",
                    h.select(name=f"{SECRETS_NAME}.{index}.secret")[_secret_choices(secrets, row.secret)],
                ],
            ]
            for index, row in enumerate(shown_rows)
        ]
        if rows is not None
        else None,
        problem_line(SECRETS_NAME, problem),
    ]  # fmt: skip


def _webhooks(draft: Draft, secrets: Sequence[str], wrong: str | None, said: str | None) -> h.Element:
    rows = webhook_rows(draft.document or {})
    is_used = bool(rows) or (wrong or "").startswith(WEBHOOKS_NAME)

    def show(index: int, row: WebhookRow, *, is_last: bool) -> h.Element:
        name = f"{WEBHOOKS_NAME}.{index}"
        return h.div(".fields")[
            h.label(".long")[
                "URL",
                h.input(
                    name=f"{name}.url", value=draft.given.get(f"{name}.url", row.url), autocomplete="off",
                    spellcheck="false", placeholder="https://hooks.example.com/...", **_described(f"{name}.url", wrong),
                ),
                problem_line(f"{name}.url", said if wrong == f"{name}.url" else None),
            ],
            h.label[
                "Signed with",
                h.select(name=f"{name}.secret")[
                    _secret_choices(secrets, draft.given.get(f"{name}.secret", row.secret))
                ],
            ],
            None if is_last else h.label(".flag")["Remove", h.input(type="checkbox", name=f"{name}.remove")],
            h.small(".muted")[f"Notified of {row.states}."] if row.states else None,
        ]  # fmt: skip

    shown_rows = [*(rows or []), WebhookRow()]
    return h.details(".group", id=WEBHOOKS_NAME, open=is_used)[
        h.summary["Webhooks"],
        h.p(".muted")["URLs that are notified of the job's states."],
        h.p(".muted")[_IN_THE_TEXT]
        if rows is None
        else [show(index, row, is_last=index == len(rows)) for index, row in enumerate(shown_rows)],
        problem_line(WEBHOOKS_NAME, said if wrong == WEBHOOKS_NAME else None),
    ]
