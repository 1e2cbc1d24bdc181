"""The frame of all pages, and the small parts that several of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, final
from urllib.parse import quote, urlencode

import htpy as h
from markupsafe import Markup

from lockstep import __version__
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.console.assets_served import asset_url, has_asset
from lockstep.service.console.signing_in import CSRF_FIELD, CSRF_HEADER, Session

HTMX: Final = '{"includeIndicatorCSS": false, "defaultSwap": "outerMorph", "defaultTimeout": 20000}'
"""How htmx is set: without a style sheet of its own, which the content security policy would refuse."""


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """An entry of the navigation.

    Attributes:
        title: what it says.
        path: where it leads.
        is_for_operators: whether it is for operators of all projects alone.
    """

    title: str
    path: str
    is_for_operators: bool = False


PLACES: Final = (
    Place(title="Jobs", path="/jobs"),
    Place(title="Models", path="/models"),
    Place(title="Data", path="/data"),
    Place(title="Costs", path="/costs"),
    Place(title="Access", path="/access"),
    Place(title="Cluster", path="/cluster", is_for_operators=True),
    Place(title="Health", path="/health", is_for_operators=True),
)


def page(
    *content: h.Node, title: str, session: Session | None = None, path: str = "", project: str | None = None
) -> h.Element:
    """Returns a whole page.

    Args:
        *content: the content.
        title: the title.
        session: the session of its reader; None if nobody is signed in.
        path: the path of the navigation's entry that it belongs to.
        project: the project that it is about; None if about none.
    """
    head = h.head[
        h.meta(charset="utf-8"),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.meta(name="htmx-config", content=HTMX),
        h.title[f"{title} · Lockstep"],
        h.link(rel="stylesheet", href=asset_url("style.css")),
        h.link(rel="icon", href=asset_url("icon.svg"), type="image/svg+xml"),
        (h.script(src=asset_url(name), defer=True) for name in ("htmx.js", "hx-sse.js") if has_asset(name)),
        h.script(src=asset_url("console.js"), defer=True),
    ]
    headers = {} if session is None else {"hx-headers:inherited": f'{{"{CSRF_HEADER}": "{session.csrf_token}"}}'}
    body = h.body(headers)[
        h.a(".skip", href="#content")["Skip to the content"],
        None if session is None else _header(session, path=path, project=project),
        h.main("#content")[h.h1[title], content],
    ]
    return h.html(lang="en")[head, body]


def _header(session: Session, *, path: str, project: str | None) -> h.Element:
    query = "" if project is None else f"?{urlencode({'project': project})}"
    is_operator = session.principal.scope is Scope.OPERATOR and session.principal.is_for_all_projects
    return h.header(".top")[
        h.a(".brand", href="/")["Lockstep"],
        h.nav(aria_label="Pages")[
            (
                h.a(href=f"{place.path}{query}", aria_current="page" if place.path == path else None)[place.title]
                for place in PLACES
                if is_operator or not place.is_for_operators
            )
        ],
        h.div(".who")[
            h.span(title=f"Lockstep {__version__}")[f"{session.principal.label} ({session.principal.scope})"],
            h.form(method="post", action="/signout")[csrf_field(session), h.button(type="submit")["Sign out"]],
        ],
    ]


def csrf_field(session: Session) -> h.Node:
    """Returns the hidden field that every form has. A part that is shared has none: htmx sends a header instead."""
    return h.input(type="hidden", name=CSRF_FIELD, value=session.csrf_token) if session.csrf_token else None


def state_badge(state: str) -> h.Element:
    """Returns a job's state. Its color repeats what the text says."""
    return h.span(class_=f"state {state.lower()}")[state.replace("_", " ").capitalize()]


def when(text: str | None) -> h.Node:
    """Returns a time of a form, which the browser shows in its own time zone."""
    if not text:
        return "-"
    return h.time(datetime=text, title=text)[text.replace("T", " ")[:19]]


def duration(seconds: float) -> str:
    """Returns a duration such as ``1 h 5 min``, in two units at most."""
    seconds = max(0, round(seconds))
    parts = [
        (seconds // 86400, "d"),
        (seconds % 86400 // 3600, "h"),
        (seconds % 3600 // 60, "min"),
        (seconds % 60, "s"),
    ]
    shown = [(value, unit) for value, unit in parts if value][:2] or [(0, "s")]
    return " ".join(f"{value} {unit}" for value, unit in shown)


def elapsed(start: str | None, end: str | None) -> str:
    """Returns how long something took, or takes so far."""
    if start is None:
        return "-"
    until = datetime.now(tz=UTC) if end is None else datetime.fromisoformat(end)
    return duration((until - datetime.fromisoformat(start)).total_seconds())


def facts(rows: Sequence[tuple[str, h.Node]]) -> h.Element:
    """Returns terms and what is said of each."""
    return h.dl(".facts")[((h.dt[term], h.dd[value]) for term, value in rows)]


def table(
    titles: Sequence[h.Node],
    rows: Sequence[Sequence[h.Node] | Markup],
    *,
    label: str,
    numbers: Sequence[int] = (),
    sorted_by: tuple[int, str] | None = None,
) -> h.Element:
    """Returns a table that can be scrolled by the keyboard where it is wider than the page.

    Args:
        titles: the titles of the columns. Controls are in the column without a title.
        rows: the cells of each row, or what `row` made of them.
        label: what it lists, for screen readers.
        numbers: the columns with numbers, which are aligned by their ends.
        sorted_by: the column that the rows are ordered by, and whether ``ascending`` or ``descending``.
    """

    def way(column: int) -> str | None:
        return sorted_by[1] if sorted_by is not None and column == sorted_by[0] else None

    return h.div(".scroll", role="region", aria_label=label, tabindex="0")[
        h.table[
            h.thead[
                h.tr[
                    (
                        h.th(scope="col", class_=_kind(index, numbers), aria_sort=way(index))[
                            title or h.span(".hidden-text")["Actions"]
                        ]
                        for index, title in enumerate(titles)
                    )
                ]
            ],
            h.tbody[(cells if isinstance(cells, Markup) else row(cells, numbers=numbers) for cells in rows)],
        ]
    ]


def row(cells: Sequence[h.Node], *, numbers: Sequence[int] = ()) -> h.Element:
    """Returns a row of a table.

    Args:
        cells: the cells.
        numbers: the columns with numbers.
    """
    return h.tr[(h.td(class_=_kind(index, numbers))[cell] for index, cell in enumerate(cells))]


def _kind(column: int, numbers: Sequence[int]) -> str | None:
    return "number" if column in numbers else None


def filter_field(text: str, *, example: str, problem_id: str | None = None) -> h.Element:
    """Returns the field of a filter.

    Args:
        text: the filter.
        example: what an empty field shows.
        problem_id: the id of the element that says what is wrong with it; None if nothing is.
    """
    return h.label[
        "Filter",
        h.input(
            type="search",
            name="filter",
            value=text,
            placeholder=example,
            spellcheck="false",
            autocomplete="off",
            aria_invalid="true" if problem_id else None,
            aria_describedby=problem_id,
        ),
    ]


def job_path(project: str, job_id: str) -> str:
    """Returns the path of a job's page."""
    return f"/projects/{quote(project, safe='')}/jobs/{quote(job_id, safe='')}"


def model_path(project: str, model: str) -> str:
    """Returns the path of a model's page."""
    return f"/projects/{quote(project, safe='')}/models/{quote(model, safe='')}"


def default_project(principal: Principal) -> str:
    """Returns the project that pages show first."""
    return "local" if principal.is_for_all_projects else principal.project


def with_query(path: str, values: Mapping[str, str]) -> str:
    """Returns a path with those of the values that are not empty."""
    query = urlencode({name: value for name, value in values.items() if value})
    return f"{path}?{query}" if query else path
