"""Where jobs' webhooks may lead: addresses are judged, not names."""

from __future__ import annotations

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs.notifications.webhook_targets import WebhookTargets, parse_targets

NOBODY = WebhookTargets()
PRIVATE = [
    "10.0.0.3",
    "127.0.0.1",
    "0.0.0.0",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "192.88.99.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:10.0.0.3",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:3",
    "64:ff9b:1::a00:3",
    "2001:0:1::1",
    "2002:a00:3::1",
    "fd00:ec2::254",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_reached_by_no_name(address: str) -> None:
    assert not NOBODY.allows(address, host="hooks.example.com", is_plain=False)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]
)
def test_what_is_public_is_reached_encrypted(address: str) -> None:
    assert NOBODY.allows(address, host="hooks.example.com", is_plain=False)
    assert not NOBODY.allows(address, host="hooks.example.com", is_plain=True)


def test_a_host_that_is_allowed_may_be_private_but_no_metadata_service() -> None:
    targets = parse_targets(["Hooks.Corp"], is_local=False)
    assert targets.allows("10.0.0.3", host="hooks.corp.", is_plain=False)
    assert not targets.allows("10.0.0.3", host="other.corp", is_plain=False)
    for address in (
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "fd00:ec2::254",
        "168.63.129.16",
        "0.0.0.0",
    ):
        assert not targets.allows(address, host="hooks.corp", is_plain=False), address


def test_a_network_that_is_allowed_is_reached_by_every_name() -> None:
    targets = parse_targets(["10.1.0.0/16", "fd00::/8", "192.168.1.7"], is_local=False)
    assert targets.allows("10.1.2.3", host="a", is_plain=False)
    assert targets.allows("::ffff:10.1.2.3", host="a", is_plain=False)
    assert targets.allows("fd00::1", host="a", is_plain=False)
    assert targets.allows("192.168.1.7", host="a", is_plain=False)
    assert not targets.allows("10.2.0.1", host="a", is_plain=False)


@pytest.mark.parametrize(("is_local", "allowed"), [(True, True), (False, False)], ids=["loopback", "outside"])
def test_unencrypted_goes_to_loopback_of_a_service_on_loopback_alone(is_local: bool, allowed: bool) -> None:
    targets = parse_targets(["127.0.0.1", "10.0.0.0/8"], is_local=is_local)
    assert targets.allows("127.0.0.1", host="localhost", is_plain=True) is allowed
    assert not targets.allows("10.0.0.1", host="localhost", is_plain=True)
    assert not WebhookTargets(is_local=is_local).allows("127.0.0.1", host="localhost", is_plain=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.3/in-the-path",
        "https://[::1]:9/in-the-path",
        "https://[::ffff:a9fe:a9fe]/in-the-path",
        "https://localhost/in-the-path",
        "http://localhost:9/in-the-path",
        "http://127.0.0.1:9/in-the-path",
    ],
)
def test_what_is_written_as_an_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^here: .* does not send .*--allow-webhooks-to") as raised:
        NOBODY.check(url, what="here")
    assert "in-the-path" not in str(raised.value)
    parse_targets(["127.0.0.0/8", "10.0.0.3", "169.254.169.254", "::1"], is_local=True).check(url, what="here")


def test_names_are_not_looked_up_when_a_job_is_submitted() -> None:
    NOBODY.check("https://no.such.host.invalid/x", what="here")


def test_what_is_shown_of_a_url_is_none() -> None:
    with pytest.raises(InvalidInputError, match="give the whole URL"):
        NOBODY.check("https://hooks.example.com/***", what="here")


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0", "https://hooks.corp", "a b", "-a", "*.corp", "300.0.0.1"])
def test_what_is_no_host_and_no_network_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--allow-webhooks-to; received .*; allowed: a host's name"):
        parse_targets([text], is_local=True)
