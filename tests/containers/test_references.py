"""Names of images."""

from __future__ import annotations

import pytest

from lockstep.containers import check_reference, registry_of
from lockstep.containers.references import is_on_loopback, is_pinned
from lockstep.errors import ImageError

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("trainer", None),
        ("team/trainer:1.2", None),
        ("localhost/trainer", None),
        ("localhost:5000/trainer", "localhost:5000"),
        ("gcr.io/p/trainer:latest", "gcr.io"),
        (f"gcr.io/p/trainer@{DIGEST}", "gcr.io"),
        (f"[::1]:5000/a_b/c__d/e.f-g:T@{DIGEST}", "[::1]:5000"),
    ],
)
def test_names_are_taken_apart(image: str, registry: str | None) -> None:
    assert check_reference(image, what="imageUri") == image
    assert registry_of(image) == registry
    assert is_pinned(image) is (DIGEST in image)


@pytest.mark.parametrize(
    "image",
    ["", "--privileged", "-v", "A", "gcr.io/P/x", "x:", "x@sha256:1", "a b", "a//b", "docker://x", "x\n", "a" * 1025],
    ids=lambda image: repr(image)[:20],
)
def test_what_is_no_name_is_refused(image: str) -> None:
    with pytest.raises(ImageError, match="imageUri; received"):
        check_reference(image, what="imageUri")


@pytest.mark.parametrize("registry", ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"])
def test_registries_of_this_machine(registry: str) -> None:
    assert is_on_loopback(registry)
    assert not is_on_loopback(f"x{registry}")
    assert not is_on_loopback(f"{registry}.example.com")
