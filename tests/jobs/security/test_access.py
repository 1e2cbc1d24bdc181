"""Who may do what, as one pure decision."""

from __future__ import annotations

from itertools import product

import pytest

from lockstep.errors import NotFoundError, PermissionDeniedError
from lockstep.jobs.security.access import ALL_PROJECTS, HOME_PRINCIPAL, Principal, Scope, check_access

VIEWER, SUBMITTER, OPERATOR = Scope


def _of(scope: Scope, project: str = "a") -> Principal:
    return Principal(label="ann", scope=scope, project=project, key_id="lsk_0")


def test_each_scope_may_do_what_the_ones_before_it_may() -> None:
    table = {(has, needed): has.includes(needed) for has, needed in product(Scope, Scope)}
    assert [pair for pair, holds in table.items() if not holds] == [
        (VIEWER, SUBMITTER),
        (VIEWER, OPERATOR),
        (SUBMITTER, OPERATOR),
    ]


@pytest.mark.parametrize("scope", Scope)
def test_another_project_is_one_that_is_not_there_whatever_is_asked_of_it(scope: Scope) -> None:
    messages = set()
    for needed in Scope:
        with pytest.raises(NotFoundError) as caught:
            check_access(_of(scope), needed=needed, project="b")
        messages.add(str(caught.value))
    assert messages == {"no project 'b' for this key; see `lockstep whoami`"}


@pytest.mark.parametrize("project", ["a", ALL_PROJECTS])
@pytest.mark.parametrize(("scope", "needed"), list(product(Scope, Scope)))
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
