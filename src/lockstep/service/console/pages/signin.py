"""Signing in with a key."""

from __future__ import annotations

import htpy as h

from lockstep.service.console.layout import page


def signin_page(*, then: str = "/", error: str | None = None) -> h.Element:
    """Returns the page.

    Args:
        then: the path that is shown afterwards.
        error: why signing in failed; None if it was not tried.
    """
    form = h.form(".signin", method="post", action="/signin")[
        h.p["Enter an API key, or on the service's own machine the content of the home's token file."],
        h.p(".error", role="alert")[error] if error else None,
        h.label["Key", h.input(".wide", type="password", name="key", required=True, autocomplete="current-password")],
        h.input(type="hidden", name="then", value=then),
        h.p[h.button(".primary", type="submit")["Sign in"]],
        h.p(".muted")["On the service's machine, ", h.code["lockstep open"], " opens the console signed in."],
    ]
    return page(form, title="Sign in")
