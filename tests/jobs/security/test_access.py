"""Who may do what, as one pure decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from lockstep.errors import NotFoundError, PermissionDeniedError
from lockstep.jobs.security.access import ALL_PROJECTS, HOME_PRINCIPAL, Principal, Scope, check_access

CALLER, VIEWER, SUBMITTER, OPERATOR = Scope
OTHERS = (VIEWER, SUBMITTER, OPERATOR)


def _of(scope: Scope, project: str = "a") -> Principal:
    return Principal(label="ann", scope=scope, project=project, key_id="lsk_0")


def test_each_scope_may_do_what_the_ones_before_it_may() -> None:
    table = {(has, needed): has.includes(needed) for has, needed in product(Scope, Scope)}
    assert [pair for pair, holds in table.items() if not holds] == [
        (CALLER, VIEWER),
        (CALLER, SUBMITTER),
        (CALLER, OPERATOR),
        (VIEWER, SUBMITTER),
        (VIEWER, OPERATOR),
        (SUBMITTER, OPERATOR),
    ]


@pytest.mark.parametrize("scope", OTHERS)
def test_another_project_is_one_that_is_not_there_whatever_is_asked_of_it(scope: Scope) -> None:
    messages = set()
    for needed in Scope:
        with pytest.raises(NotFoundError) as caught:
            check_access(_of(scope), needed=needed, project="b")
        messages.add(str(caught.value))
    assert messages == {"no project 'b' for this key; see `lockstep whoami`"}


@pytest.mark.parametrize("project", ["a", ALL_PROJECTS])
@pytest.mark.parametrize(("scope", "needed"), list(product(OTHERS, Scope)))
def test_within_its_project_the_scope_decides(scope: Scope, needed: Scope, project: str) -> None:
    if scope.includes(needed):
        check_access(_of(scope, project), needed=needed, project="a")
    else:
        with pytest.raises(PermissionDeniedError, match=f"ann is a {scope}'s; this is for a key of scope {needed}"):
            check_access(_of(scope, project), needed=needed, project="a")


def test_what_is_about_the_service_itself_needs_an_operator_of_all_projects() -> None:
    check_access(HOME_PRINCIPAL, needed=OPERATOR, project=None)
    check_access(_of(OPERATOR, ALL_PROJECTS), needed=OPERATOR, project=None)
    with pytest.raises(PermissionDeniedError, match="for project a; this is for a key of all projects"):
        check_access(_of(OPERATOR), needed=OPERATOR, project=None)
    check_access(_of(VIEWER), needed=VIEWER, project=None)  # whose key it is, anybody may ask


def test_a_callers_key_is_for_one_model_and_its_versions_or_for_one_version() -> None:
    ann = Principal(label="ann", scope=CALLER, project="a", model="m")
    check_access(ann, needed=CALLER, project="a", model="m")
    check_access(ann, needed=CALLER, project="a", model="m", version="v1")
    one = replace(ann, version="v1")
    check_access(one, needed=CALLER, project="a", model="m", version="v1")
    with pytest.raises(PermissionDeniedError, match="for version v1 of model m, and this is for the default version"):
        check_access(one, needed=CALLER, project="a", model="m")
    for model, version in (("n", None), ("n", "v1"), ("m", "v2")):
        with pytest.raises(NotFoundError, match="for this key; use it for projects/a/models/m/versions/v1:predict"):
            check_access(one, needed=CALLER, project="a", model=model, version=version)


@pytest.mark.parametrize("project", ["a", None])
def test_a_route_that_names_no_model_is_for_no_caller(project: str | None) -> None:
    ann = Principal(label="ann", scope=CALLER, project="a", model="m")
    with pytest.raises(NotFoundError):
        check_access(ann, needed=CALLER, project=project)
    with pytest.raises(PermissionDeniedError, match="ann is a caller's; this is for a key of scope viewer"):
        check_access(ann, needed=VIEWER, project=project, model="m")
