"""Finds the weights of DenseNet121: Keras's file in its cache or from the network, a path, or a bucket."""

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from pathlib import Path

from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError, UnavailableError
from lockstep.storage import open_bucket, split_url

FILE = "densenet121_weights_tf_dim_ordering_tf_kernels_notop.h5"
URL = f"https://storage.googleapis.com/tensorflow/keras-applications/densenet/{FILE}"
CHECKSUM = "30ee3e1110167f948a6b9946edeeb738"
"""The MD5 of the published file, as Keras has it."""

ALGORITHMS = {32: "md5", 64: "sha256"}
"""The algorithms of checksums, by their number of hexadecimal digits."""

SILENCE_S = 30
"""How long the network may be silent, in seconds."""


def cache_folder():
    """Returns the folder in which `keras.applications` keeps weights."""
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home) / "models"


@contextlib.contextmanager
def open_weights(weights, *, checksum=None):
    """Yields the path of the file with the weights; None for "none".

    Args:
        weights: "imagenet", "none", a path, or a URL in a bucket.
        checksum: MD5 or SHA-256 that the file of a path or URL has to have, in hexadecimal digits.
    """
    if checksum is not None and weights in ("imagenet", "none"):
        raise InvalidInputError("--weights-checksum is for a path or a URL", received=weights)
    if weights == "none":
        yield None
    elif weights == "imagenet":
        path = cache_folder() / FILE
        if not path.exists():
            download(path)
        check(path, CHECKSUM, name=str(path), action=f"remove it, or name your own file: --weights {path}")
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="weights-") as folder:
            yield fetch(weights, Path(folder), checksum=checksum)


def fetch(weights, folder, *, checksum):
    """Returns the path of a file that is named by its path or URL; a file of a bucket is downloaded into the folder."""
    path = Path(weights)
    if "://" in weights:
        bucket_url, key = split_url(weights)
        path = folder / key  # Keras knows its kinds of files by their names
        open_bucket(bucket_url).download(key, path=path)
    elif not path.is_file():
        raise MissingInputError(
            "there is no file with weights (--weights)",
            received=weights,
            allowed="imagenet, none, the path of a file, or its URL in a bucket: gs://bucket/path/file.h5",
        )
    if checksum is not None:
        check(path, checksum, name=weights, action="fetch it again, or correct --weights-checksum")
    return path


def check(path, checksum, *, name, action):
    """Raises an error if a file has another checksum."""
    expected = checksum.lower()
    algorithm = ALGORITHMS.get(len(expected))
    if algorithm is None or set(expected) - set("0123456789abcdef"):
        raise InvalidInputError("--weights-checksum", received=checksum, allowed="an MD5 or SHA-256 in hexadecimal")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise CorruptDataError(
            f"{name} has another checksum", received=f"{algorithm} {found}", allowed=expected, action=action
        )


def download(path):
    """Downloads the published file into Keras's cache. Several processes may do so at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{FILE}.{os.getpid()}.part")
    print(f"downloading {URL}", flush=True)
    try:
        with urllib.request.urlopen(URL, timeout=SILENCE_S) as answer, part.open("wb") as file:
            while block := answer.read(1 << 20):
                file.write(block)
        check(part, CHECKSUM, name=URL, action="try again")
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"the ImageNet weights of DenseNet121 are not in Keras's cache, and cannot be downloaded: {error}",
            action=f"put the file {URL} into {path.parent}, or into a bucket that the job reads and name it: "
            f"--weights gs://bucket/{FILE}; or train from scratch: --weights none",
        ) from None
    finally:
        part.unlink(missing_ok=True)
