"""Signatures that Standard Webhooks' libraries verify."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.notifications.test_webhooks import EVENT

from lockstep.errors import InvalidInputError
from lockstep.jobs.notifications.signatures import parse_key, sign
from lockstep.jobs.notifications.webhooks import build_headers, build_message

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_vector_of_the_reference_libraries_is_met() -> None:
    key = parse_key(SECRET, what="secret")
    signature = sign(b'{"test": 2432232314}', message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, key=key)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_example_of_the_docs_verifies_what_is_sent() -> None:
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    namespace: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], namespace)
    headers = dict(build_headers(EVENT, name="ops", key=parse_key(SECRET, what="secret"), time_s=time.time()))
    body = build_message(EVENT)
    verify = namespace["verify"]
    assert verify(body, headers, secret=SECRET)
    assert verify(body, {**headers, "webhook-signature": f"v1,AAAA {headers['webhook-signature']}"}, secret=SECRET)
    assert not verify(body + b" ", headers, secret=SECRET)
    assert not verify(body, {**headers, "webhook-id": "ops-8"}, secret=SECRET)
    assert not verify(body, {**headers, "webhook-timestamp": str(int(time.time()) + 1)}, secret=SECRET)
    assert not verify(body, headers, secret=SECRET, tolerance_s=-1)


def _secret(num_bytes: int) -> str:
    return f"whsec_{base64.b64encode(b'x' * num_bytes).decode()}"


@pytest.mark.parametrize("num_bytes", [24, 64])
def test_keys_of_24_to_64_bytes_are_taken(num_bytes: int) -> None:
    assert parse_key(_secret(num_bytes), what="secret") == b"x" * num_bytes


@pytest.mark.parametrize(
    "secret", ["", "plain", SECRET.removeprefix("whsec_"), f"{SECRET}!", _secret(23), _secret(65), "whsec_\xe9"]
)
def test_other_secrets_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_key(secret, what="the secret")
    assert str(caught.value) == (
        "the secret; allowed: whsec_ and the base64 of 24 to 64 bytes; "
        'make one with `echo "whsec_$(openssl rand -base64 32)"`'
    )
