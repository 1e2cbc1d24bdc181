"""Packing anew under other splits: what stays of the earlier ones may hold the records of the new ones."""

import numpy as np

from lockstep.data import FixedLenFeature, pack, read_manifest

FEATURES = {"number": FixedLenFeature((), np.int64)}
EXAMPLES = [{"number": number} for number in range(60)]


def test_splits_that_stay_are_told() -> None:
    said: list[str] = []
    options = {"name": "set", "features": FEATURES, "origin": "numbers", "say": said.append}
    bucket = "memory://other-splits"
    pack(EXAMPLES, bucket, split={"train": 0.8, "val": 0.2}, **options)
    pack(EXAMPLES, bucket, split={"train": 0.7, "val": 0.3}, **options)
    assert not any("other splits" in line for line in said)
    pack(EXAMPLES, bucket, split={"train": 0.9, "test": 0.1}, **options)
    (line,) = (line for line in said if "other splits" in line)
    assert line == (
        "set was already packed from this source with other splits, which remain: val; the new splits contain their "
        "records too: delete the other splits, or pack under another name"
    )
    assert read_manifest(bucket, name="set", split="val").num_records


def test_other_sources_may_be_other_splits_of_a_name() -> None:
    said: list[str] = []
    for origins in (("one", "two"), ("", "")):  # of iterables nobody has to say where they come from
        for split, origin in zip(("train", "test"), origins, strict=True):
            options = {"name": "set", "split": split, "features": FEATURES, "origin": origin, "say": said.append}
            pack(EXAMPLES, f"memory://other-sources-{origins[0]}", **options)
    assert not any("other splits" in line for line in said)
