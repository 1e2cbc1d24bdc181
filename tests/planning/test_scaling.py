"""Simulated scaling: by hand, by a Monte Carlo simulation of failures and stragglers, and against published figures."""

import math

import numpy as np
import pytest

from lockstep.errors import InvalidInputError
from lockstep.planning.networks import ALGORITHMS, Network, all_reduce_s
from lockstep.planning.scaling import Failures, Workload, expected_maximum, simulate

MB = 10**6
GIGABIT = 10**9 / 8
IDEAL = Network(
    chips_per_group=4,
    inner_bytes_per_s=100e9,
    outer_bytes_per_s=10e9,
    inner_latency_s=0.0,
    outer_latency_s=0.0,
    efficiency=1.0,
)


@pytest.mark.parametrize(
    ("algorithm", "num_chips", "seconds"),
    [
        ("ring", 4, 2 * 3 / 4 * 100 * MB / 100e9),
        ("ring", 8, 2 * 7 / 8 * 100 * MB / 10e9),
        ("tree", 8, 2 * 100 * MB / 10e9),
        ("hierarchical", 8, 2 * 3 / 4 * 100 * MB / 100e9 + 2 * 1 / 2 * 100 * MB / 10e9),
    ],
)
def test_the_time_of_an_all_reduce_by_hand(algorithm, num_chips, seconds):
    found = all_reduce_s(100 * MB, num_chips=num_chips, network=IDEAL, algorithm=algorithm)
    assert found == pytest.approx(seconds)


def test_the_fastest_algorithm_is_chosen_by_size():
    network = Network(chips_per_group=1, inner_bytes_per_s=10e9, outer_bytes_per_s=10e9)
    for size in (1000, MB, 1000 * MB):
        times = {name: all_reduce_s(size, num_chips=64, network=network, algorithm=name) for name in ALGORITHMS}
        assert all_reduce_s(size, num_chips=64, network=network) == min(times.values())
        # A ring has 126 latencies, the others 12. All send about twice the bytes.
        assert (times["ring"] > 5 * times["tree"]) == (size == 1000)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InvalidInputError, match="received 'star'; allowed: ring, tree, hierarchical"):
        all_reduce_s(1, num_chips=2, network=IDEAL, algorithm="star")


def test_gradients_that_are_sent_during_the_backward_pass_cost_the_last_bucket_alone():
    work = Workload(compute_s=0.3, gradient_bytes=100 * MB, rows=1, bucket_bytes=25 * MB)
    bucket_s = all_reduce_s(25 * MB, num_chips=8, network=IDEAL)
    found = simulate(work, num_chips=8, network=IDEAL, straggling=0.0)
    assert found.waiting_s == pytest.approx(bucket_s)
    after = Workload(compute_s=0.3, gradient_bytes=100 * MB, rows=1, bucket_bytes=25 * MB, overlaps=False)
    assert simulate(after, num_chips=8, network=IDEAL, straggling=0.0).waiting_s == pytest.approx(4 * bucket_s)


def test_gradients_that_are_ready_early_are_sent_earlier():
    late = Workload(compute_s=0.3, gradient_bytes=1000 * MB, rows=1, profile=((0.9, 0.1), (0.1, 0.9)))
    early = Workload(compute_s=0.3, gradient_bytes=1000 * MB, rows=1, profile=((0.1, 0.9), (0.9, 0.1)))
    waits = [simulate(work, num_chips=8, network=IDEAL, straggling=0.0).waiting_s for work in (late, early)]
    assert waits[0] > waits[1] + 0.05


def test_one_chip_neither_sends_nor_waits():
    found = simulate(Workload(compute_s=0.1, gradient_bytes=MB, rows=32), num_chips=1, network=IDEAL)
    assert (found.step_s, found.efficiency, found.rows_per_s) == (0.1, 1.0, pytest.approx(320))


@pytest.mark.parametrize("num_chips", [2, 8, 512])
def test_the_slowest_of_many_chips_is_that_of_drawn_times(num_chips):
    drawn = np.random.default_rng(1).normal(size=(8000, num_chips)).max(axis=1).mean()
    assert expected_maximum(num_chips) == pytest.approx(drawn, rel=0.08)


@pytest.mark.parametrize(("hours", "interval_s"), [(5000.0, 1800.0), (2000.0, 600.0)])
def test_the_time_that_failures_cost_is_that_of_drawn_failures(hours, interval_s):
    failures = Failures(mean_time_between_s=hours * 3600, save_s=20.0, restart_s=300.0, interval_s=interval_s)
    generator = np.random.default_rng(2)
    mean_s, num_segments = failures.mean_time_between_s / 1024, 3000
    clock = 0.0
    for _ in range(num_segments):  # of an interval and a checkpoint, each repeated until no chip fails in it
        needed_s = interval_s + failures.save_s
        while (failed_s := generator.exponential(mean_s)) < needed_s:
            clock += failed_s + failures.restart_s
            while (again_s := generator.exponential(mean_s)) < failures.restart_s:
                clock += again_s
            # the restart that succeeded is counted above
        clock += needed_s
    assert failures.goodput(1024) == pytest.approx(num_segments * interval_s / clock, rel=0.03)


def test_the_optimal_interval_is_better_than_others():
    def goodput(interval_s):
        return Failures(mean_time_between_s=1e7, save_s=30.0, interval_s=interval_s).goodput(512)

    best = goodput(None)
    assert all(best >= goodput(seconds) - 1e-4 for seconds in (60.0, 300.0, 1000.0, 3000.0, 10000.0))


def test_chips_that_fail_all_the_time_never_advance():
    assert Failures(mean_time_between_s=100.0, restart_s=300.0).goodput(1024) == 0.0


# Published figures. TensorFlow's benchmark page measured one NVIDIA P100 at batch 64: images per second.
P100 = {"InceptionV3": 142, "ResNet-50": 219, "VGG16": 154}
PARAMETERS = {"InceptionV3": 23.9e6, "ResNet-50": 25.6e6, "VGG16": 138.4e6}
VGG_PROFILE = ((0.05, 0.893), (0.95, 0.107))
"""VGG16's three dense layers have 123.6 of 138.4 million parameters, and are the first of the backward pass."""
DGX1 = Network(chips_per_group=8, inner_bytes_per_s=40e9, outer_bytes_per_s=12.5e9)
"""Two NVLink rings of 20 GB/s."""
ROCE_25 = Network(chips_per_group=4, inner_bytes_per_s=10e9, outer_bytes_per_s=25 * GIGABIT)
"""Horovod's servers: four GPUs on PCIe 3, 25 Gbit/s."""
BIG_BASIN = Network(chips_per_group=8, inner_bytes_per_s=40e9, outer_bytes_per_s=50 * GIGABIT)


def p100(name):
    profile = VGG_PROFILE if name == "VGG16" else ((1.0, 1.0),)
    return Workload(compute_s=64 / P100[name], gradient_bytes=4 * PARAMETERS[name], rows=64, profile=profile)


PUBLISHED = [
    # TensorFlow's page: 1,131, 1,734 and 1,081 images per second on 8 GPUs of a DGX-1.
    ("InceptionV3, DGX-1", p100("InceptionV3"), 8, DGX1, 1131 / (8 * 142)),
    ("ResNet-50, DGX-1", p100("ResNet-50"), 8, DGX1, 1734 / (8 * 219)),
    ("VGG16, DGX-1", p100("VGG16"), 8, DGX1, 1081 / (8 * 154)),
    # Horovod's page of benchmarks, and its README in 2017: 32 and 128 servers.
    ("InceptionV3, Horovod", p100("InceptionV3"), 128, ROCE_25, 0.90),
    ("VGG16, Horovod", p100("VGG16"), 128, ROCE_25, 0.79),
    ("InceptionV3, Horovod", p100("InceptionV3"), 512, ROCE_25, 0.90),
    ("VGG16, Horovod", p100("VGG16"), 512, ROCE_25, 0.68),
]


@pytest.mark.parametrize(("title", "work", "num_chips", "network", "efficiency"), PUBLISHED)
def test_published_efficiencies_are_met(title, work, num_chips, network, efficiency):
    found = simulate(work, num_chips=num_chips, network=network)
    print(f"{title}, {num_chips} chips: published {efficiency:.3f}, simulated {found.efficiency:.3f}")
    assert found.efficiency == pytest.approx(efficiency, rel=0.15), title


def test_imagenet_in_an_hour():
    """Goyal et al.: 29 hours on 8 GPUs for 90 epochs with batches of 256, about 90% of that speed per GPU on 256."""
    steps = 90 * 1_281_167 / 256
    measured_s = 29 * 3600 / steps  # of a step on 8 GPUs, all waiting included
    alone = simulate(Workload(compute_s=1.0, gradient_bytes=102.4 * MB, rows=32), num_chips=8, network=BIG_BASIN)
    work = Workload(compute_s=measured_s * alone.efficiency, gradient_bytes=102.4 * MB, rows=32)
    eight, many = (simulate(work, num_chips=number, network=BIG_BASIN) for number in (8, 256))
    print(f"8 to 256 GPUs: published 0.90, simulated {many.efficiency / eight.efficiency:.3f}")
    assert many.efficiency / eight.efficiency == pytest.approx(0.90, rel=0.15)
    hours = 90 * 1_281_167 / many.rows_per_s / 3600
    print(f"90 epochs on 256 GPUs: published 1 h, simulated {hours:.2f} h")
    assert hours == pytest.approx(1.0, rel=0.15)


def test_mlperf():
    """MLPerf 0.7, ResNet-50, NVIDIA's logs: 11,150 images/s on 8 V100, 631,000 on 512 in 32 hosts, in float16.

    The configuration of the large run says that gradients are sent after the backward pass.
    """
    per_image_s = 8 / 11_150
    hosts = Network(chips_per_group=16, inner_bytes_per_s=120e9, outer_bytes_per_s=8 * 100 * GIGABIT)
    work = Workload(compute_s=65 * per_image_s, gradient_bytes=51.2 * MB, rows=65, overlaps=False)
    found = simulate(work, num_chips=512, network=hosts)
    print(f"MLPerf, 512 V100: published 631,000 images/s, simulated {found.rows_per_s:,.0f}")
    assert found.rows_per_s == pytest.approx(631_000, rel=0.15)
    assert math.isclose(found.step_s, found.compute_s + found.waiting_s + found.straggling_s)
