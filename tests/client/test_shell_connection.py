"""A shell's connection, against servers that end it too soon."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from websockets.sync.server import ServerConnection, serve

from lockstep.client import Client, ServiceAddress
from lockstep.errors import InvalidInputError
from lockstep.jobs.running.shell_frames import FrameKind, ShellRequest


@pytest.fixture
def closing() -> Iterator[str]:
    """The address of a service that hangs up as soon as a connection is open."""

    def hang_up(connection: ServerConnection) -> None:
        connection.socket.close()

    with serve(hang_up, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def test_a_service_that_dies_leaves_a_shell_without_an_end(closing: str) -> None:
    with Client(ServiceAddress(url=closing, token="t")) as client:
        for _ in range(20):  # it is noticed while the request is sent, or after it
            shell = client.open_shell("j", replica="master-replica-0", request=ShellRequest(command=("ls",)))
            assert list(shell.frames()) == []
            assert not shell.send(FrameKind.INPUT, b"x")
            shell.close()


def test_what_is_no_text_is_refused() -> None:
    with (
        Client(ServiceAddress(url="http://127.0.0.1:1", token="t")) as client,
        pytest.raises(InvalidInputError, match="not valid text"),
    ):
        client.open_shell("j", replica="master-replica-0", request=ShellRequest(command=("\udcff",)))
