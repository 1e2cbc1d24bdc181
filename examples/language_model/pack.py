"""Packs text files into records of token sequences.

    python examples/language_model/pack.py BUCKET FILE.txt FOLDER ...

Each file is a document. The documents are joined, with an end token behind each, and cut into sequences of one length,
so no token is padding. One of `--test-every` sequences goes into the split for tests.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from language import load_tokenizer

from lockstep.data import RawFeature, pack
from lockstep.errors import InvalidInputError, LockstepError


def parse_arguments():
    parser = argparse.ArgumentParser(description="Packs text files into records of token sequences.")
    parser.add_argument("bucket", help="where the records go: a folder, gs://..., s3://...")
    parser.add_argument("texts", nargs="+", type=Path, help="text files in UTF-8, or folders with *.txt and *.md")
    parser.add_argument("--name", default="text", help="the name of the data set")
    parser.add_argument("--length", type=int, default=64, help="tokens that the model sees at once")
    parser.add_argument("--test-share", type=float, default=0.1, help="the share of sequences for tests")
    parser.add_argument("--preset", help="the KerasHub preset whose tokenizer is used; bytes otherwise")
    parser.add_argument("--num-shards", type=int, default=4)
    return parser.parse_args()


def documents(paths):
    """Yields the texts of files, and of the text files in folders."""
    for path in paths:
        files = sorted([*path.rglob("*.txt"), *path.rglob("*.md")]) if path.is_dir() else [path]
        for file in files:
            yield file.read_text("utf-8")


def sequences(texts, tokenizer, *, length):
    """Yields sequences of ``length + 1`` tokens: the model reads all but the last, and predicts all but the first."""
    tokens = []
    for text in texts:
        tokens += [
            tokenizer.start_token_id,
            *(int(token) for token in tokenizer.tokenize(text)),
            tokenizer.end_token_id,
        ]
        while len(tokens) > length:
            yield {"tokens": np.array(tokens[: length + 1], np.int32)}
            tokens = tokens[length:]  # the last token of a sequence is the first of the next one


def main():
    arguments = parse_arguments()
    try:
        missing = [path for path in arguments.texts if not path.exists()]
        if missing:
            raise InvalidInputError("there is no such text", received=str(missing[0]))
        tokenizer = load_tokenizer(arguments.preset)
        examples = list(sequences(documents(arguments.texts), tokenizer, length=arguments.length))
        if len(examples) < 2:
            raise InvalidInputError(
                "too little text for sequences of this length",
                received=f"{len(examples)} sequences of {arguments.length}",
            )
        packed = pack(
            examples,
            arguments.bucket,
            name=arguments.name,
            split={"train": 1 - arguments.test_share, "test": arguments.test_share},
            features={"tokens": RawFeature((arguments.length + 1,), np.int32)},
            num_shards=arguments.num_shards,
            shuffle=True,
        )
    except LockstepError as error:
        print(f"pack.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for split, manifest in packed.manifests.items():
        print(f"{split}: {manifest.num_records:,} sequences of {arguments.length} tokens")


if __name__ == "__main__":
    main()
