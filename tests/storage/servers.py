"""Servers of object stores on loopback, for tests: S3 by moto, Google Cloud Storage by gcp-storage-emulator."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import HTTPServer
from unittest import mock

from lockstep.testing.ports import free_port

LOOPBACK = "127.0.0.1"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Runs an S3 server in threads; yields the variables that name it and its credentials."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "no secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.stop()


@contextmanager
def gs_server() -> Iterator[Mapping[str, str]]:
    """Runs an emulator of Google Cloud Storage in threads; yields the variables that name it."""
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)
    port = free_port()
    # Nobody looks for an account of the machine, at an address that most networks drop. The variable says so to other
    # processes; this one has read it when the module was imported.
    # And the server takes connections one by one: of more than five that wait the system drops some, which come again
    # after a second.
    with (
        mock.patch.object(HTTPServer, "request_queue_size", 128),
        create_server(LOOPBACK, port, in_memory=True),
        mock.patch("google.auth.compute_engine._metadata._NO_GCE_CHECK", True),
    ):
        yield {"STORAGE_EMULATOR_HOST": f"http://{LOOPBACK}:{port}", "NO_GCE_CHECK": "true"}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for a while; clients that were made before or within it are not kept beyond."""
    with mock.patch.dict(os.environ, variables):
        _forget_clients()
        yield
    _forget_clients()


def _forget_clients() -> None:
    """fsspec keeps a client for each set of options, and the environment is none of them."""
    from gcsfs.core import GCSFileSystem
    from s3fs import S3FileSystem

    for kind in (S3FileSystem, GCSFileSystem):
        for each in (kind, *kind.__subclasses__()):
            each.clear_instance_cache()
