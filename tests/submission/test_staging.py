"""Where a program's code goes, by where the service is."""

from __future__ import annotations

import pytest

from lockstep.client import Client, ServiceAddress
from lockstep.errors import InvalidInputError
from lockstep.submission.staging import check_reachable


@pytest.mark.parametrize(("bucket", "is_here"), [("/b", True), ("gs://b", True), ("gs://b", False)])
def test_code_goes_into_the_services_own_bucket(bucket: str, is_here: bool) -> None:
    assert check_reachable(bucket, is_on_this_machine=is_here, what="--staging-bucket") == bucket


def test_a_folder_of_another_machine_is_no_place_for_code() -> None:
    with pytest.raises(
        InvalidInputError, match="is a folder on the service's machine; give a bucket that both machines can"
    ):
        check_reachable("/b", is_on_this_machine=False, what="--staging-bucket")


@pytest.mark.parametrize(
    ("url", "is_here"),
    [("http://127.0.0.1:1", True), ("https://localhost:1", True), ("https://[::1]", True), ("https://10.0.0.1", False)],
)
def test_what_is_on_loopback_is_on_this_machine(url: str, is_here: bool) -> None:
    with Client(ServiceAddress(url=url, token="t")) as client:
        assert client.is_on_this_machine is is_here
