"""The requests that a server is answering."""

from __future__ import annotations

from lockstep.serving.open_requests import OpenRequests


def test_requests_are_summed_over_time() -> None:
    now = 10.0
    requests = OpenRequests(clock=lambda: now)
    now = 12.0
    with requests.counting():
        now = 13.0
        with requests.counting():
            now = 15.0
            assert requests.num_open == 2
        now = 16.0
        assert (requests.num_open, requests.open_s, requests.busy_s) == (1, 1.0 + 2 * 2.0 + 1.0, 4.0)
    now = 20.0
    assert (requests.num_open, requests.open_s, requests.busy_s) == (0, 6.0, 4.0)
