"""Messages to URLs that others chose: where they go, over real connections."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme
from tests.service.receiver import TIMEOUT_S, Receiver

from lockstep.jobs.notifications.webhook_targets import WebhookTargets, parse_targets
from lockstep.service.notifications import posting
from lockstep.service.notifications.posting import NO_ALLOWED_ADDRESS, PostResult, RestrictedPost

LOCAL = parse_targets(["127.0.0.0/8"], is_local=True)


class Names:
    """A resolver that answers as it is told to, one answer after the other, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if not self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return self.answers.pop(0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_a_message_arrives_where_the_operator_allows_it(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # who would look the name up itself
    assert RestrictedPost(LOCAL)(receiver.url, b'{"job": "j"}', {"webhook-id": "d"}) == PostResult(status=204)
    assert receiver.taken == [{"job": "j"}]
    assert receiver.headers[0]["host"] == f"127.0.0.1:{receiver.server.server_port}"
    assert receiver.headers[0]["webhook-id"] == "d"


@pytest.mark.parametrize(
    "targets", [WebhookTargets(), parse_targets(["127.0.0.1"], is_local=False)], ids=["not-allowed", "not-on-loopback"]
)
def test_loopback_is_not_called_otherwise(receiver: Receiver, targets: WebhookTargets) -> None:
    assert RestrictedPost(targets)(receiver.url, b"{}", {}).problem == NO_ALLOWED_ADDRESS
    assert receiver.num_asked == 0


def test_a_name_that_leads_into_the_private_network_is_not_called(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names(*[["127.0.0.1", "10.0.0.3"]] * 3)
    url = f"https://hooks.example.com:{receiver.server.server_port}/secret-path"
    post = RestrictedPost(WebhookTargets(), resolve=names)
    assert [post(url, b"{}", {}).problem for _ in range(3)] == [NO_ALLOWED_ADDRESS] * 3
    assert receiver.num_asked == 0
    assert names.asked == [("hooks.example.com", receiver.server.server_port)] * 3
    assert post(url, b"{}", {}).problem == NO_ALLOWED_ADDRESS, "which names there are is not told"
    assert caplog.messages == [
        "a job's webhook: hooks.example.com resolves to 127.0.0.1, 10.0.0.3, which is not allowed",
        "a job's webhook: hooks.example.com cannot be looked up: gaierror",
    ], "the operator is told, once"


def test_the_address_that_was_looked_at_is_the_one_that_is_called(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"], ["127.0.0.9"])  # a second look would find another one
    url = f"http://hooks.example.com:{receiver.server.server_port}/hook"
    assert RestrictedPost(LOCAL, resolve=names)(url, b"{}", {}) == PostResult(status=204)
    assert len(names.asked) == 1
    assert receiver.headers[0]["host"] == f"hooks.example.com:{receiver.server.server_port}"


def test_of_several_addresses_those_that_are_not_allowed_are_left_out_and_the_others_tried(receiver: Receiver) -> None:
    names = Names(["10.0.0.3", "127.0.0.7", "127.0.0.1"])
    url = f"http://localhost:{receiver.server.server_port}/hook"
    assert RestrictedPost(LOCAL, resolve=names)(url, b"{}", {}) == PostResult(status=204)  # nobody listens at 127.0.0.7
    assert receiver.num_asked == 1


def test_a_redirection_is_not_followed(receiver: Receiver) -> None:
    other = Receiver()
    try:
        receiver.status, receiver.location = 302, other.url
        assert RestrictedPost(LOCAL)(receiver.url, b"{}", {}) == PostResult(status=302, problem="it answered 302")
        assert (receiver.num_asked, other.num_asked) == (1, 0)
    finally:
        other.close()


def test_who_answers_a_byte_now_and_then_is_not_waited_for() -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                while not over.wait(0.05):
                    try:
                        connection.send(b"H")
                    except OSError:
                        over.set()

        dripping = threading.Thread(target=drip)
        dripping.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert RestrictedPost(LOCAL, timeout_s=0.3)(url, b"{}", {}) == PostResult(problem="TimeoutError")
        assert over.wait(TIMEOUT_S), "the connection was closed"
        dripping.join(TIMEOUT_S)


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 80, "127.1", "0x7f000001", "2130706433"])
def test_odd_hosts_lead_nowhere(host: str) -> None:
    assert RestrictedPost(WebhookTargets())(f"https://{host}:1/hook", b"", {}).problem in {
        NO_ALLOWED_ADDRESS,
        "InvalidURL",
    }


def test_the_certificate_has_to_be_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    posting._certificates.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hooks.example.com").configure_cert(context)
    made = Receiver()
    made.server.socket = context.wrap_socket(made.server.socket, server_side=True)
    made.server.handle_error = lambda *_: None  # type: ignore[method-assign]
    targets = parse_targets(["hooks.example.com", "others.example.com"], is_local=True)
    try:
        port = made.server.server_port
        post = RestrictedPost(targets, resolve=Names(["127.0.0.1"], ["127.0.0.1"]))
        assert post(f"https://hooks.example.com:{port}/x", b"{}", {}) == PostResult(status=204)
        assert made.headers[0]["host"] == f"hooks.example.com:{port}"
        assert post(f"https://others.example.com:{port}/x", b"{}", {}).problem == "ConnectError"
        assert len(made.taken) == 1
    finally:
        made.close()
        posting._certificates.cache_clear()
