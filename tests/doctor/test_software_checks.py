"""What the checks say of packages, variables, devices, containers, clocks and keys."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lockstep.containers.engine import ContainerEngine, EngineKind
from lockstep.doctor import Surroundings
from lockstep.doctor.checks.buckets import try_bucket
from lockstep.doctor.checks.clocks import judge_end, judge_skew
from lockstep.doctor.checks.containers import check_containers, judge_podman, judge_rootless
from lockstep.doctor.checks.credentials import check_credentials, judge_key
from lockstep.doctor.checks.devices import Seen, judge, read_probe
from lockstep.doctor.checks.drivers import judge_drivers
from lockstep.doctor.checks.hardware import Hardware
from lockstep.doctor.checks.leftovers import check_leftovers
from lockstep.doctor.checks.variables import judge_variables
from lockstep.doctor.checks.versions import check_versions, judge_byte_code, judge_packages, judge_tested
from lockstep.doctor.programs import Answer
from lockstep.home import Home
from lockstep.processes import ProcessIdentity

PACKAGES = {"libtpu": False, "jax_cuda12_plugin": True, "jax_cuda13_plugin": False}


@pytest.mark.parametrize(
    ("hardware", "seen", "packages", "env", "expected"),
    [
        (Hardware(), Seen(devices={"cpu": 1}), {}, {}, []),
        (Hardware(num_gpus=2), Seen(devices={"cpu": 1}), {}, {}, ["JAX cannot use"]),
        (Hardware(num_gpus=2), Seen(devices={"gpu": 2}), PACKAGES, {}, []),
        (Hardware(num_gpus=2), Seen(devices={"gpu": 1}), PACKAGES, {}, ["does not find all GPUs"]),
        (Hardware(num_gpus=2), Seen(devices={"gpu": 1}), PACKAGES, {"CUDA_VISIBLE_DEVICES": "0"}, []),
        (Hardware(num_gpus=2), Seen(devices={"cpu": 1}), PACKAGES, {"JAX_PLATFORMS": "cpu"}, ["hides the GPUs"]),
        (Hardware(num_gpus=2), None, PACKAGES, {}, []),
        (Hardware(num_tpus=4), None, {}, {}, ["TPUs that JAX cannot use"]),
        (Hardware(), Seen(devices={"cpu": 1}), {"libtpu": True}, {}, ["looks for a TPU"]),
        (Hardware(), Seen(devices={"cpu": 1}), {"libtpu": True}, {"JAX_PLATFORMS": "cpu"}, []),
        (Hardware(), Seen(problem="Unknown flag in XLA_FLAGS: --x"), {}, {"XLA_FLAGS": "--x"}, ["JAX does not start"]),
    ],
)
def test_devices_that_jax_does_not_use_are_told(
    hardware: Hardware, seen: Seen | None, packages: dict[str, bool], env: dict[str, str], expected: list[str]
) -> None:
    found = judge(hardware, seen=seen, packages=packages, env=env)
    assert len(found) == len(expected)
    assert all(text in each.what for each, text in zip(found, expected, strict=True))


def test_the_probe_of_jax_is_read_whatever_it_prints() -> None:
    good = Answer(code=0, output='a warning\n{"jax": "0.10", "devices": {"cpu": 2}}\n')
    assert read_probe(good) == Seen(devices={"cpu": 2})
    assert "45 s" in read_probe(Answer(code=None)).problem
    assert read_probe(Answer(code=1, errors="Traceback\nImportError: no jaxlib")).problem == "ImportError: no jaxlib"
    assert read_probe(Answer(code=-6)).problem == "exit code -6"


def test_a_driver_that_does_not_fit_is_told() -> None:
    old = Hardware(num_gpus=1, driver="470.57")
    assert judge_drivers(Hardware(num_gpus=1, driver="535.1"), plugins={12: "0.9"}, jaxlib="0.9") == ()
    (found,) = judge_drivers(old, plugins={12: "0.9"}, jaxlib="0.9")
    assert found.needed == "driver 525 or later for jax-cuda12-plugin"
    (found,) = judge_drivers(Hardware(num_gpus=1, driver="535.1"), plugins={12: "0.8"}, jaxlib="0.9")
    assert found.remedy == "pip install 'jax[cuda12]==0.9'"
    (found,) = judge_drivers(Hardware(num_gpus=1, problem="Driver/library version mismatch"), plugins={}, jaxlib="")
    assert found.remedy == "sudo reboot"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {}),
        ({"KERAS_BACKEND": "jax"}, {}),
        ({"KERAS_BACKEND": "tensorflow"}, {"unset KERAS_BACKEND": "error"}),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, {"unset PYTHONDONTWRITEBYTECODE": "warning"}),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, {"export NPROC=16": "error"}),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "16"}, {}),
        ({"JAX_PLATFORMS": "gpus"}, {"unset JAX_PLATFORMS": "error"}),
        ({"TF_CONFIG": "{"}, {"unset TF_CONFIG": "error"}),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, {"unset TF_CONFIG": "warning"}),
        ({"RAY_ADDRESS": "auto"}, {"unset RAY_ADDRESS": "warning"}),
        ({"HTTPS_PROXY": "http://ann:pass@proxy"}, {"export NO_PROXY": "warning"}),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "localhost,127.0.0.1"}, {}),
        ({"LOCKSTEP_TOKEN_FIEL": "x", "LOCKSTEP_HOME": "/x"}, {"unset LOCKSTEP_TOKEN_FIEL": "warning"}),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, {"unset LD_LIBRARY_PATH": "warning"}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_variables_that_break_something_are_told(env: dict[str, str], expected: dict[str, str]) -> None:
    found = list(judge_variables(env, num_cpus=2))
    assert len(found) == len(expected)
    for each, (remedy, severity) in zip(found, expected.items(), strict=True):
        assert each.remedy.startswith(remedy)
        assert each.severity == severity
        assert "pass" not in each.received


def test_packages_that_do_not_fit_are_told() -> None:
    installed = {"lockstep-train": "1", "keras": "3.1", "jax": "0.9", "keras-nightly": "3.16.dev1"}
    needs = {"lockstep-train": ["keras>=3.13", "jax>=0.9", "gcsfs>=1; extra == 'gcs'"], "jax": ["jaxlib<=0.9,>=0.9"]}
    found = judge_packages(["lockstep-train", "jax"], needs_of=lambda name: needs[name], version_of=installed.get)
    assert [(each.received, each.remedy) for each in found[:2]] == [
        ("keras 3.1", "pip install 'keras>=3.13'"),
        ("jaxlib is missing", "pip install 'jaxlib<=0.9,>=0.9'"),
    ]
    assert "overwrite each other" in found[2].what
    assert len(found) == 3
    assert [each.received for each in judge_tested({"keras": "3.99.1", "jax": "0.9.3"}.get)] == ["keras 3.99.1"]
    here = Surroundings(home=Home(path=Path("/nowhere")))
    assert [each.received for each in check_versions(here).findings if "does not fit" in each.what] == []


def test_packages_without_byte_code_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    found = judge_byte_code(tmp_path)
    assert found is not None
    assert found.remedy.endswith(f"-m compileall -q {tmp_path}")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / f"a.{sys.implementation.cache_tag}.pyc").write_text("")
    assert judge_byte_code(tmp_path) is None


def test_podman_that_cannot_start_containers_is_told(tmp_path: Path) -> None:
    engine = ContainerEngine(kind=EngineKind.PODMAN, path="/usr/bin/podman", has_init=False)
    first, second = judge_podman(engine, runtime="crun", has_runtimes={"crun": False, "runc": True})
    assert 'runtime = "runc"' in first.remedy
    assert second.remedy == "sudo apt install catatonit"
    assert judge_podman(engine, runtime="crun", has_runtimes={"crun": True})[0].severity == "warning"
    good = {"uids": "ann:100000:65536", "gids": "ann:100000:65536", "has_helpers": True}
    session = {"XDG_RUNTIME_DIR": "/run/user/1"}
    assert judge_rootless("ann", **good, env=session) == []
    said = [each.what for each in judge_rootless("ann", uids="", gids="bob:1:1", has_helpers=False, env={})]
    assert len(said) == 3
    nothing = Surroundings(home=Home(path=tmp_path), env={"PATH": str(tmp_path)})
    assert "apt install podman" in check_containers(nothing).skipped
    named = Surroundings(home=Home(path=tmp_path), env={"PATH": str(tmp_path), "LOCKSTEP_CONTAINER_ENGINE": "podmann"})
    (found,) = check_containers(named).findings
    assert (found.severity, found.remedy) == ("error", "unset LOCKSTEP_CONTAINER_ENGINE")


def test_clocks_and_certificates_are_told() -> None:
    assert judge_skew(-4.0, other="x") is None
    mild, bad = judge_skew(-60.0, other="x"), judge_skew(3600.0, other="x")
    assert mild is not None
    assert bad is not None
    assert (mild.severity, mild.received) == ("warning", "60 s behind")
    assert (bad.severity, bad.received) == ("error", "3600 s ahead")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert judge_end(at + timedelta(days=90), at=at) is None
    soon, over = judge_end(at + timedelta(days=3), at=at), judge_end(at - timedelta(days=3), at=at)
    assert soon is not None
    assert over is not None
    assert (soon.severity, over.severity) == ("warning", "error")


def test_keys_and_files_of_the_home_are_told(tmp_path: Path) -> None:
    home = Home(path=tmp_path)
    nothing = check_credentials(Surroundings(home=home, env={}))
    assert nothing.findings == ()
    assert "lockstep up" in nothing.skipped
    (found,) = check_credentials(Surroundings(home=home, env={"LOCKSTEP_URL": "https://x.example"})).findings
    assert "no key" in found.received
    env = {"LOCKSTEP_URL": "http://127.0.0.1:9", "LOCKSTEP_TOKEN": "lsk_x"}
    (found,) = check_credentials(Surroundings(home=home, env=env)).findings
    assert found.what == "the service does not respond"
    home.token.write_text("t")
    home.token.chmod(0o644)
    (found,) = check_credentials(Surroundings(home=home, env={})).findings
    assert found.remedy == f"chmod 600 {home.token}"
    key = {"project": "vision"}
    assert [each.severity for each in judge_key(key, project="speech")] == ["error"]
    assert [each.remedy for each in judge_key(key, project="")] == ["export LOCKSTEP_PROJECT=vision"]
    assert judge_key(key, project="vision") == []
    assert judge_key({"project": "*"}, project="speech") == []


def test_buckets_are_written_and_read_and_nothing_is_left(tmp_path: Path) -> None:
    assert try_bucket(str(tmp_path / "bucket"), may_write=True) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert try_bucket(str(tmp_path / "bucket"), may_write=False) is None
    (tmp_path / "file").write_text("no folder")
    found = try_bucket(str(tmp_path / "file"), may_write=True)
    assert found is not None
    assert found.severity == "error"
    found = try_bucket("ftp://x/y", may_write=True)
    assert found is not None
    assert "no such kind of storage" in found.received


def test_what_a_dead_service_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(path=tmp_path / "home")
    home.create()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = Surroundings(home=home)
    assert check_leftovers(here).findings == ()
    dead = ProcessIdentity(pid=2**22 - 1, start="another-boot/1")
    home.address.write_text(json.dumps({"url": "http://127.0.0.1:9", "process": dead.to_json()}))
    (tmp_path / "lockstep-ray-abc").mkdir()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
    said = {each.what: each for each in check_leftovers(here).findings}
    assert said["the service died, and nothing restarts it"].remedy == "lockstep up"
    assert said["engines that were killed have left files"].remedy == f"rm -r {tmp_path}/lockstep-ray-abc"
    assert said["programs that call ray.init() try to join a cluster that is gone"].remedy.startswith("rm ")
    assert len(said) == 3
    home.address.write_text("{")
    assert "cannot be read" in check_leftovers(here).findings[0].what
