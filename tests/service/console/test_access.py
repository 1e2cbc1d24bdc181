"""Keys and secrets in the console: who sees them, who changes them, and that a secret is shown once or never."""

from __future__ import annotations

import re

from tests.service.console.signed_in import signed_in, submit

from lockstep.jobs.security.access import Scope
from lockstep.testing.served import Served

SECRET = "hunter2-hunter2"


def test_an_operator_makes_a_key_that_is_shown_once_and_revokes_it(service: Served) -> None:
    with signed_in(service) as operator:
        fields = {"label": "ann", "scope": "viewer", "project": "local", "days": "7", "model": "", "rate": ""}
        made = submit(operator, "/access/keys", fields)
        found = re.search(r'<pre id="secret"[^>]*>(lsk_[^<]+)</pre>', made.text)
        assert found is not None, made.text
        secret, name = found[1], found[1][:16]
        assert service.client(secret).get("/v1/whoami").json()["label"] == "ann"
        shown = operator.get("/access").text
        assert name in shown
        assert secret not in shown
        assert re.search(rf"<code>{name}</code></td><td>viewer</td><td>project local</td>", shown)
        assert submit(operator, "/access/keys/revoke", {"key": name}).headers["location"] == "/access"
        assert service.client(secret).get("/v1/whoami").status_code == 401
        assert name not in operator.get("/access").text
        assert "revoked by home" in operator.get("/access?all=on").text
        for wrong in ({"label": "<b>"}, {"scope": "king"}, {"days": "soon"}, {"scope": "caller"}, {"project": "../x"}):
            refused = submit(operator, "/access/keys", {**fields, **wrong})
            assert (refused.status_code, "<b>" in refused.text) == (400, False), wrong


def test_secrets_are_set_and_removed_and_their_values_are_never_shown(service: Served) -> None:
    key = service.key(Scope.SUBMITTER, project="local", label="ann")
    with signed_in(service, key) as submitter:
        fields = {"project": "local", "secret": "TOKEN", "value": SECRET}
        assert submit(submitter, "/access/secrets", fields).headers["location"] == "/access?project=local#secrets"
        shown = submitter.get("/access").text
        assert re.search(r"<td>TOKEN</td>.*? by ann", shown)
        assert SECRET not in shown
        for wrong in ({"secret": "1 <b>"}, {"value": ""}, {"project": "other"}):
            assert submit(submitter, "/access/secrets", {**fields, **wrong}).status_code in (400, 404), wrong
        assert submit(submitter, "/access/secrets/remove", fields).status_code == 303
        assert "TOKEN" not in submitter.get("/access").text
        assert submitter.get("/access?project=other").status_code == 404


def test_others_see_their_own_key_and_no_others(service: Served) -> None:
    service.key(Scope.OPERATOR, label="bob")
    for scope, project in ((Scope.VIEWER, "local"), (Scope.OPERATOR, "local"), (Scope.VIEWER, "*")):
        with signed_in(service, service.key(scope, project=project, label="ann")) as reader:
            shown = reader.get("/access").text
            assert "<dd>ann</dd>" in shown
            assert "bob" not in shown
            assert "Make a key" not in shown
            assert ("Set a secret" in shown) is (scope is Scope.OPERATOR)
            refused = submit(reader, "/access/keys", {"label": "x", "scope": "operator", "project": "*"})
            assert refused.status_code == 403
            assert submit(reader, "/access/keys/revoke", {"key": "lsk_0"}).status_code == 403
    assert [record.label for record in service.context.keys.list()] == ["bob", "ann", "ann", "ann"]
