"""Names of what a step is planned for: shapes, hosts, prices, environment."""

import math
from decimal import Decimal

import pytest

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.planning.chips import CHIPS
from lockstep.planning.targets import Target
from lockstep.topology import PLACE_VARIABLES, Topology


@pytest.mark.parametrize(
    ("name", "num_chips", "num_hosts", "machine_type", "words"),
    [
        ("v5e:1x1", 1, 1, "ct5lp-hightpu-1t", "1 TPU v5e chip (1x1) on 1 host"),
        ("v5e:2x4", 8, 1, "ct5lp-hightpu-8t", "8 TPU v5e chips (2x4) on 1 host"),
        ("V5E:4x4", 16, 4, "ct5lp-hightpu-4t", "16 TPU v5e chips (4x4) on 4 hosts"),
        ("v6e:16x16", 256, 64, "ct6e-standard-4t", "256 TPU v6e chips (16x16) on 64 hosts"),
        ("v5p:2x2x1", 4, 1, "ct5p-hightpu-4t", "4 TPU v5p chips (2x2x1) on 1 host"),
        ("v4:2x2x4", 16, 4, "cloud_tpu", "16 TPU v4 chips (2x2x4) on 4 hosts"),
        ("cpu:4", 4, 1, None, "4 virtual CPU devices"),
        ("cpu:1", 1, 1, None, "1 virtual CPU device"),
    ],
)
def test_a_name_says_how_many_chips_on_how_many_hosts(name, num_chips, num_hosts, machine_type, words):
    target = Target.parse(name)
    assert (target.num_chips, target.num_hosts, target.machine_type) == (num_chips, num_hosts, machine_type)
    assert target.describe() == words


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e:3x3", "received '3x3'; allowed: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v5e:8", "allowed: 1x1"),
        ("v5e", "received ''"),
        ("v5e:2x4x", "received '2x4x'"),
        ("v5p:2x4", "allowed: 2x2x1, 2x2x2"),
        ("v9:2x2", "no such chip to plan for; received 'v9:2x2'; allowed: v4:SHAPE, v5e:SHAPE"),
        ("v5l:2x4", "for example --on v5e:2x4"),
        ("", "allowed: v4:SHAPE"),
        ("cpu:0", "allowed: cpu:1 to cpu:64"),
        ("cpu:many", "allowed: cpu:1 to cpu:64"),
    ],
)
def test_other_names_are_refused_with_what_there_is(name, message):
    with pytest.raises(InvalidInputError) as refused:
        Target.parse(name)
    assert message in str(refused.value)


def test_every_shape_has_hosts_that_the_catalogue_knows():
    catalogue = load_catalogue()
    for chip in CHIPS.values():
        for shape in chip.shapes:
            target = Target.parse(f"{chip.generation}:{'x'.join(map(str, shape))}")
            assert target.num_hosts * target.chips_per_host == math.prod(shape)
            assert target.machine_type is not None
            assert catalogue.machine_type(target.machine_type)
            count = target.chips_per_host * chip.cores_per_chip
            assert chip.generation == "v4" or count in catalogue.accelerators[chip.accelerator].counts


def test_every_chip_says_where_its_figures_stand():
    for chip in CHIPS.values():
        assert chip.source.startswith("https://")
        assert chip.ici_source.startswith("https://")
        assert 1e14 < chip.peak_flops < 1e15
        assert 1e11 < chip.ici_bytes_per_s < chip.hbm_bytes_per_s < 1e13


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("v5e:1x1", "1.2"),
        ("v5e:2x4", "9.6"),
        ("v5e:4x4", "19.2"),
        ("v5p:2x2x2", "33.6"),
        ("v6e:2x2", "10.8"),
        # Eight cores, which are four chips, at $12.88.
        ("v4:2x2x1", "12.88"),
        ("v4:2x2x4", "51.52"),
    ],
)
def test_a_price_is_that_of_all_hosts_and_chips(name: str, usd: str):
    catalogue = load_catalogue()
    assert Target.parse(name).usd_per_hour(catalogue) == Decimal(usd)
    assert Target.parse(name).price_list_names(catalogue) == ("Cloud TPU's list for the US",)


def test_what_has_no_price_in_the_catalogue_is_unpriced():
    catalogue = load_catalogue()
    assert Target.parse("v5e:2x4").usd_per_hour(catalogue, region="us-central1") is not None
    assert Target.parse("v5e:2x4").usd_per_hour(catalogue, region="europe-west4") is None
    assert Target.parse("cpu:4").usd_per_hour(catalogue) is None
    assert Target.parse("cpu:4").price_list_names(catalogue) == ()
    with pytest.raises(ConfigError, match="region"):
        Target.parse("v5e:2x4").usd_per_hour(catalogue, region="mars-north1")


def test_a_plan_is_made_in_one_process_with_a_device_for_each_chip():
    shell = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}', "RANK": "1", "WORLD_SIZE": "2", "HOME": "/h"}
    env = Target.parse("v5e:4x4").environment(shell)
    assert (env["JAX_PLATFORMS"], env["JAX_NUM_CPU_DEVICES"], env["HOME"]) == ("cpu", "16", "/h")
    assert int(env["NPROC"]) >= 32
    assert env["TPU_SKIP_MDS_QUERY"] == "1"
    assert env["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "true", "two plans at a time"
    assert Topology.from_env(env).num_processes == 1
    assert "TPU_SKIP_MDS_QUERY" not in Target.parse("cpu:2").environment({})
    for name in PLACE_VARIABLES:
        assert Topology.from_env(Target.parse("cpu:2").environment({name: "2"})).num_processes == 1, name
    on_a_tpu = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
    assert not on_a_tpu.keys() & Target.parse("cpu:2").environment(on_a_tpu).keys()
