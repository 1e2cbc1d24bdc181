"""Packs pictures by class, such as the archive of Cats vs Dogs as Microsoft distributes it, for `train.py`.

    python pack.py kagglecatsanddogs_5340.zip gs://bucket/pets

Each picture is decoded, cut to a square, resized and encoded as JPEG, into sharded TFRecord files. Files that are
empty, cut off or no JPEG at all, of which this archive has some, are left out, named and counted. An interrupted run
resumes, and a finished one does nothing. `lockstep data pack` does the same with flags of its own.
"""

import argparse
import re
import sys
from collections import Counter

from lockstep.data import pack
from lockstep.data.sources import Transcoding, open_source
from lockstep.errors import LockstepError, counted

NAME = "cats-and-dogs"


def parse_arguments():
    parser = argparse.ArgumentParser(description="Packs pictures by class into sharded record files.")
    parser.add_argument("source", help="folder or .zip of pictures, with a folder for each class: PetImages/Cat/0.jpg")
    parser.add_argument("bucket", help="where the files go: a folder, gs://bucket/path or s3://bucket/path")
    parser.add_argument("--name", default=NAME, help=f"of the data set, {NAME} by default")
    parser.add_argument("--image-size", type=int, default=224, help="height and width of a packed picture, in pixels")
    parser.add_argument("--validation", type=float, default=0.2, help="share of the pictures to validate with")
    parser.add_argument("--shards", type=int, help="files of each split; by default of about 128 MiB, and at least 8")
    return parser.parse_args()


def pack_pictures(arguments):
    size = arguments.image_size
    source = open_source(arguments.source, transcoding=Transcoding(size=(size, size), codec="jpeg"))
    print(f"{arguments.name}: {source.origin}")
    packed = pack(
        source,
        arguments.bucket,
        name=arguments.name,
        split={"train": 1 - arguments.validation, "validation": arguments.validation},
        num_shards=arguments.shards,
        on_error="skip",
        say=print,
    )
    for split, manifest in packed.manifests.items():
        shards = counted(len(manifest.shards), "shard")
        print(f"{split}: {counted(manifest.num_records, 'picture')} of {size} x {size} pixels in {shards}")
    print(f"classes: {', '.join(source.classes)}")
    print(f"damaged files left out: {len(packed.skipped)}")
    reasons = (re.split(r"; | \(", item.reason)[0] for item in packed.skipped)  # without what differs by file
    for reason, count in Counter(reasons).most_common():
        print(f"  {count} x {reason}")


def main():
    try:
        pack_pictures(parse_arguments())
    except LockstepError as error:
        print(f"pack.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
