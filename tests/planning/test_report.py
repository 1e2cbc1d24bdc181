"""What a plan says, in words and as JSON."""

import dataclasses
import json
from decimal import Decimal

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.planning import Measurement, Memory, Target, Work, make_report
from lockstep.planning.forecast import ForecastOptions, parse_chips
from lockstep.planning.hlo import Collective

MEBI = 2**20


def measurement(**changes):
    memory = Memory(
        arguments={"parameters": 100 * MEBI, "optimizer": 200 * MEBI, "batch": MEBI},
        arguments_bytes=301 * MEBI,
        padded=True,
        whole={"parameters": 100 * MEBI, "optimizer": 200 * MEBI, "batch": 8 * MEBI},
        temporaries=700 * MEBI,
        results=512,
        program=2 * MEBI,
    )
    reduced = Collective(
        kind="all-reduce", group_size=8, count=3, payload_bytes=100 * MEBI, sent_bytes=175 * MEBI, count_in_loops=1
    )
    work = Work(
        operations=1.97e12, xla_operations=1.5e12, xla_bytes=8.19e9, state_bytes=819_000_000, collectives=(reduced,)
    )
    found = Measurement(
        program="fit of resnet",
        num_devices=8,
        num_rows=1024,
        num_steps=360,
        matrix_operations=12 * 10**12,
        memory=memory,
        work=work,
        refusal=None,
        compile_s=2.5,
        versions={"jax": "1"},
    )
    return dataclasses.replace(found, **changes)


def report(found=None, *, on="v5e:2x4", **options):
    return make_report(found or measurement(), target=Target.parse(on), catalogue=load_catalogue(), **options)


def text(*args, **options):
    return "\n".join(report(*args, **options).lines())


def test_in_words():
    said = text()
    for line in (
        "fit of resnet: compiled for 8 TPU v5e chips (2x4) on 1 host, not run (2.5 s of compiling)",
        "  global batch of 1,024 rows over 8 devices; 360 steps an epoch",
        "memory of one chip: it fits, 1003 MiB of 16 GiB (6.1%)",
        "  optimizer          200 MiB",
        "  activations        700 MiB  gradients and other temporaries too",
        "  operations      1.97 TFLOP  matrix products and convolutions of all chips together: 12 TFLOP",
        "  all-reduce         100 MiB  in 3 over 8 chips; 175 MiB sent, 1 in loops and counted once",
        "time of a step: at least 10 ms, bound by compute",
        "  rows             102,400/s  at the most, all chips together",
        "an epoch: at least 3.6 s",
        "cost: at least $0.009600 an epoch, at $9.60 an hour for 1 x ct5lp-hightpu-8t (Cloud TPU's list for the US)",
        "  https://cloud.google.com/tpu/docs/v5e",
    ):
        assert line in said.splitlines(), said


def test_memory_that_parts_use_in_turn_counts_once():
    memory = dataclasses.replace(measurement().memory, temporaries=16000 * MEBI, peak=15800 * MEBI)
    said = text(measurement(memory=memory))
    assert "memory of one chip: it fits, 15.4 GiB of 16 GiB (96.4%)" in said
    assert "  reused            -501 MiB  memory that two of these use in turn" in said
    assert "reused" not in text()


def test_where_the_list_has_no_price():
    said = text(region="europe-west4")
    assert "cost: unpriced (1 x ct5lp-hightpu-8t has no price in the catalogue" in said
    assert "cost: at least $0.0" in text(region="europe-west4", usd_per_chip_hour=Decimal("1.56"))


def test_dollars_of_an_epoch_at_a_price_that_was_given():
    found = report(usd_per_chip_hour=Decimal("1.50"))
    assert found.cost is not None
    assert found.cost.usd_per_hour == Decimal("12.00")
    assert float(found.cost.usd_per_epoch_floor or 0) == pytest.approx(12 * 3.6 / 3600)
    assert (
        "at least $0.012000 an epoch, at $12.00 an hour for 1 x ct5lp-hightpu-8t ($1.50 a chip and hour, as given)"
        in ("\n".join(found.lines()))
    )


def test_without_steps_there_is_no_epoch():
    found = report(measurement(num_steps=None), usd_per_chip_hour=Decimal(1))
    assert found.epoch_s is None
    assert found.cost is not None
    assert found.cost.usd_per_epoch_floor is None
    assert "cost: $8.00 an hour for 1 x ct5lp-hightpu-8t" in "\n".join(found.lines())
    assert "an unknown number of steps an epoch" in "\n".join(found.lines())


GIBI = 2**30
REFUSAL = "Ran out of memory in memory space hbm. Used 34.50G of 15.75G hbm."


def too_large(refusal=REFUSAL, *, num_shares=1):
    whole = {"parameters": 10 * GIBI, "optimizer": 20 * GIBI, "batch": 8 * MEBI}
    arguments = {"parameters": 10 * GIBI // num_shares, "optimizer": 20 * GIBI // num_shares, "batch": MEBI}
    size = sum(arguments.values())
    memory = Memory(arguments=arguments, arguments_bytes=size, padded=False, whole=whole)
    return measurement(memory=memory, work=None, refusal=refusal)


def test_what_does_not_fit():
    said = text(too_large())
    assert f"memory of one chip: it DOES NOT FIT: {REFUSAL}\n  18.8 GiB too much\n" in said
    assert "  parameters          10 GiB  without padding" in said
    assert "time" not in said.replace("times", "")
    found = report(too_large())
    assert (found.fits, found.missing_bytes) == (False, round(18.75 * GIBI))
    sharding, training, *rest = found.advice
    assert sharding == "ShardedStrategy(stage=3): parameters and optimizer take 3.75 GiB of each chip, not 30 GiB"
    assert "LoRA: the optimizer's 20 GiB" in training
    assert rest[0] == "a smaller batch than 1,024 rows, or gradient accumulation over smaller ones"


def test_state_that_is_divided_already_needs_more_chips_or_less_state():
    found = report(too_large("no room", num_shares=2), on="v5e:1x1")
    assert found.missing_bytes is None
    assert "ShardedStrategy" not in " ".join(report(too_large(num_shares=8)).advice)
    single = dataclasses.replace(too_large(), num_devices=1)
    assert report(single, on="v5e:1x1").advice[0].startswith("more chips: 3 or more hold the state of 30 GiB")


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("the total memory required for HLO temporaries (23.10G) exceeds available HBM (15.75G).", 37.35),
        ("Used 16.00G of 15.75G hbm. Exceeded hbm capacity by 256.00M.", 0.25),
    ],
)
def test_how_much_is_missing_is_read_from_the_compiler_s_message(message, missing):
    found = report(too_large(message)).missing_bytes
    assert found == pytest.approx(missing * GIBI, rel=1e-4), "with the arguments, where they are not counted"


def test_chips_that_a_script_leaves_idle():
    assert "  7 devices of the target idle: build and compile the model within a strategy's scope" in text(
        measurement(num_devices=1)
    )


def test_of_cpus_nothing_is_published():
    found = report(on="cpu:8")
    assert (found.floor, found.cost, found.sources, found.machine_type) == (None, None, (), None)
    assert "time: no floor, since these devices have no published figures" in "\n".join(found.lines())


def test_as_json():
    document = json.loads(json.dumps(report(usd_per_chip_hour=Decimal("1.20")).to_json()))
    assert (document["target"], document["fits"], document["num_hosts"]) == ("v5e:2x4", True, 1)
    assert document["measurement"]["memory"]["arguments"]["optimizer"] == 200 * MEBI
    assert document["measurement"]["work"]["collectives"][0]["kind"] == "all-reduce"
    assert document["step_s"] == pytest.approx(0.01)
    assert document["cost"]["usd_per_hour"] == "9.60"
    assert document["sources"] == ["https://cloud.google.com/tpu/docs/v5e"]


def test_more_chips_are_forecast_with_time_and_cost():
    options = ForecastOptions(num_chips=[8, 256, 4096], step_s=0.1)
    found = report(scaling=options)
    eight, whole_slice, many = found.forecasts
    assert (eight.num_rows, whole_slice.num_slices, many.num_slices) == (1024, 1, 16)
    assert eight.efficiency > whole_slice.efficiency > many.efficiency > 0.5
    assert many.epoch_s == pytest.approx(360 * 1024 / many.rows_per_s)
    assert float(many.usd_per_epoch or 0) == pytest.approx(1.2 * 4096 * many.epoch_s / 3600, rel=1e-6)
    said = list(found.lines())
    (row,) = [line for line in said if line.startswith("  4,096")]
    assert row.split()[:3] == ["4,096", "16", "524,288"]
    assert json.loads(json.dumps(found.to_json()))["forecasts"][0]["num_chips"] == 8


def test_a_step_that_was_not_measured_is_estimated():
    (found,) = report(scaling=ForecastOptions(num_chips=[1])).forecasts
    assert found.step_s == pytest.approx(8.19e9 / 819e9), "from all memory traffic that XLA counts, which is more"


def test_chips_beyond_a_slice_need_a_published_network():
    with pytest.raises(InvalidInputError, match="between slices of v4 is not published; received 8000; allowed: up to"):
        report(on="v4:2x2x1", scaling=ForecastOptions(num_chips=[8000]))


@pytest.mark.parametrize("text", ["", "0", "9000", "64,x", "64,,8"])
def test_numbers_of_chips_that_are_none(text):
    with pytest.raises(InvalidInputError, match=r"--chips; received .*allowed: numbers from 1 to 8,192"):
        parse_chips(text)
    assert parse_chips("64, 8,64") == [8, 64]
